// Kernels with one fault each, which the emulator must find.
#include <cuda_runtime.h>

extern __shared__ __align__(16) unsigned char dyn_smem[];

// The barrier between writing and reading shared memory is missing.
extern "C" __global__ void td_no_barrier(const int* x, int* y, int n) {
  int* s = reinterpret_cast<int*>(dyn_smem);
  int t = threadIdx.x;
  s[t] = x[t];
  y[t] = s[n - 1 - t];
}

// The barrier before the buffer is written again is missing.
extern "C" __global__ void td_no_second_barrier(const int* x, int* y, int n, int rounds) {
  __shared__ int s[64];
  int t = threadIdx.x, sum = 0;
  for (int r = 0; r < rounds; r++) {
    s[t] = x[t] + r;
    __syncthreads();
    sum += s[(t + 1) % n];
  }
  y[t] = sum;
}

extern "C" __global__ void td_divergent(int* y) {
  if (threadIdx.x < 16) {
    __syncthreads();
    y[threadIdx.x] = 1;
  } else {
    __syncthreads();
    y[threadIdx.x] = 2;
  }
}

// Block b reads entry b of a table one entry too short.
extern "C" __global__ void td_block_index(const int* table, int* y) {
  y[blockIdx.x * blockDim.x + threadIdx.x] = table[blockIdx.x];
}

// Warp 1 waits for a shuffle that its lane 3 never comes to.
extern "C" __global__ void td_deadlock(int* y) {
  int v = threadIdx.x;
  if (threadIdx.x != 35)
    v = __shfl_sync(0xffffffffu, v, 0);
  else
    __syncthreads();
  y[threadIdx.x] = v;
}

extern "C" __global__ void td_exited_lane(int* y) {
  if (threadIdx.x == 7) return;
  y[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 0);
}

extern "C" __global__ void td_masks_differ(int* y) {
  unsigned mask = threadIdx.x < 4 ? 0xffu : 0xfffu;
  if (threadIdx.x < 12) y[threadIdx.x] = __shfl_sync(mask, (int)threadIdx.x, 0);
}

extern "C" __global__ void td_source_outside(int* y) {
  if (threadIdx.x < 8) y[threadIdx.x] = __shfl_sync(0xffu, (int)threadIdx.x, 9);
}

extern "C" __global__ void td_overflow(int* y, int depth) {
  volatile char big[4096];
  big[0] = (char)depth;
  void (*volatile self)(int*, int) = td_overflow;
  if (depth > 0) self(y, depth - 1);
  y[0] = big[0];
}

extern "C" __global__ void td_divide(int* y, int by) { y[threadIdx.x] = 100 / by; }

extern "C" __global__ void td_assert(int* y, int n) {
  assert(threadIdx.x < n);
  y[threadIdx.x] = 1;
}
