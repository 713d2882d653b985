// What the machine can do at most, for measurements to be compared with.
#ifndef TANDEM_LIMITS_H
#define TANDEM_LIMITS_H

#include <stddef.h>

#include "pool.h"

// Kinds of arithmetic. One operation is half a multiply-add.
enum {
	TM_LIMIT_F32 = 1, // float32 multiply-adds
	TM_LIMIT_INT16,   // products of 16-bit pairs, added in 32 bits
	TM_LIMIT_INT8,    // products of 8-bit fours, added in 32 bits; in tiles where there are some
};

// tm_limit_read lets all workers of a pool read bytes of memory, each its part,
// little ones several times, and returns the bytes per second.
double tm_limit_read(tm_pool *pool, const void *memory, size_t bytes);

// tm_limit_compute does arithmetic in registers on all workers and returns
// operations per second, 0 where the level has no instruction for it.
double tm_limit_compute(tm_pool *pool, int isa, int kind);

#endif
