// Weights of linear layers as the device holds them.
//
// Plain weights are bf16 [n, k]. Quantised ones are packed in tiles of 16 rows
// by 64 columns, tiles of a row of tiles one after another, in the order in which
// lanes of a tensor-core product want them: the codes of lane l (g = l/4, t = l%4)
// stand together, then scales. A tile beyond the matrix has zero scales. The
// element in 16-bit half e of register a[2p+r] of step s is that of
//   row    g + 8r
//   column 32(s/2) + 8t + 4(s%2) + 2p + e, or 16s + 4t + 2p + e with narrow groups
//
//   format  codes per lane            scales                         tile bytes
//   q4      16: nibble 4e+(2p+r)      for each g: f16 [row][group]   576
//           of word s
//   q4m     the same                  pairs of scale and minimum     640
//   q5      q4, and 4: bit 16e+4s+    as q4                          704
//           (2p+r) is the fifth bit
//   q5m     the same                  as q4m                         768
//   q6      q4, and 8: bits 16e+8(s%2) for each g: f16 [row][4 groups 896
//           +2(2p+r) of word s/2      of 16]
//   q8      32: byte 2e+r of word     as q4                          1088
//           2s+p, signed
//   f8      the same bytes, e4m3      two f32: rows 0-7, rows 8-15;  1040
//                                     8 bytes unused
// A value is scale*(code-zero) with zero 8, 16, 32 for q4, q5, q6, or
// scale*code+minimum. Codes become exact bf16 integers in registers; the scale
// multiplies sums of a group, so that products with bf16 activations are exact.
#pragma once

#include "defs.cuh"

#define TILE_ROWS 16
#define TILE_COLS 64
#define BF16_ONES 0x3f803f80u

struct Weights {
  const uint8_t *data;
  int n, k;
};

// Values 128+code become code-zero.
static __device__ __forceinline__ uint32_t less_zero(uint32_t x, uint32_t minus_zero) {
  return fma_bf16x2(x, BF16_ONES, minus_zero);
}
#define MINUS_128 0xc300c300u
#define MINUS_136 0xc308c308u
#define MINUS_144 0xc310c310u
#define MINUS_160 0xc320c320u

template <int CodeBytes, int TileBytes> struct Packed {
  static const int tile_bytes = TileBytes, code_bytes = CodeBytes;
  static __device__ __forceinline__ const uint8_t *tile(const Weights &w, int row_tile, int col_tile) {
    return w.data + ((int64_t)row_tile * ((w.k + TILE_COLS - 1) / TILE_COLS) + col_tile) * TileBytes;
  }
};

// Scales of groups of 32, with or without minima.
template <bool Min> struct GroupScales {
  uint2 a, b;
  __device__ __forceinline__ void load(const uint8_t *p, int g) {
    if (Min) {
      const uint4 v = load_stream(p + g * 16);
      a = make_uint2(v.x, v.y), b = make_uint2(v.z, v.w);
    } else {
      a = load_stream8(p + g * 8);
    }
  }
  __device__ __forceinline__ void get(int group, float (&s)[2], float (&m)[2]) const {
    if (Min) {
      const uint32_t x = group ? a.y : a.x, y = group ? b.y : b.x;
      s[0] = f16_to_float((uint16_t)x), m[0] = f16_to_float((uint16_t)(x >> 16));
      s[1] = f16_to_float((uint16_t)y), m[1] = f16_to_float((uint16_t)(y >> 16));
    } else {
      s[0] = f16_to_float((uint16_t)(a.x >> 16 * group)), s[1] = f16_to_float((uint16_t)(a.y >> 16 * group));
      m[0] = m[1] = 0;
    }
  }
};

