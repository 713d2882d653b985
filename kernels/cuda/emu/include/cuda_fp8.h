// FP8: E4M3 (no infinity, largest 448) and E5M2, saturating conversions.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline float tdemu_fp8_to_float(uint8_t v, __nv_fp8_interpretation_t k) {
  if (k == __NV_E5M2) return tdemu_half_to_float((uint16_t)(v << 8));
  int exp = v >> 3 & 15, man = v & 7;
  float f = exp == 15 && man == 7 ? NAN : exp ? ldexpf((float)(8 + man), exp - 10) : ldexpf((float)man, -9);
  return v & 0x80 ? -f : f;
}

// Round to nearest, ties to even, over the finite codes, which are ordered.
inline uint8_t tdemu_float_to_fp8(float f, __nv_saturation_t sat, __nv_fp8_interpretation_t k) {
  bool e4 = k == __NV_E4M3;
  uint8_t sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return 0x7f;
  float a = fabsf(f), top = e4 ? 448.0f : 57344.0f, half_step = e4 ? 16.0f : 4096.0f;
  int mbits = e4 ? 3 : 2, emin = e4 ? -6 : -14;
  if (a > top) {
    bool over = std::isinf(a) || a >= top + half_step;
    if (over && sat == __NV_NOSAT) return sign | (e4 ? 0x7f : 0x7c);
    return sign | (e4 ? 0x7e : 0x7b);
  }
  int e = a > 0 ? ilogbf(a) : emin;
  if (e < emin) e = emin;
  int q = (int)rintf(ldexpf(a, mbits - e));  // 0 .. 2<<mbits
  int code = q < 1 << mbits ? q : ((e - emin + 1) << mbits) + q - (1 << mbits);
  return sign | (uint8_t)code;
}

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float f, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return tdemu_float_to_fp8(f, s, k);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 f, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return (unsigned short)(tdemu_float_to_fp8(f.x, s, k) | tdemu_float_to_fp8(f.y, s, k) << 8);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t k) {
  return __half(tdemu_fp8_to_float(v, k));
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t k) {
  return {__nv_cvt_fp8_to_halfraw((unsigned char)v, k).x, __nv_cvt_fp8_to_halfraw((unsigned char)(v >> 8), k).x};
}

template <__nv_fp8_interpretation_t K>
struct tdemu_fp8 {
  __nv_fp8_storage_t __x;
  tdemu_fp8() = default;
  explicit tdemu_fp8(float f) : __x(tdemu_float_to_fp8(f, __NV_SATFINITE, K)) {}
  explicit tdemu_fp8(__half f) : tdemu_fp8((float)f) {}
  explicit tdemu_fp8(__nv_bfloat16 f) : tdemu_fp8((float)f) {}
  explicit operator float() const { return tdemu_fp8_to_float(__x, K); }
  explicit operator __half() const { return __half((float)*this); }
  explicit operator __nv_bfloat16() const { return __nv_bfloat16((float)*this); }
};
using __nv_fp8_e4m3 = tdemu_fp8<__NV_E4M3>;
using __nv_fp8_e5m2 = tdemu_fp8<__NV_E5M2>;
