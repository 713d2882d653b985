// Attention of one new token of each sequence over its paged cache.
//
// Every cached byte is read once for all query heads of its KV head: they are
// the eight (or sixteen) columns of a tensor-core product whose rows are tokens.
// Keys and values go from memory to registers 16 bytes at a time and are never
// staged: a lane's 16 bytes of a key are one lane's share of two products, and
// values of two tokens are paired by byte permutations.
//
// The work is all tiles of 64 tokens of all (sequence, KV head) units in one
// row, cut evenly among the blocks of the grid, so that one long context keeps
// the whole device busy and many short ones balance. A unit that several blocks
// share is merged by whichever of them finishes last.
#pragma once

#include "kv.cuh"

struct Decode {
  bf16 *out;
  const bf16 *q;
  const uint8_t *k, *v;
  const int32_t *row, *length, *page_start, *pages, *tiles;
  float *partial;
  int32_t *counter;
  int32_t seqs, heads, kv_heads, head_dim, block_tokens;
  int64_t block_stride;
  float scale, v_scale;
};

#define DECODE_WARPS 4
#define TILE_TOKENS 64

// A unit's heads, of which this block sums tokens.
template <int HD, int NT> struct Merge {
  float o[NT * 8][HD];
  float m[DECODE_WARPS][NT * 8], l[DECODE_WARPS][NT * 8];
  int last;
};

template <class Kv, int HD, int NT> struct DecodeWarp {
  static const int KC = HD / 32, VC = HD / 64;
  uint32_t q[NT][KC][4];
  float o[VC][4][NT][4];
  float m[NT][2], l[NT][2]; // of heads 2t, 2t+1; l is this lane's part

  __device__ __forceinline__ void start(const Decode &p, int64_t q_row, int head0, int head_count, int g, int t) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
      m[n][0] = m[n][1] = NEG_INF;
      l[n][0] = l[n][1] = 0;
      const int head = n * 8 + g;
      const bf16 *from = p.q + (q_row * p.heads + head0 + head) * p.head_dim;
#pragma unroll
      for (int c = 0; c < KC; c++) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (head < head_count && c * 32 + t * 8 < p.head_dim) x = *(const uint4 *)(from + c * 32 + t * 8);
        q[n][c][0] = Kv::from_bf16(x.x), q[n][c][1] = Kv::from_bf16(x.y);
        q[n][c][2] = Kv::from_bf16(x.z), q[n][c][3] = Kv::from_bf16(x.w);
      }
#pragma unroll
      for (int c = 0; c < VC; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int j = 0; j < 4; j++) o[c][i][n][j] = 0;
    }
  }

  // Scores of 16 tokens and their weights, as the columns of the next product.
  __device__ __forceinline__ void weigh(float (&s)[NT][4], uint32_t (&w)[NT][2], int tokens, float scale, int g) {
    bool grew = false;
    float top[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        s[n][j] = g < tokens ? s[n][j] * scale : NEG_INF;
        s[n][j + 2] = g + 8 < tokens ? s[n][j + 2] * scale : NEG_INF;
        float x = fmaxf(s[n][j], s[n][j + 2]);
#pragma unroll
        for (int i = 4; i < 32; i <<= 1) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, i));
        top[n][j] = fmaxf(x, m[n][j]);
        grew |= top[n][j] > m[n][j];
      }
    }
    if (__any_sync(FULL_WARP, grew)) rescale(top);
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] = exp2_approx(s[n][j] - m[n][j % 2]);
      l[n][0] += s[n][0] + s[n][2];
      l[n][1] += s[n][1] + s[n][3];
      w[n][0] = transpose_8x8(Kv::pack(s[n][0], s[n][1]));
      w[n][1] = transpose_8x8(Kv::pack(s[n][2], s[n][3]));
    }
  }

  __device__ __forceinline__ void rescale(const float (&top)[NT][2]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const float f = exp2_approx(m[n][j] - top[n][j]);
        m[n][j] = top[n][j];
        l[n][j] *= f;
#pragma unroll
        for (int c = 0; c < VC; c++)
#pragma unroll
          for (int i = 0; i < 4; i++) o[c][i][n][j] *= f, o[c][i][n][j + 2] *= f;
      }
  }
};