template <bool Min> struct FormatQ4 : Packed<512, Min ? 640 : 576> {
  typedef Packed<512, Min ? 640 : 576> Base;
  static const int groups = 2, ahead = Min ? 3 : 4;
  static const bool min = Min, narrow = false;
  struct Raw {
    uint4 q;
    GroupScales<Min> scales;
  };
  static __device__ __forceinline__ void load(Raw &r, const Weights &w, int row_tile, int col_tile, int lane) {
    const uint8_t *p = Base::tile(w, row_tile, col_tile);
    r.q = load_stream(p + lane * 16);
    r.scales.load(p + 512, lane / 4);
  }
  static __device__ __forceinline__ void codes(const Raw &r, int s, uint32_t (&a)[4]) {
    const uint32_t x = s == 0 ? r.q.x : s == 1 ? r.q.y : s == 2 ? r.q.z : r.q.w;
#pragma unroll
    for (int j = 0; j < 4; j++)
      a[j] = less_zero(((x >> 4 * j) & 0x000f000fu) | 0x43004300u, Min ? MINUS_128 : MINUS_136);
  }
  static __device__ __forceinline__ void scale(const Raw &r, int group, float (&s)[2], float (&m)[2]) {
    r.scales.get(group, s, m);
  }
};

template <bool Min> struct FormatQ5 : Packed<640, Min ? 768 : 704> {
  typedef Packed<640, Min ? 768 : 704> Base;
  static const int groups = 2, ahead = 3;
  static const bool min = Min, narrow = false;
  struct Raw {
    uint4 q;
    uint32_t h;
    GroupScales<Min> scales;
  };
  static __device__ __forceinline__ void load(Raw &r, const Weights &w, int row_tile, int col_tile, int lane) {
    const uint8_t *p = Base::tile(w, row_tile, col_tile);
    r.q = load_stream(p + lane * 16);
    r.h = load_stream4(p + 512 + lane * 4);
    r.scales.load(p + 640, lane / 4);
  }
  static __device__ __forceinline__ void codes(const Raw &r, int s, uint32_t (&a)[4]) {
    const uint32_t x = s == 0 ? r.q.x : s == 1 ? r.q.y : s == 2 ? r.q.z : r.q.w;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int n = 4 * s + j;
      const uint32_t fifth = (n < 4 ? r.h << (4 - n) : r.h >> (n - 4)) & 0x00100010u;
      a[j] = less_zero(((x >> 4 * j) & 0x000f000fu) | fifth | 0x43004300u, Min ? MINUS_128 : MINUS_144);
    }
  }
  static __device__ __forceinline__ void scale(const Raw &r, int group, float (&s)[2], float (&m)[2]) {
    r.scales.get(group, s, m);
  }
};

struct FormatQ6 : Packed<768, 896> {
  static const int groups = 4, ahead = 3;
  static const bool min = false, narrow = true;
  struct Raw {
    uint4 q;
    uint2 h;
    uint4 scales;
  };
  static __device__ __forceinline__ void load(Raw &r, const Weights &w, int row_tile, int col_tile, int lane) {
    const uint8_t *p = tile(w, row_tile, col_tile);
    r.q = load_stream(p + lane * 16);
    r.h = load_stream8(p + 512 + lane * 8);
    r.scales = load_stream(p + 768 + lane / 4 * 16);
  }
  static __device__ __forceinline__ void codes(const Raw &r, int s, uint32_t (&a)[4]) {
    const uint32_t x = s == 0 ? r.q.x : s == 1 ? r.q.y : s == 2 ? r.q.z : r.q.w, h = s < 2 ? r.h.x : r.h.y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int n = s % 2 * 8 + 2 * j;
      const uint32_t high = (n < 4 ? h << (4 - n) : h >> (n - 4)) & 0x00300030u;
      a[j] = less_zero(((x >> 4 * j) & 0x000f000fu) | high | 0x43004300u, MINUS_160);
    }
  }
  static __device__ __forceinline__ void scale(const Raw &r, int group, float (&s)[2], float (&m)[2]) {
    const uint32_t x = group < 2 ? r.scales.x : r.scales.y, y = group < 2 ? r.scales.z : r.scales.w;
    s[0] = f16_to_float((uint16_t)(x >> group % 2 * 16)), s[1] = f16_to_float((uint16_t)(y >> group % 2 * 16));
    m[0] = m[1] = 0;
  }
};

