// What the libraries beside the driver (cuBLASLt, NCCL) need of it: work of
// their own in stream order, and checks of device memory.
#pragma once
#include <cuda.h>
#include <cstddef>

extern "C" {
// tdemu_enqueue appends work to a stream, or to its capture. fn returns a
// CUresult and, with an error, writes why; drop frees data after the last run.
CUresult tdemu_enqueue(CUstream s, int (*fn)(void* data, char* why, size_t n), void* data, void (*drop)(void*));
// tdemu_range checks that a range lies in one live allocation; 0 is yes.
int tdemu_range(CUdeviceptr p, size_t n, char* why, size_t size);
}