// sum_tokens takes tiles [tile0, tile1) of a unit into w.
template <class Kv, int HD, int NT>
static __device__ __forceinline__ void sum_tokens(const Decode &p, DecodeWarp<Kv, HD, NT> &w, int seq, int kv_head,
                                                  int tile0, int tile1, int warp, int g, int t) {
  constexpr int KC = HD / 32, VC = HD / 64;
  const int length = p.length[seq];
  const int32_t *pages = p.pages + p.page_start[seq];
  const float scale = p.scale * LOG2E * Kv::factor();
  int token = tile0 * TILE_TOKENS + warp * 16;
  const int end = min(tile1 * TILE_TOKENS, length);
  if (token >= end) return;
  typename Kv::Raw kr[KC][2];
  auto offset = [&](int page, int tok) {
    return (int64_t)page * p.block_stride + ((int64_t)kv_head * p.block_tokens + tok % p.block_tokens) * p.head_dim;
  };
  // Wide heads leave no registers to fetch the next keys early.
  constexpr bool ahead = HD <= 128;
  auto load_k = [&](int64_t at, int tok, int c0, int c1) {
    const uint8_t *from = p.k + (at + g * p.head_dim + t * 8) * Kv::bytes;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int c = c0; c < c1; c++)
        kr[c][r] = tok + g + 8 * r < length && c * 32 + t * 8 < p.head_dim
                       ? Kv::load(from + (r * 8 * p.head_dim + c * 32) * Kv::bytes)
                       : Kv::zero();
  };
  int64_t at = offset(pages[token / p.block_tokens], token);
  if (ahead) load_k(at, token, 0, KC);
  int next_page = token + TILE_TOKENS < end ? pages[(token + TILE_TOKENS) / p.block_tokens] : 0;
#pragma unroll 1
  while (true) {
    typename Kv::Raw vr[VC][4];
    const uint8_t *v_from = p.v + (at + 2 * t * p.head_dim + g * 8) * Kv::bytes;
    auto load_v = [&](int tok0, int c) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int tok = (r & 1) + (r & 2) * 4;
        vr[c][r] = tok0 + 2 * t + tok < length && c * 64 + g * 8 < p.head_dim
                       ? Kv::load(v_from + (tok * p.head_dim + c * 64) * Kv::bytes)
                       : Kv::zero();
      }
    };
    if (ahead) {
#pragma unroll
      for (int c = 0; c < VC; c++) load_v(token, c);
    }
    float s[NT][4] = {};
#pragma unroll
    for (int c = 0; c < KC; c++) {
      if (!ahead && c % 4 == 0) load_k(at, token, c, c + 4);
      uint32_t lo[4], hi[4];
      Kv::expand(lo, kr[c][0]);
      Kv::expand(hi, kr[c][1]);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t a[4] = {lo[2 * i], hi[2 * i], lo[2 * i + 1], hi[2 * i + 1]};
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const uint32_t b[2] = {w.q[n][c][2 * i], w.q[n][c][2 * i + 1]};
          mma_16816(typename Kv::Elem(), s[n], a, b);
        }
      }
    }
    const int now = token;
    token += TILE_TOKENS;
    if (token < end) { // in flight while this tile is finished
      at = offset(next_page, token);
      if (ahead) load_k(at, token, 0, KC);
      if (token + TILE_TOKENS < end) next_page = pages[(token + TILE_TOKENS) / p.block_tokens];
    }
    uint32_t b[NT][2];
    w.weigh(s, b, length - now, scale, g);
#pragma unroll
    for (int c = 0; c < VC; c++) {
      if (!ahead) load_v(now, c);
      uint32_t e[4][4];
#pragma unroll
      for (int r = 0; r < 4; r++) Kv::expand(e[r], vr[c][r]);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t a[4] = {__byte_perm(e[0][i], e[1][i], 0x5410), __byte_perm(e[0][i], e[1][i], 0x7632),
                               __byte_perm(e[2][i], e[3][i], 0x5410), __byte_perm(e[2][i], e[3][i], 0x7632)};
#pragma unroll
        for (int n = 0; n < NT; n++) mma_16816(typename Kv::Elem(), w.o[c][i][n], a, b[n]);
      }
    }
    if (token >= end) return;
  }
}

