// Attention of chunks of prompts over the paged cache, causal. A block takes
// some tokens of a chunk for all query heads of one KV head: those are the rows
// of its tile, so keys and values are fetched once for the whole group. Tiles of
// 64 tokens go through shared memory, two in flight; scores, weights and sums
// stay in the registers of tensor-core products.
#pragma once

#include "kv.cuh"

extern __shared__ __align__(16) unsigned char dyn_smem[];

struct Prefill {
  bf16 *out;
  const bf16 *q;
  const uint8_t *k, *v;
  const int32_t *tiles, *row_start, *pos_start, *page_start, *pages;
  int32_t heads, kv_heads, head_dim, block_tokens;
  int64_t block_stride;
  float scale, v_scale;
};

#define PREFILL_WARPS 4
#define PREFILL_THREADS (PREFILL_WARPS * 32)
#define KV_TILE 64

template <class Kv, int HD, int MT> struct PrefillBlock {
  static const int rows = PREFILL_WARPS * MT * 16, chunks = HD / 8;
  static const bool widened = Kv::bytes == 1; // stored bytes are expanded in shared memory
  static const int tile_bytes = KV_TILE * HD * 2;
  const Prefill &p;
  int seq, kv_head, group, first, count, context, tokens; // tokens: those of the chunk from first on
  const int32_t *pages;

  __device__ __forceinline__ PrefillBlock(const Prefill &p_) : p(p_) {
    seq = p.tiles[2 * blockIdx.y], first = p.tiles[2 * blockIdx.y + 1];
    kv_head = blockIdx.x, group = p.heads / p.kv_heads;
    const int per = rows / group, left = p.row_start[seq + 1] - p.row_start[seq] - first;
    tokens = left < per ? left : per;
    count = tokens * group;
    context = p.pos_start[seq] + first + tokens; // what the last token sees
    pages = p.pages + p.page_start[seq];
  }

  // Where 16-byte chunk c of a row stands: rotated, so that neither eight rows
  // of a chunk nor eight chunks of a row meet in a bank.
  static __device__ __forceinline__ uint8_t *at(uint8_t *tile, int row, int c) {
    return tile + row * HD * 2 + ((c ^ (row & 7)) << 4);
  }
  static __device__ __forceinline__ uint8_t *queries() { return dyn_smem; }
  static __device__ __forceinline__ uint8_t *tile(int i) { return dyn_smem + rows * HD * 2 + i * tile_bytes; }
  // Stored bytes of a stage lie behind the two expanded tiles.
  static __device__ __forceinline__ uint8_t *stored(int i) { return tile(2) + i * (tile_bytes / 2); }

  __device__ __forceinline__ int64_t q_offset(int row) const {
    return ((int64_t)(p.row_start[seq] + first + row / group) * p.heads + kv_head * group + row % group) * p.head_dim;
  }

  __device__ __forceinline__ void load_q() const {
    for (int i = threadIdx.x; i < rows * chunks; i += PREFILL_THREADS) {
      const int row = i / chunks, c = i % chunks;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (row < count && c * 8 < p.head_dim) x = *(const uint4 *)(p.q + q_offset(row) + c * 8);
      *(uint4 *)at(queries(), row, c) =
          make_uint4(Kv::from_bf16(x.x), Kv::from_bf16(x.y), Kv::from_bf16(x.z), Kv::from_bf16(x.w));
    }
  }

  // Starts copying tile j; zeros where there is no token or no dimension.
  __device__ __forceinline__ void load_kv(int j, int stage) const {
    const int each = 16 * chunks / PREFILL_THREADS; // chunks of a thread in 16 tokens
#pragma unroll 1
    for (int part = 0; part < KV_TILE / 16; part++) {
      const int token0 = j * KV_TILE + part * 16;
      int64_t base = 0;
      if (token0 < context)
        base = (int64_t)pages[token0 / p.block_tokens] * p.block_stride +
               ((int64_t)kv_head * p.block_tokens + token0 % p.block_tokens) * p.head_dim;
#pragma unroll
      for (int i = 0; i < each; i++) {
        const int n = i * PREFILL_THREADS + threadIdx.x, row = n / chunks, c = n % chunks;
        const bool valid = token0 + row < context && c * 8 < p.head_dim;
        const int64_t from = valid ? (base + row * p.head_dim + c * 8) * Kv::bytes : 0;
        const int to = part * 16 + row;
        if (widened) {
          copy_async8(stored(2 * stage) + (to * chunks + c) * 8, p.k + from, valid);
          copy_async8(stored(2 * stage + 1) + (to * chunks + c) * 8, p.v + from, valid);
        } else {
          copy_async16(at(tile(2 * stage), to, c), p.k + from, valid);
          copy_async16(at(tile(2 * stage + 1), to, c), p.v + from, valid);
        }
      }
    }
  }

  __device__ __forceinline__ void widen(int stage) const {
#pragma unroll 1
    for (int i = 0; i < 2; i++)
#pragma unroll 4
      for (int n = threadIdx.x; n < KV_TILE * chunks; n += PREFILL_THREADS) {
        uint32_t r[4];
        KvE4m3::expand(r, *(const uint2 *)(stored(2 * stage + i) + n * 8));
        *(uint4 *)at(tile(i), n / chunks, n % chunks) = make_uint4(r[0], r[1], r[2], r[3]);
      }
  }
};

