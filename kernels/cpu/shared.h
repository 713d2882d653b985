// Memory that other processes may map.
#ifndef TM_SHARED_H
#define TM_SHARED_H

#include <stddef.h>

// tm_map_shared returns zeroed memory as tm_map does, and the descriptor by which
// other processes can map it for reading; nobody can resize it. Null where the
// system has no such memory.
void *tm_map_shared(size_t bytes, int *fd);

#endif