// join adds what the warps have, relative to the largest score of all, into
// shared memory; m[0] and l[0] become those of the block.
template <class Kv, int HD, int NT>
static __device__ __forceinline__ void join(Merge<HD, NT> &x, DecodeWarp<Kv, HD, NT> &w, int warp, int g, int t) {
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float l = w.l[n][j];
#pragma unroll
      for (int i = 4; i < 32; i <<= 1) l += __shfl_xor_sync(FULL_WARP, l, i);
      if (g == 0) x.m[warp][n * 8 + 2 * t + j] = w.m[n][j], x.l[warp][n * 8 + 2 * t + j] = l;
    }
  __syncthreads();
  float f[NT][2];
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float top = NEG_INF;
      for (int i = 0; i < DECODE_WARPS; i++) top = fmaxf(top, x.m[i][n * 8 + 2 * t + j]);
      f[n][j] = exp2_approx(w.m[n][j] - top); // 0 for a warp that had no token
    }
  for (int turn = 0; turn < DECODE_WARPS; turn++) {
    if (turn == warp) {
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < HD / 64; c++)
#pragma unroll
          for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
              float2 *to = (float2 *)&x.o[n * 8 + 2 * t + j][c * 64 + g * 8 + 2 * i];
              float2 v = turn ? *to : make_float2(0, 0);
              v.x += w.o[c][i][n][j] * f[n][j];
              v.y += w.o[c][i][n][j + 2] * f[n][j];
              *to = v;
            }
    }
    __syncthreads();
  }
  if (threadIdx.x < NT * 8) {
    const int head = threadIdx.x;
    float top = NEG_INF, l = 0;
    for (int i = 0; i < DECODE_WARPS; i++) top = fmaxf(top, x.m[i][head]);
    for (int i = 0; i < DECODE_WARPS; i++) l += x.l[i][head] * exp2_approx(x.m[i][head] - top);
    x.m[0][head] = top, x.l[0][head] = l;
  }
  __syncthreads();
}

template <int HD, int NT> struct Slot { // of partial: a block's share of a unit
  static const int floats = NT * 8 * (HD + 2);
};

// merge sums the shares of a unit that blocks [c0, c1] wrote and stores the
// result. slot0 is the slot of c0; all others have their first.
template <int HD, int NT>
static __device__ void merge(const Decode &p, bf16 *out, int head_count, int c0, int c1, int slot0, float v_scale) {
  const float *base = p.partial;
  auto slot = [&](int c) { return base + (int64_t)(2 * c + (c == c0 ? slot0 : 0)) * Slot<HD, NT>::floats; };
  for (int i = threadIdx.x * 4; i < head_count * HD; i += DECODE_WARPS * 32 * 4) {
    const int head = i / HD, dim = i % HD;
    if (dim >= p.head_dim) continue;
    float top = NEG_INF, l = 0;
    for (int c = c0; c <= c1; c++) top = fmaxf(top, __ldcg(slot(c) + NT * 8 * HD + head));
    float4 sum = make_float4(0, 0, 0, 0);
    for (int c = c0; c <= c1; c++) {
      const float *s = slot(c);
      const float f = exp2_approx(__ldcg(s + NT * 8 * HD + head) - top);
      const float4 o = __ldcg((const float4 *)(s + i));
      l += f * __ldcg(s + NT * 8 * (HD + 1) + head);
      sum.x += f * o.x, sum.y += f * o.y, sum.z += f * o.z, sum.w += f * o.w;
    }
    const float inv = v_scale / l;
    *(uint2 *)(out + head * p.head_dim + dim) = make_uint2(pack_bf16(sum.x * inv, sum.y * inv), pack_bf16(sum.z * inv, sum.w * inv));
  }
}