// The state of a warp: MT tiles of 16 rows. Rows g and g+8 of each are a lane's.
template <class Kv, int HD, int MT> struct PrefillWarp {
  // Tokens whose scores are held at once: what registers allow.
  static const int step = HD > 64 ? 32 : 64;
  typedef float Scores[MT][step / 8][4];
  float o[MT][HD / 8][4];
  float m[MT][2], l[MT][2];
  int limit[MT][2]; // last position that the row sees

  __device__ __forceinline__ void scores(Scores &s, const uint8_t *q, uint8_t *k, int token, int row0, int lane) const {
    typedef PrefillBlock<Kv, HD, MT> B;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int n = 0; n < step / 8; n++) s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0;
#pragma unroll
    for (int d = 0; d < HD / 16; d++) {
      uint32_t a[MT][4];
#pragma unroll
      for (int i = 0; i < MT; i++)
        ldmatrix_x4(a[i], B::at((uint8_t *)q, row0 + i * 16 + lane % 16, 2 * d + lane / 16));
#pragma unroll
      for (int n = 0; n < step / 16; n++) {
        uint32_t b[4]; // both halves of 16 dimensions for tokens 0-7, then 8-15
        ldmatrix_x4(b, B::at(k, token + n * 16 + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
        const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < MT; i++) {
          mma_16816(typename Kv::Elem(), s[i][2 * n], a[i], b0);
          mma_16816(typename Kv::Elem(), s[i][2 * n + 1], a[i], b1);
        }
      }
    }
  }

  // Scores become weights relative to the largest so far.
  __device__ __forceinline__ void weigh(Scores &s, int token0, float scale, bool masked, int t) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
      float top[2] = {m[i][0], m[i][1]};
#pragma unroll
      for (int n = 0; n < step / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          s[i][n][j] *= scale;
          if (masked && token0 + n * 8 + 2 * t + j % 2 > limit[i][j / 2]) s[i][n][j] = NEG_INF;
          top[j / 2] = fmaxf(top[j / 2], s[i][n][j]);
        }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 2));
      }
      if (__any_sync(FULL_WARP, top[0] > m[i][0] || top[1] > m[i][1])) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float f = exp2_approx(m[i][r] - top[r]);
          m[i][r] = top[r];
          l[i][r] *= f;
#pragma unroll
          for (int n = 0; n < HD / 8; n++) o[i][n][2 * r] *= f, o[i][n][2 * r + 1] *= f;
        }
      }
#pragma unroll
      for (int n = 0; n < step / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          s[i][n][j] = exp2_approx(s[i][n][j] - m[i][j / 2]);
          l[i][j / 2] += s[i][n][j];
        }
    }
  }

  __device__ __forceinline__ void add_values(const Scores &s, uint8_t *v, int token, int lane) {
    typedef PrefillBlock<Kv, HD, MT> B;
#pragma unroll
    for (int k = 0; k < step / 16; k++) {
      uint32_t a[MT][4];
#pragma unroll
      for (int i = 0; i < MT; i++) {
        a[i][0] = Kv::pack(s[i][2 * k][0], s[i][2 * k][1]), a[i][1] = Kv::pack(s[i][2 * k][2], s[i][2 * k][3]);
        a[i][2] = Kv::pack(s[i][2 * k + 1][0], s[i][2 * k + 1][1]), a[i][3] = Kv::pack(s[i][2 * k + 1][2], s[i][2 * k + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < HD / 16; n++) {
        uint32_t b[4]; // both halves of 16 tokens for dimensions 0-7, then 8-15
        ldmatrix_x4_trans(b, B::at(v, token + k * 16 + lane % 16, 2 * n + lane / 16));
        const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < MT; i++) {
          mma_16816(typename Kv::Elem(), o[i][2 * n], a[i], b0);
          mma_16816(typename Kv::Elem(), o[i][2 * n + 1], a[i], b1);
        }
      }
    }
  }
};

