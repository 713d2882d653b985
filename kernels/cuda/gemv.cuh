// Products of few rows with a weight that is read once, as it is stored: what
// decoding consists of. A block takes 16 rows of the weight; its eight warps
// share the columns, with the next tiles in flight, and add up at the end.
#pragma once

#include "output.cuh"
#include "quant.cuh"

#define GEMV_WARPS 8

// Registers b of four steps: columns [64*tile, +64) of NT*8 rows of x.
// Plain loads, which the compiler leaves behind overlap_wait and L1 keeps.
template <bool Narrow, int NT>
static __device__ __forceinline__ void load_x(uint32_t (&b)[NT][4][2], const bf16 *const (&rows)[NT], int k, int tile, int t) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
    if (Narrow) {
#pragma unroll
      for (int s = 0; s < 4; s++) {
        const int col = tile * TILE_COLS + s * 16 + t * 4;
        const uint2 v = rows[n] && col < k ? *(const uint2 *)(rows[n] + col) : make_uint2(0, 0);
        b[n][s][0] = v.x, b[n][s][1] = v.y;
      }
    } else {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int col = tile * TILE_COLS + c * 32 + t * 8;
        const uint4 v = rows[n] && col < k ? *(const uint4 *)(rows[n] + col) : make_uint4(0, 0, 0, 0);
        b[n][2 * c][0] = v.x, b[n][2 * c][1] = v.y, b[n][2 * c + 1][0] = v.z, b[n][2 * c + 1][1] = v.w;
      }
    }
  }
}

template <class F, int NT>
static __device__ __forceinline__ void multiply(float (&acc)[NT][4], const typename F::Raw &r, const uint32_t (&b)[NT][4][2]) {
  constexpr int steps = 4 / F::groups;
#pragma unroll
  for (int group = 0; group < F::groups; group++) {
    uint32_t a[steps][4];
#pragma unroll
    for (int s = 0; s < steps; s++) F::codes(r, group * steps + s, a[s]);
    float scale[2], min[2];
    F::scale(r, group, scale, min);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float sum[4] = {}, xsum[4] = {};
#pragma unroll
      for (int s = 0; s < steps; s++) {
        mma_16816(ElemBF16(), sum, a[s], b[n][group * steps + s]);
        if (F::min) {
          const uint32_t ones[4] = {BF16_ONES, BF16_ONES, BF16_ONES, BF16_ONES};
          mma_16816(ElemBF16(), xsum, ones, b[n][group * steps + s]);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        acc[n][j] += scale[j / 2] * sum[j];
        if (F::min) acc[n][j] += min[j / 2] * xsum[j];
      }
    }
  }
}

template <class F, int NT> static __device__ __forceinline__ void gemv(const Weights &w, const Product &p) {
  __shared__ float part[GEMV_WARPS][NT * 8][TILE_ROWS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int row_tile = blockIdx.x, tiles = (w.k + TILE_COLS - 1) / TILE_COLS;
  constexpr int ahead = NT < 4 ? F::ahead : F::min ? 1 : 2; // as registers allow
  typename F::Raw raw[ahead];
  auto load = [&](int tile) {
#pragma unroll
    for (int i = 0; i < ahead; i++)
      if (tile + i * GEMV_WARPS < tiles) F::load(raw[i], w, row_tile, tile + i * GEMV_WARPS, lane);
  };
  load(warp); // weights wait for nobody
  overlap_wait();
  const bf16 *rows[NT];
#pragma unroll
  for (int n = 0; n < NT; n++) {
    const int row = n * 8 + g;
    rows[n] = row < p.rows ? p.x + (int64_t)(p.x_row ? p.x_row[row] : row) * w.k : nullptr;
  }
  float acc[NT][4] = {};
#pragma unroll 1
  for (int tile = warp; tile < tiles;) {
#pragma unroll
    for (int i = 0; i < ahead; i++) {
      if (tile + i * GEMV_WARPS >= tiles) break;
      uint32_t b[NT][4][2];
      load_x<F::narrow, NT>(b, rows, w.k, tile + i * GEMV_WARPS, t);
      multiply<F, NT>(acc, raw[i], b);
    }
    tile += GEMV_WARPS * ahead;
    load(tile);
  }
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int j = 0; j < 4; j++) part[warp][n * 8 + 2 * t + j % 2][g + j / 2 * 8] = acc[n][j];
  __syncthreads();
  const int width = p.mode == OUT_GATED ? 8 : 16;
  for (int i = threadIdx.x; i < NT * 8 * width; i += GEMV_WARPS * 32) {
    const int row = i / width, in_tile = i % width, col = row_tile * TILE_ROWS + in_tile;
    if (row >= p.rows || col >= w.n) continue;
    float v = 0, up = 0;
#pragma unroll
    for (int j = 0; j < GEMV_WARPS; j++) {
      v += part[j][row][in_tile];
      if (p.mode == OUT_GATED) up += part[j][row][in_tile + 8];
    }
    finish(p, row, col, v, up);
  }
}

