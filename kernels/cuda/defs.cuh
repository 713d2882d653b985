// Small things that several kernels share: 16-bit elements, sums over warps and
// blocks, elements of the KV cache, a batch's sequences.
#pragma once

#include "asm.cuh"

#include <math.h>

typedef uint16_t bf16; // bits of a bfloat16

#define FULL_WARP 0xffffffffu

static __device__ __forceinline__ float bf16_to_float(uint32_t b) { return __uint_as_float(b << 16); }
static __device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
static __device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
static __device__ __forceinline__ bf16 float_to_bf16(float x) { return (bf16)pack_bf16(x, 0.0f); }

static __device__ __forceinline__ void unpack8(float (&x)[8], uint4 v) {
  x[0] = bf16_low(v.x), x[1] = bf16_high(v.x), x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
  x[4] = bf16_low(v.z), x[5] = bf16_high(v.z), x[6] = bf16_low(v.w), x[7] = bf16_high(v.w);
}
static __device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
static __device__ __forceinline__ void load8f(float (&x)[8], const float *p) {
  const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
static __device__ __forceinline__ void store8f(float *p, const float (&x)[8]) {
  ((float4 *)p)[0] = make_float4(x[0], x[1], x[2], x[3]);
  ((float4 *)p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

template <class T> static __device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(FULL_WARP, x, i);
  return x;
}

// block_sum returns the sum over a block of whole warps to all its threads;
// scratch has 32 places. The block must meet before scratch is used again.
template <class T> static __device__ __forceinline__ T block_sum(T x, T *scratch) {
  const int warps = (int)blockDim.x / 32;
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < warps; w++) sum += scratch[w];
  return sum;
}

// activate: 0 SiLU, 1 GELU by tanh, 2 GELU by erf.
static __device__ __forceinline__ float activate(float x, int act) {
  if (act == 0) return x / (1.0f + __expf(-x));
  if (act == 1) { // GELU by tanh; 1+tanh(u) = 2/(1+exp(-2u))
    const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return x / (1.0f + __expf(-2.0f * u));
  }
  return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
}

// Element types of the KV cache, as parameters kv_type.
#define KV_BF16 0
#define KV_F16 1
#define KV_E4M3 2

// float_to_e4m3 rounds to nearest even and saturates at 448; NaN stays NaN.
static __device__ __forceinline__ uint32_t float_to_e4m3(float x) {
  const uint32_t u = __float_as_uint(x), sign = u >> 24 & 0x80, mag = u & 0x7fffffffu;
  if (mag > 0x7f800000u) return sign | 0x7f;
  if (mag >= 0x43e80000u) return sign | 0x7e; // 464, halfway to what would follow 448
  if (mag < 0x3c800000u)                      // below 2^-6: multiples of 2^-9
    return sign | (uint32_t)__float2int_rn(__uint_as_float(mag) * 512.0f);
  const uint32_t rounded = mag + 0x7ffffu + (mag >> 20 & 1);
  return sign | ((rounded >> 20) - (120u << 3));
}

// e4m3_pair_f16 makes halves of 2^-8 times the value out of bytes 0 and 1.
static __device__ __forceinline__ uint32_t e4m3_pair_f16(uint32_t x, uint32_t selector) {
  x = __byte_perm(x, 0, selector);
  return (x & 0x80008000u) | ((x & 0x7f007f00u) >> 1);
}

// e4m3_pair_bf16 does the same for bfloat16, at 2^-120 times the value.
static __device__ __forceinline__ uint32_t e4m3_pair_bf16(uint32_t x, uint32_t selector) {
  x = __byte_perm(x, 0, selector);
  return (x & 0x80008000u) | ((x & 0x7f007f00u) >> 4);
}
#define E4M3_LOW 0x1404u  // bytes 0 and 1 to the high halves of two 16-bit places
#define E4M3_HIGH 0x3424u // bytes 2 and 3