template <class Kv, int HD, int MT> static __device__ __forceinline__ void attn_prefill(const Prefill p) {
  overlap();
  PrefillBlock<Kv, HD, MT> b(p);
  if (b.tokens <= 0) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, row0 = warp * MT * 16;
  const int tiles = (b.context + KV_TILE - 1) / KV_TILE;
  b.load_kv(0, 0);
  copy_async_commit();
  if (tiles > 1) b.load_kv(1, 1);
  copy_async_commit();
  b.load_q();
  PrefillWarp<Kv, HD, MT> w;
  const int pos0 = b.context - b.tokens;
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = row0 + i * 16 + g + 8 * r;
      w.limit[i][r] = row < b.count ? pos0 + row / b.group : b.context - 1;
      w.m[i][r] = NEG_INF, w.l[i][r] = 0;
#pragma unroll
      for (int n = 0; n < HD / 8; n++) w.o[i][n][2 * r] = w.o[i][n][2 * r + 1] = 0;
    }
  // Positions that the first and the last row of this warp see.
  const int low = pos0 + min(row0, b.count - 1) / b.group, high = pos0 + min(row0 + MT * 16, b.count) / b.group;
  const float scale = p.scale * LOG2E * Kv::factor();
#pragma unroll 1
  for (int j = 0; j < tiles; j++) {
    const int stage = j & 1;
    copy_async_wait<1>();
    __syncthreads();
    uint8_t *k = b.tile(2 * stage), *v = b.tile(2 * stage + 1);
    if (b.widened) {
      b.widen(stage);
      k = b.tile(0), v = b.tile(1);
      __syncthreads();
    }
#pragma unroll 1
    for (int token = 0; token < KV_TILE; token += w.step) {
      const int position = j * KV_TILE + token;
      if (row0 >= b.count || position > high) break;
      typename PrefillWarp<Kv, HD, MT>::Scores s;
      w.scores(s, b.queries(), k, token, row0, lane);
      w.weigh(s, position, scale, position + w.step > low + 1, t);
      w.add_values(s, v, token, lane);
    }
    __syncthreads();
    if (j + 2 < tiles) b.load_kv(j + 2, stage);
    copy_async_commit();
  }
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float l = w.l[i][r];
      l += __shfl_xor_sync(FULL_WARP, l, 1);
      l += __shfl_xor_sync(FULL_WARP, l, 2);
      const int row = row0 + i * 16 + g + 8 * r;
      if (row >= b.count) continue;
      const float inv = p.v_scale * Kv::factor() / l;
      bf16 *out = p.out + b.q_offset(row);
#pragma unroll
      for (int n = 0; n < HD / 8; n++)
        if (n * 8 < p.head_dim)
          *(uint32_t *)(out + n * 8 + 2 * t) = pack_bf16(w.o[i][n][2 * r] * inv, w.o[i][n][2 * r + 1] * inv);
    }
}

// td_attn_prefill_KV_HD: KV is bf16, f16 or e4m3, HD at least head_dim.
//   out, q      [rows, heads*head_dim] bf16
//   k, v        cache of a layer, see td_qkv; the rows' own keys are in it
//   tiles       [count] pairs (sequence, first token of its chunk), see PrefillTiles
//   row_start   [seqs+1] rows of each sequence; pos_start [seqs] position of the first
//   page_start  [seqs] first entry in pages; pages hold block ids
//   scale, v_scale  as for decode attention
// head_dim % 8 == 0, block_tokens % 16 == 0, heads/kv_heads <= 64.
// Grid (kv_heads, count), block 128, dynamic shared memory, see PrefillKernel.
#define PREFILL(KV, NAME, HD, MT, BLOCKS)                                                                            \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS) td_attn_prefill_##NAME(                                  \
      bf16 *out, const bf16 *q, const void *k, const void *v, const int32_t *tiles, const int32_t *row_start,         \
      const int32_t *pos_start, const int32_t *page_start, const int32_t *pages, int32_t heads, int32_t kv_heads,     \
      int32_t head_dim, int32_t block_tokens, int64_t block_stride, float scale, float v_scale) {                     \
    attn_prefill<KV, HD, MT>(Prefill{out, q, (const uint8_t *)k, (const uint8_t *)v, tiles, row_start, pos_start,     \
                                     page_start, pages, heads, kv_heads, head_dim, block_tokens, block_stride, scale, \
                                     v_scale});                                                                      \
  }
#define PREFILL_ALL(KV, NAME)      \
  PREFILL(KV, NAME##_64, 64, 2, 2)  \
  PREFILL(KV, NAME##_128, 128, 2, 2) \
  PREFILL(KV, NAME##_256, 256, 1, 1)
