// Small kernels that the emulator's tests run and break.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

extern __shared__ __align__(16) unsigned char dyn_smem[];

extern "C" __global__ void __launch_bounds__(1024) td_add(const float* a, const float* b, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a[i] + b[i];
}

extern "C" __global__ void td_reverse(const int* x, int* y, int n) {
  int* s = reinterpret_cast<int*>(dyn_smem);
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * n + t];
  __syncthreads();
  y[blockIdx.x * n + t] = s[n - 1 - t];
}

__device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

__device__ float block_sum(float v) {
  __shared__ float part[32];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
  if (threadIdx.x < 32) v = warp_sum(v);
  if (threadIdx.x == 0) part[0] = v;
  __syncthreads();
  return part[0];
}

// Rows of n bf16 elements: y = x / rms(x) * w.
extern "C" __global__ void td_rmsnorm(const __nv_bfloat16* __restrict__ x, const float* w, __nv_bfloat16* y, int n,
                                      float eps) {
  x += (size_t)blockIdx.x * n, y += (size_t)blockIdx.x * n;
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float v = __bfloat162float(x[i]);
    s += v * v;
  }
  float r = rsqrtf(block_sum(s) / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = __float2bfloat16(__bfloat162float(x[i]) * r * w[i]);
}

// The sum over a grid by atomics and "the last block finishes".
extern "C" __global__ void td_gridsum(const int* x, int n, long long* out, unsigned* counter) {
  long long s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  atomicAdd((unsigned long long*)out, (unsigned long long)s);
  __threadfence();
  if (threadIdx.x == 0) atomicInc(counter, gridDim.x - 1);
}

// Cost of scheduling alone: rounds barriers per thread.
extern "C" __global__ void td_barriers(int* out, int rounds) {
  for (int i = 0; i < rounds; i++) __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = rounds;
}

// y = x + c after some time's worth of nothing: for tests of stream order.
extern "C" __global__ void td_shift(const int* x, int* y, int c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + c;
}

// All warp operations, one result per lane each.
extern "C" __global__ void td_warp_ops(unsigned* y) {
  unsigned l = threadIdx.x, n = blockDim.x;
  y[0 * n + l] = __shfl_up_sync(0xffffffffu, l, 3);
  y[1 * n + l] = __shfl_down_sync(0xffffffffu, l, 3, 8);
  y[2 * n + l] = __ballot_sync(0xffffffffu, l & 1);
  y[3 * n + l] = __match_any_sync(0xffffffffu, l / 4);
  y[4 * n + l] = __reduce_add_sync(0xffffffffu, l);
  y[5 * n + l] = __any_sync(0xffffffffu, l == 9) + 2 * __all_sync(0xffffffffu, l < 9);
  y[6 * n + l] = l < 8 ? __shfl_xor_sync(0xffu, l, 1) : __shfl_xor_sync(0xffffff00u, l, 2);
  y[7 * n + l] = __syncthreads_count(l % 3 == 0);
}

// An asynchronous copy is not visible before its wait.
#include "emu_mma.h"
extern "C" __global__ void td_async(const int* x, int* y, int early) {
  __shared__ __align__(16) int s[128];
  int t = threadIdx.x;
  emu::cp_async<16>(s + 4 * t, x + 4 * t);
  emu::cp_async_commit();
  if (!early) emu::cp_async_wait<0>();
  __syncwarp();
  y[t] = s[4 * ((t + 1) % 32)];
}

// C = A B by one warp, A 16x16 row-major, B 16x8 stored as 8 columns of 16.
extern "C" __global__ void td_mma(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  __shared__ __align__(16) __nv_bfloat16 sa[16 * 16], sb[8 * 16];
  int t = threadIdx.x;
  for (int i = t; i < 256; i += 32) sa[i] = a[i];
  for (int i = t; i < 128; i += 32) sb[i] = b[i];
  __syncwarp();
  uint32_t ra[4], rb[2];
  emu::ldmatrix<4>(ra, sa + (t % 16) * 16 + t / 16 * 8);
  emu::ldmatrix<2>(rb, sb + (t % 8) * 16 + t / 8 % 2 * 8);
  float z[4] = {}, d[4];
  emu::mma_m16n8k16_bf16(d, ra, rb, z);
  for (int i = 0; i < 4; i++) c[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}
