// Large anonymous mappings for weights, the KV pool and activations.
#ifndef TM_MEM_H
#define TM_MEM_H

#include <stddef.h>

// tm_map returns zeroed memory that starts on a 2 MiB boundary, or null. With
// huge it asks for huge pages. Pages take memory once touched.
void *tm_map(size_t bytes, int huge);

// tm_unmap returns memory of tm_map; bytes are those asked for.
void tm_unmap(void *p, size_t bytes);

#endif
