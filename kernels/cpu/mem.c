#define _GNU_SOURCE
#include "mem.h"

#include <stdint.h>
#include <sys/mman.h>

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif
#if !defined(MAP_NORESERVE)
#define MAP_NORESERVE 0
#endif

static const size_t align = (size_t)2 << 20;

static size_t whole(size_t bytes) { return (bytes + align - 1) / align * align; }

// Maps size bytes, a multiple of align, on a boundary of align.
static char *aligned(size_t size, int prot)
{
	char *p = mmap(NULL, size + align, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) return NULL;
	// Give back what lies before the boundary and behind the end.
	const size_t head = (align - (uintptr_t)p % align) % align;
	if (head) munmap(p, head);
	if (align - head) munmap(p + head + size, align - head);
	return p + head;
}

void *tm_map(size_t bytes, int huge)
{
	if (bytes == 0 || bytes > SIZE_MAX / 2) return NULL;
	const size_t size = whole(bytes);
	char *p = aligned(size, PROT_READ | PROT_WRITE);
	if (!p) return NULL;
#if defined(MADV_HUGEPAGE)
	if (huge) madvise(p, size, MADV_HUGEPAGE);
#else
	(void)huge;
#endif
	return p;
}

void *tm_map_file(int fd, size_t bytes)
{
	if (bytes == 0 || bytes > SIZE_MAX / 2) return NULL;
	char *p = aligned(whole(bytes), PROT_NONE);
	if (!p) return NULL;
	if (mmap(p, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		munmap(p, whole(bytes));
		return NULL;
	}
	madvise(p, bytes, MADV_WILLNEED);
#if defined(MADV_HUGEPAGE)
	madvise(p, bytes, MADV_HUGEPAGE);
#endif
	return p;
}

void tm_unmap(void *p, size_t bytes)
{
	if (p) munmap(p, whole(bytes));
}
