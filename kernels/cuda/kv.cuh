// How attention reads elements of the KV cache: 8 at a time, expanded in
// registers to the type that the product takes.
#pragma once

#include "defs.cuh"

struct KvBf16 {
  typedef ElemBF16 Elem;
  typedef uint4 Raw; // 8 elements as they are stored
  static const int bytes = 2;
  static __device__ __forceinline__ Raw load(const uint8_t *p) { return load_stream(p); }
  static __device__ __forceinline__ Raw zero() { return make_uint4(0, 0, 0, 0); }
  static __device__ __forceinline__ void expand(uint32_t (&r)[4], Raw v) { r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w; }
  static __device__ __forceinline__ uint32_t pack(float lo, float hi) { return pack_bf16(lo, hi); }
  static __device__ __forceinline__ uint32_t from_bf16(uint32_t pair) { return pair; }
  static __device__ __forceinline__ float factor() { return 1.0f; } // expanded * factor = stored
};

struct KvF16 {
  typedef ElemF16 Elem;
  typedef uint4 Raw;
  static const int bytes = 2;
  static __device__ __forceinline__ Raw load(const uint8_t *p) { return load_stream(p); }
  static __device__ __forceinline__ Raw zero() { return make_uint4(0, 0, 0, 0); }
  static __device__ __forceinline__ void expand(uint32_t (&r)[4], Raw v) { r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w; }
  static __device__ __forceinline__ uint32_t pack(float lo, float hi) { return pack_f16(lo, hi); }
  static __device__ __forceinline__ uint32_t from_bf16(uint32_t pair) { return pack_f16(bf16_low(pair), bf16_high(pair)); }
  static __device__ __forceinline__ float factor() { return 1.0f; }
};

struct KvE4m3 {
  typedef ElemF16 Elem;
  typedef uint2 Raw;
  static const int bytes = 1;
  static __device__ __forceinline__ Raw load(const uint8_t *p) { return load_stream8(p); }
  static __device__ __forceinline__ Raw zero() { return make_uint2(0, 0); }
  static __device__ __forceinline__ void expand(uint32_t (&r)[4], Raw v) {
    r[0] = e4m3_pair_f16(v.x, E4M3_LOW), r[1] = e4m3_pair_f16(v.x, E4M3_HIGH);
    r[2] = e4m3_pair_f16(v.y, E4M3_LOW), r[3] = e4m3_pair_f16(v.y, E4M3_HIGH);
  }
  static __device__ __forceinline__ uint32_t pack(float lo, float hi) { return pack_f16(lo, hi); }
  static __device__ __forceinline__ uint32_t from_bf16(uint32_t pair) { return pack_f16(bf16_low(pair), bf16_high(pair)); }
  static __device__ __forceinline__ float factor() { return 256.0f; }
};

#define LOG2E 1.4426950408889634f
#define NEG_INF __int_as_float((int)0xff800000u)