template <class Kv, int HD, int NT> static __device__ __forceinline__ void attn_decode(const Decode p) {
  overlap();
  __shared__ __align__(16) Merge<HD, NT> x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int group = p.heads / p.kv_heads, parts = (group + NT * 8 - 1) / (NT * 8), units = p.kv_heads * parts;
  const int64_t work = (int64_t)units * p.tiles[p.seqs];
  const int64_t most = work < 2 ? 1 : work / 2, blocks = gridDim.x < most ? gridDim.x : most, cta = blockIdx.x;
  if (cta >= blocks) return;
  const int64_t begin = work * cta / blocks, end = work * (cta + 1) / blocks;
  for (int64_t at = begin; at < end;) {
    int seq = 0, hi = p.seqs; // the last one that starts at or before `at`
    while (hi - seq > 1) {
      const int mid = (seq + hi) / 2;
      if ((int64_t)units * p.tiles[mid] <= at) seq = mid;
      else hi = mid;
    }
    const int tiles = p.tiles[seq + 1] - p.tiles[seq];
    const int64_t in_seq = at - (int64_t)units * p.tiles[seq];
    const int unit = (int)(in_seq / tiles), tile0 = (int)(in_seq % tiles);
    const int tile1 = end - at < tiles - tile0 ? tile0 + (int)(end - at) : tiles;
    const int kv_head = unit / parts, first = unit % parts * NT * 8;
    const int head0 = kv_head * group + first, head_count = min(NT * 8, group - first);
    const int64_t row = p.row[seq];
    DecodeWarp<Kv, HD, NT> w;
    w.start(p, row, head0, head_count, g, t);
    sum_tokens(p, w, seq, kv_head, tile0, tile1, warp, g, t);
    join(x, w, warp, g, t);
    bf16 *out = p.out + (row * p.heads + head0) * p.head_dim;
    const float v_scale = p.v_scale * Kv::factor();
    const int64_t unit0 = at - tile0;
    if (tile0 == 0 && tile1 == tiles) {
      for (int i = threadIdx.x * 2; i < head_count * HD; i += DECODE_WARPS * 32 * 2) {
        const int head = i / HD, dim = i % HD;
        const float inv = v_scale / x.l[0][head];
        if (dim < p.head_dim)
          *(uint32_t *)(out + head * p.head_dim + dim) = pack_bf16(x.o[head][dim] * inv, x.o[head][dim + 1] * inv);
      }
    } else {
      const int which = unit0 < begin ? 0 : 1;
      float *slot = p.partial + (2 * cta + which) * Slot<HD, NT>::floats;
      for (int i = threadIdx.x * 4; i < head_count * HD; i += DECODE_WARPS * 32 * 4)
        *(float4 *)(slot + i) = *(float4 *)&x.o[i / HD][i % HD];
      if (threadIdx.x < NT * 8) {
        slot[NT * 8 * HD + threadIdx.x] = x.m[0][threadIdx.x];
        slot[NT * 8 * (HD + 1) + threadIdx.x] = x.l[0][threadIdx.x];
      }
      const int c0 = (int)(((unit0 + 1) * blocks - 1) / work), c1 = (int)(((unit0 + tiles) * blocks - 1) / work);
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        const int arrived = atomicAdd(&p.counter[(int64_t)seq * units + unit], 1);
        x.last = arrived == c1 - c0;
        if (x.last) p.counter[(int64_t)seq * units + unit] = 0;
      }
      __syncthreads();
      if (x.last) {
        __threadfence();
        merge<HD, NT>(p, out, head_count, c0, c1, unit0 < work * c0 / blocks ? 0 : 1, v_scale);
      }
    }
    __syncthreads();
    at += tile1 - tile0;
  }
}

// td_attn_decode_KV_HD_gN: KV is bf16, f16 or e4m3, HD at least head_dim, N at
// least heads/kv_heads, or 16 for more (then bytes are read once for 16 heads).
//   out, q      [rows, heads*head_dim] bf16
//   k, v        cache of a layer, see td_qkv
//   row         [seqs] the row of q and out
//   length      [seqs] tokens to attend to, the new one included; 0 leaves out as it is
//   page_start  [seqs] first entry in pages; pages hold block ids
//   tiles       [seqs+1] running sums of ceil(length/64), from 0
//   partial     f32 scratch, see DecodeScratch; counter [seqs*kv_heads*ceil(heads/
//               kv_heads/N)], zero before the first use, left zero
//   scale       of scores, times the scale of cached keys; v_scale of cached values
// head_dim % 8 == 0, block_tokens % 16 == 0. Any grid (blocks), block 128.
#define DECODE(KV, NAME, HD, NT, BLOCKS)                                                                              \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS) td_attn_decode_##NAME(                                   \
      bf16 *out, const bf16 *q, const void *k, const void *v, const int32_t *row, const int32_t *length,              \
      const int32_t *page_start, const int32_t *pages, const int32_t *tiles, float *partial, int32_t *counter,        \
      int32_t seqs, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t block_tokens, int64_t block_stride,    \
      float scale, float v_scale) {                                                                                   \
    attn_decode<KV, HD, NT>(Decode{out, q, (const uint8_t *)k, (const uint8_t *)v, row, length, page_start, pages,    \
                                   tiles, partial, counter, seqs, heads, kv_heads, head_dim, block_tokens,            \
                                   block_stride, scale, v_scale});                                                    \
  }

// A module for each type of KV, so that a driver compiles only what it needs.
#define DECODE_ALL(KV, NAME)          \
  DECODE(KV, NAME##_64_g8, 64, 1, 3)   \
  DECODE(KV, NAME##_64_g16, 64, 2, 3)  \
  DECODE(KV, NAME##_128_g8, 128, 1, 3) \
  DECODE(KV, NAME##_128_g16, 128, 2, 2) \
  DECODE(KV, NAME##_256_g8, 256, 1, 2)