// td_gemv_FORMAT_rN: y = x * w^T (+ bias), for up to N rows.
//   y     [rows, n] f32 or bf16, see mode
//   w     weight [n, k] in the format, see quant.cuh; nothing in front may write it
//   x     [rows, k] bf16
//   bias  [n] f32 or null, in the order of the weight's rows
//   act   of mode OUT_GATED: 0 SiLU, 1 GELU by tanh, 2 GELU by erf
//   ldy   elements from row to row of y, 0 for no gaps: weights of several formats
//         that are stacked write their columns of one y
// k % 8 == 0 for bf16, else k % 32 == 0. Grid (ceil(n/16)), block 256.
//
// td_moe_gemv_FORMAT_rN does the same for experts.
//   y     [slots, n]; w is expert 0's weight, the others follow at w_stride bytes
//   x     [rows, k]; x_row [slots] says which row a slot takes, null: row = slot
//   runs  [run_count] of (expert, first slot, slots <= N, 0); blocks beyond
//         run_count[0] do nothing
// Grid (ceil(n/16), most runs), block 256.
#define GEMV(F, NAME, NT, BLOCKS)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                          \
      td_gemv_##NAME(void *y, const void *w, const bf16 *x, const float *bias, int32_t rows, int32_t n, int32_t k,    \
                     int32_t mode, int32_t act, int32_t ldy) {                                                       \
    overlap_begin();                                                                                                 \
    gemv<F, NT>(Weights{(const uint8_t *)w, n, k}, Product{y, x, nullptr, bias, rows, mode, act, row_stride(ldy, n, mode)});                   \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                          \
      td_moe_gemv_##NAME(void *y, const void *w, const bf16 *x, const int32_t *x_row, const int32_t *runs,            \
                         const int32_t *run_count, int64_t w_stride, int32_t n, int32_t k, int32_t mode,              \
                         int32_t act) {                                                                              \
    overlap();                                                                                                       \
    if ((int)blockIdx.y >= run_count[0]) return;                                                                     \
    const int4 run = ((const int4 *)runs)[blockIdx.y];                                                               \
    gemv<F, NT>(Weights{(const uint8_t *)w + run.x * w_stride, n, k}, run_product(y, x, x_row, run, n, k, mode, act)); \
  }
#define GEMV_ALL(F, NAME)     \
  GEMV(F, NAME##_r8, 1, 3)    \
  GEMV(F, NAME##_r16, 2, 2)   \
  GEMV(F, NAME##_r32, 4, 2)

// td_dequant_FORMAT writes rows [0, n) of a packed weight as bf16 [n, k] to out.
// Grid (ceil(n/16), ceil(k/64/8)), block 256: a warp for each tile.
template <class F> static __device__ __forceinline__ void dequant(bf16 *out, const Weights &w) {
  overlap();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tile = (int)blockIdx.y * 8 + threadIdx.x / 32;
  if (tile >= (w.k + TILE_COLS - 1) / TILE_COLS) return;
  typename F::Raw raw;
  F::load(raw, w, blockIdx.x, tile, lane);
  const int steps = 4 / F::groups;
#pragma unroll
  for (int s = 0; s < 4; s++) {
    uint32_t a[4];
    F::codes(raw, s, a);
    float scale[2], min[2];
    F::scale(raw, s / steps, scale, min);
    const int col = tile * TILE_COLS + (F::narrow ? s * 16 + t * 4 : s / 2 * 32 + t * 8 + s % 2 * 4);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = (int)blockIdx.x * TILE_ROWS + g + 8 * r;
      if (row >= w.n || col >= w.k) continue;
      uint2 v;
      v.x = pack_bf16(scale[r] * bf16_low(a[r]) + min[r], scale[r] * bf16_high(a[r]) + min[r]);
      v.y = pack_bf16(scale[r] * bf16_low(a[2 + r]) + min[r], scale[r] * bf16_high(a[2 + r]) + min[r]);
      *(uint2 *)(out + (int64_t)row * w.k + col) = v;
    }
  }
}

// td_embed_FORMAT sets out [rows, k] f32 to the rows ids [rows] of a packed
// table [n, k]; zeros for an id that is not in it. Grid (rows), block 128.
template <class F> static __device__ __forceinline__ void embed(float *out, const Weights &w, const int32_t *ids) {
  overlap();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t id = ids[blockIdx.x];
  float *row = out + (int64_t)blockIdx.x * w.k;
  if (id < 0 || id >= w.n) {
    for (int i = threadIdx.x; i < w.k; i += 128) row[i] = 0;
    return;
  }
  const int g = lane / 4, t = lane % 4, in_tile = id % TILE_ROWS, r = in_tile / 8;
  const int steps = 4 / F::groups;
  if (g != in_tile % 8) return;
  for (int tile = warp; tile < (w.k + TILE_COLS - 1) / TILE_COLS; tile += 4) {
    typename F::Raw raw;
    F::load(raw, w, id / TILE_ROWS, tile, lane);
#pragma unroll
    for (int s = 0; s < 4; s++) {
      uint32_t a[4];
      F::codes(raw, s, a);
      float scale[2], min[2];
      F::scale(raw, s / steps, scale, min);
      const int col = tile * TILE_COLS + (F::narrow ? s * 16 + t * 4 : s / 2 * 32 + t * 8 + s % 2 * 4);
      if (col >= w.k) continue;
      const uint32_t lo = r ? a[1] : a[0], hi = r ? a[3] : a[2];
      *(float4 *)(row + col) = make_float4(scale[r] * bf16_low(lo) + min[r], scale[r] * bf16_high(lo) + min[r],
                                           scale[r] * bf16_low(hi) + min[r], scale[r] * bf16_high(hi) + min[r]);
    }
  }
}
#define DEQUANT(F, NAME)                                                                                              \
  extern "C" __global__ void __launch_bounds__(256)                                                                  \
      td_dequant_##NAME(bf16 *out, const void *w, int32_t n, int32_t k) {                                             \
    dequant<F>(out, Weights{(const uint8_t *)w, n, k});                                                              \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(128)                                                                  \
      td_embed_##NAME(float *out, const void *w, const int32_t *ids, int32_t n, int32_t k) {                          \
    embed<F>(out, Weights{(const uint8_t *)w, n, k}, ids);                                                           \
  }