static __device__ __forceinline__ uint32_t word(const uint4 &v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

struct FormatQ8 : Packed<1024, 1088> {
  static const int groups = 2, ahead = 3;
  static const bool min = false, narrow = false;
  struct Raw {
    uint4 q[2];
    GroupScales<false> scales;
  };
  static __device__ __forceinline__ void load(Raw &r, const Weights &w, int row_tile, int col_tile, int lane) {
    const uint8_t *p = tile(w, row_tile, col_tile);
    r.q[0] = load_stream(p + lane * 16);
    r.q[1] = load_stream(p + 512 + lane * 16);
    r.scales.load(p + 1024, lane / 4);
  }
  // A byte is its low seven bits, less 128 if its sign is set.
  static __device__ __forceinline__ uint32_t widen(uint32_t x) {
    return fma_bf16x2((x & 0x00800080u) | 0x43004300u, 0xbf80bf80u, (x & 0x007f007fu) | 0x43004300u);
  }
  static __device__ __forceinline__ void codes(const Raw &r, int s, uint32_t (&a)[4]) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const uint32_t x = word(r.q[s / 2], s % 2 * 2 + p);
      a[2 * p] = widen(x);
      a[2 * p + 1] = widen(x >> 8);
    }
  }
  static __device__ __forceinline__ void scale(const Raw &r, int group, float (&s)[2], float (&m)[2]) {
    r.scales.get(group, s, m);
  }
};

struct FormatF8 : Packed<1024, 1040> {
  static const int groups = 1, ahead = 3;
  static const bool min = false, narrow = false;
  struct Raw {
    uint4 q[2];
    uint2 scales;
  };
  static __device__ __forceinline__ void load(Raw &r, const Weights &w, int row_tile, int col_tile, int lane) {
    const uint8_t *p = tile(w, row_tile, col_tile);
    r.q[0] = load_stream(p + lane * 16);
    r.q[1] = load_stream(p + 512 + lane * 16);
    r.scales = load_stream8(p + 1024);
  }
  // Bytes in the high halves; the exponent is moved up by 120 exactly.
  static __device__ __forceinline__ uint32_t widen(uint32_t x) {
    return fma_bf16x2((x & 0x80008000u) | ((x & 0x7f007f00u) >> 4), 0x7b807b80u, 0x80008000u);
  }
  static __device__ __forceinline__ void codes(const Raw &r, int s, uint32_t (&a)[4]) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const uint32_t x = word(r.q[s / 2], s % 2 * 2 + p);
      a[2 * p] = widen(x << 8);
      a[2 * p + 1] = widen(x);
    }
  }
  static __device__ __forceinline__ void scale(const Raw &r, int, float (&s)[2], float (&m)[2]) {
    s[0] = __uint_as_float(r.scales.x), s[1] = __uint_as_float(r.scales.y);
    m[0] = m[1] = 0;
  }
};

// Plain bf16 [n, k], k % 8 == 0.
struct FormatBF16 {
  static const int groups = 1, ahead = 2;
  static const bool min = false, narrow = false;
  struct Raw {
    uint4 q[2][2]; // [32 columns][row g, row g+8]
  };
  static __device__ __forceinline__ void load(Raw &r, const Weights &w, int row_tile, int col_tile, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = row_tile * TILE_ROWS + g + 8 * h, col = col_tile * TILE_COLS + c * 32 + t * 8;
        r.q[c][h] = row < w.n && col < w.k ? load_stream(w.data + ((int64_t)row * w.k + col) * 2) : make_uint4(0, 0, 0, 0);
      }
  }
  static __device__ __forceinline__ void codes(const Raw &r, int s, uint32_t (&a)[4]) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      a[2 * p] = word(r.q[s / 2][0], s % 2 * 2 + p);
      a[2 * p + 1] = word(r.q[s / 2][1], s % 2 * 2 + p);
    }
  }
  static __device__ __forceinline__ void scale(const Raw &, int, float (&s)[2], float (&m)[2]) {
    s[0] = s[1] = 1.0f, m[0] = m[1] = 0;
  }
};
