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
