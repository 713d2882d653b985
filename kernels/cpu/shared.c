#define _GNU_SOURCE
#include "shared.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem.h"

#if defined(__linux__) && defined(MFD_ALLOW_SEALING)

#if !defined(F_SEAL_FUTURE_WRITE)
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

void *tm_map_shared(size_t bytes, int *out)
{
	if (bytes == 0 || bytes > SIZE_MAX / 2) return NULL;
	const int fd = memfd_create("tandem-kv-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0) return NULL;
	// The file takes the place of the pages in an ordinary mapping, which has the
	// alignment.
	void *p = ftruncate(fd, (off_t)bytes) ? NULL : tm_map(bytes, 0);
	if (p && (mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED ||
		  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))) {
		tm_unmap(p, bytes);
		p = NULL;
	}
	if (!p) {
		close(fd);
		return NULL;
	}
#if defined(MADV_HUGEPAGE)
	madvise(p, bytes, MADV_HUGEPAGE); // where shmem_enabled allows it
#endif
	*out = fd;
	return p;
}

#else

void *tm_map_shared(size_t bytes, int *out)
{
	(void)bytes, (void)out;
	return NULL;
}

#endif
