// bfloat16: storage in 16 bits, arithmetic in float with one rounding.
#pragma once
#include "cuda_runtime.h"

inline float tdemu_bf16_to_float(uint16_t b) { return tdemu_cast<float>((uint32_t)b << 16); }

// Round to nearest, ties to even; every NaN becomes 0x7fff.
inline uint16_t tdemu_float_to_bf16(float f) {
  uint32_t u = tdemu_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

struct __nv_bfloat16_raw { unsigned short x; };

struct alignas(2) __nv_bfloat16 {
  unsigned short x;
  __nv_bfloat16() = default;
  __nv_bfloat16(float f) : x(tdemu_float_to_bf16(f)) {}
  __nv_bfloat16(double f) : x(tdemu_float_to_bf16((float)f)) {}
  __nv_bfloat16(int f) : x(tdemu_float_to_bf16((float)f)) {}
  __nv_bfloat16(__nv_bfloat16_raw r) : x(r.x) {}
  operator float() const { return tdemu_bf16_to_float(x); }
  operator __nv_bfloat16_raw() const { return {x}; }
};
typedef __nv_bfloat16 nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
};
typedef __nv_bfloat162 nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __double2bfloat16(double f) { return __nv_bfloat16((float)f); }
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return {h.x, h.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return {f.x, f.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
inline float __low2float(__nv_bfloat162 a) { return a.x; }
inline float __high2float(__nv_bfloat162 a) { return a.y; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.x; }
inline short __bfloat16_as_short(__nv_bfloat16 h) { return (short)h.x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return __nv_bfloat16_raw{u}; }
inline __nv_bfloat16 __short_as_bfloat16(short u) { return __nv_bfloat16_raw{(unsigned short)u}; }

#define TDEMU_B(NAME, OP)                                                                      \
  inline __nv_bfloat16 NAME(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a OP(float) b; } \
  inline __nv_bfloat162 NAME##2(__nv_bfloat162 a, __nv_bfloat162 b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
TDEMU_B(__hadd, +)
TDEMU_B(__hsub, -)
TDEMU_B(__hmul, *)
#undef TDEMU_B
inline __nv_bfloat16 __hdiv(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a / (float)b; }
inline __nv_bfloat16 __hneg(__nv_bfloat16 a) { return -(float)a; }
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { return fmaf(a, b, c); }
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) { return fmaxf(a, b); }
inline __nv_bfloat16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b) { return fminf(a, b); }
inline bool __hisnan(__nv_bfloat16 a) { return std::isnan((float)a); }
