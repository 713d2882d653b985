// Large mappings for weights, the KV pool and activations.
#ifndef TM_MEM_H
#define TM_MEM_H

#include <stddef.h>

// tm_map returns zeroed memory that starts on a 2 MiB boundary, or null. With
// huge it asks for huge pages. Pages take memory once touched.
void *tm_map(size_t bytes, int huge);

// tm_map_file maps the first bytes of a file for reading, or returns null. The
// mapping starts on a 2 MiB boundary, so that a file system which caches files in
// huge pages can map those. The descriptor may be closed afterwards; the file must
// not shrink.
void *tm_map_file(int fd, size_t bytes);

// tm_unmap returns memory of tm_map or tm_map_file; bytes are those asked for.
void tm_unmap(void *p, size_t bytes);

#endif
