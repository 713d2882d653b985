// Vector types with the alignments that device code relies on (16-byte loads
// of float4 and friends), and dim3.
#pragma once
#include <cstddef>
#include <cstdint>

#define TDEMU_VEC(T, N, A1, A2, A4)                                     \
  struct N##1 { T x; };                                                  \
  struct alignas(A2) N##2 { T x, y; };                                   \
  struct N##3 { T x, y, z; };                                            \
  struct alignas(A4) N##4 { T x, y, z, w; };                             \
  inline N##1 make_##N##1(T x) { return {x}; }                           \
  inline N##2 make_##N##2(T x, T y) { return {x, y}; }                   \
  inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }           \
  inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }

TDEMU_VEC(signed char, char, 1, 2, 4)
TDEMU_VEC(unsigned char, uchar, 1, 2, 4)
TDEMU_VEC(short, short, 2, 4, 8)
TDEMU_VEC(unsigned short, ushort, 2, 4, 8)
TDEMU_VEC(int, int, 4, 8, 16)
TDEMU_VEC(unsigned int, uint, 4, 8, 16)
TDEMU_VEC(long, long, 8, 16, 16)
TDEMU_VEC(unsigned long, ulong, 8, 16, 16)
TDEMU_VEC(long long, longlong, 8, 16, 16)
TDEMU_VEC(unsigned long long, ulonglong, 8, 16, 16)
TDEMU_VEC(float, float, 4, 8, 16)
TDEMU_VEC(double, double, 8, 16, 16)
#undef TDEMU_VEC

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
