// Half precision: storage in 16 bits, arithmetic in float with one rounding.
#pragma once
#include "cuda_runtime.h"

inline float tdemu_half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023;
  if (exp == 31) return tdemu_cast<float>(sign | 0x7f800000u | man << 13);
  if (exp) return tdemu_cast<float>(sign | (exp + 112) << 23 | man << 13);
  float v = (float)man * 0x1p-24f;
  return sign ? -v : v;
}

// Round to nearest, ties to even; overflow goes to infinity.
inline uint16_t tdemu_float_to_half(float f) {
  uint32_t u = tdemu_cast<uint32_t>(f), a = u & 0x7fffffffu;
  uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
  if (a > 0x7f800000u) return 0x7fff;
  if (a >= 0x477ff000u) return sign | 0x7c00;
  if (a < 0x38800000u)  // subnormal: one rounding by the float adder
    return sign | (uint16_t)(tdemu_cast<uint32_t>(tdemu_cast<float>(a) + 0.5f) - 0x3f000000u);
  return sign | (uint16_t)((a + 0xfffu + (a >> 13 & 1) - 0x38000000u) >> 13);
}

struct __half_raw { unsigned short x; };
struct __half2_raw { unsigned short x, y; };

struct alignas(2) __half {
  unsigned short x;
  __half() = default;
  __half(float f) : x(tdemu_float_to_half(f)) {}
  __half(double f) : x(tdemu_float_to_half((float)f)) {}
  __half(int f) : x(tdemu_float_to_half((float)f)) {}
  __half(__half_raw r) : x(r.x) {}
  operator float() const { return tdemu_half_to_float(x); }
  operator __half_raw() const { return {x}; }
};
typedef __half half;

struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half a, __half b) : x(a), y(b) {}
};
typedef __half2 half2;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half __double2half(double f) { return __half((float)f); }
inline float2 __half22float2(__half2 h) { return {h.x, h.y}; }
inline __half2 __float22half2_rn(float2 f) { return {f.x, f.y}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float2half2_rn(float a) { return {a, a}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return a.x; }
inline float __high2float(__half2 a) { return a.y; }
inline unsigned short __half_as_ushort(__half h) { return h.x; }
inline short __half_as_short(__half h) { return (short)h.x; }
inline __half __ushort_as_half(unsigned short u) { return __half_raw{u}; }
inline __half __short_as_half(short u) { return __half_raw{(unsigned short)u}; }

#define TDEMU_H(NAME, OP)                                                        \
  inline __half NAME(__half a, __half b) { return (float)a OP(float) b; }        \
  inline __half2 NAME##2(__half2 a, __half2 b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
TDEMU_H(__hadd, +)
TDEMU_H(__hsub, -)
TDEMU_H(__hmul, *)
#undef TDEMU_H
inline __half __hdiv(__half a, __half b) { return (float)a / (float)b; }
inline __half __hneg(__half a) { return -(float)a; }
inline __half __hfma(__half a, __half b, __half c) { return fmaf(a, b, c); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __half __hmax(__half a, __half b) { return fmaxf(a, b); }
inline __half __hmin(__half a, __half b) { return fminf(a, b); }
inline bool __hisnan(__half a) { return std::isnan((float)a); }
