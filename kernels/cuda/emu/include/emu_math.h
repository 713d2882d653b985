// Scalar intrinsics. Names that glibc declares for itself (__expf, __sinf ...)
// have to be macros.
#pragma once
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "emu_vec.h"

using std::isfinite;
using std::isinf;
using std::isnan;

#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
#define __fdividef(a, b) ((float)(a) / (float)(b))
#define __builtin_assume(x) ((void)0)

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __ddiv_rn(double a, double b) { return a / b; }

// The _rn forms promise not to be contracted into a fused operation.
#define TDEMU_RN(NAME, T, OP)                                       \
  __attribute__((optimize("fp-contract=off"))) inline T NAME(T a, T b) { \
    volatile T r = a OP b;                                          \
    return r;                                                       \
  }
TDEMU_RN(__fadd_rn, float, +)
TDEMU_RN(__fsub_rn, float, -)
TDEMU_RN(__fmul_rn, float, *)
TDEMU_RN(__dadd_rn, double, +)
TDEMU_RN(__dsub_rn, double, -)
TDEMU_RN(__dmul_rn, double, *)
#undef TDEMU_RN

template <class To, class From>
inline To tdemu_cast(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  std::memcpy(&r, &v, sizeof r);
  return r;
}
inline unsigned __float_as_uint(float v) { return tdemu_cast<unsigned>(v); }
inline int __float_as_int(float v) { return tdemu_cast<int>(v); }
inline float __uint_as_float(unsigned v) { return tdemu_cast<float>(v); }
inline float __int_as_float(int v) { return tdemu_cast<float>(v); }
inline long long __double_as_longlong(double v) { return tdemu_cast<long long>(v); }
inline double __longlong_as_double(long long v) { return tdemu_cast<double>(v); }
inline int __double2hiint(double v) { return (int)(tdemu_cast<uint64_t>(v) >> 32); }
inline int __double2loint(double v) { return (int)tdemu_cast<uint64_t>(v); }
inline double __hiloint2double(int hi, int lo) {
  return tdemu_cast<double>((uint64_t)(uint32_t)hi << 32 | (uint32_t)lo);
}

// Conversions to integers saturate and turn NaN into 0, as the hardware does.
template <class I, class F>
inline I tdemu_toint(F v) {
  if (v != v) return 0;
  constexpr I lo = std::is_signed<I>::value ? I(I(1) << (8 * sizeof(I) - 1)) : I(0);
  constexpr I hi = I(~lo);
  if (v <= (F)lo) return lo;
  if (v >= (F)hi) return hi;
  return (I)v;
}
inline int __float2int_rn(float v) { return tdemu_toint<int>(rintf(v)); }
inline int __float2int_rz(float v) { return tdemu_toint<int>(truncf(v)); }
inline int __float2int_rd(float v) { return tdemu_toint<int>(floorf(v)); }
inline int __float2int_ru(float v) { return tdemu_toint<int>(ceilf(v)); }
inline unsigned __float2uint_rn(float v) { return tdemu_toint<unsigned>(rintf(v)); }
inline unsigned __float2uint_rz(float v) { return tdemu_toint<unsigned>(truncf(v)); }
inline int __double2int_rn(double v) { return tdemu_toint<int>(rint(v)); }
inline int __double2int_rz(double v) { return tdemu_toint<int>(trunc(v)); }
inline long long __float2ll_rn(float v) { return tdemu_toint<long long>(rintf(v)); }
inline float __int2float_rn(int v) { return (float)v; }
inline float __uint2float_rn(unsigned v) { return (float)v; }
inline double __int2double_rn(int v) { return v; }
inline float __ll2float_rn(long long v) { return (float)v; }
inline float __double2float_rn(double v) { return (float)v; }

inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  uint64_t v = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned sel = s >> (4 * i) & 15, byte = (unsigned)(v >> (8 * (sel & 7))) & 255;
    if (sel & 8) byte = byte & 128 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((uint64_t)hi << 32 | lo) << (s & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31));
}
inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __mul24(int a, int b) { return a * b; }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> (8 * i)) * (int)(int8_t)(b >> (8 * i));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; i++) c += (a >> (8 * i) & 255) * (b >> (8 * i) & 255);
  return c;
}
inline int __vsub4(int a, int b) {
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= ((((unsigned)a >> (8 * i)) - ((unsigned)b >> (8 * i))) & 255) << (8 * i);
  return (int)r;
}
inline int __vsubss4(int a, int b) {
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    int d = (int8_t)(a >> (8 * i)) - (int8_t)(b >> (8 * i));
    r |= ((unsigned)(d < -128 ? -128 : d > 127 ? 127 : d) & 255) << (8 * i);
  }
  return (int)r;
}

#define TDEMU_MINMAX(T)                                 \
  inline T min(T a, T b) { return a < b ? a : b; }      \
  inline T max(T a, T b) { return a > b ? a : b; }
TDEMU_MINMAX(int)
TDEMU_MINMAX(unsigned)
TDEMU_MINMAX(long)
TDEMU_MINMAX(unsigned long)
TDEMU_MINMAX(long long)
TDEMU_MINMAX(unsigned long long)
#undef TDEMU_MINMAX
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldlu(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *(const volatile T*)p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stwb(T* p, T v) { *p = v; }
template <class T> inline void __stwt(T* p, T v) { *p = v; }
template <class T> inline size_t __cvta_generic_to_shared(T* p) { return (size_t)p; }
