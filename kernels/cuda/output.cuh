// What products do with their sums, and which rows they take.
#pragma once

#include "defs.cuh"

// What becomes of a sum, as parameter mode.
#define OUT_STORE 0 // y f32 = sum
#define OUT_ADD 1   // y f32 += sum
#define OUT_GATED 2 // y bf16 [rows, n/2] = act(gate)*up; a tile of 16 rows of the
                    // weight is 8 gates and their 8 ups
#define OUT_BF16 3  // y bf16 = sum

struct Product {
  void *y;
  const bf16 *x;
  const int32_t *x_row; // row of x for each row of y, or null for the same
  const float *bias;
  int rows, mode, act;
  int stride; // elements from row to row of y
};

// finish stores the sum v of a row and column; in mode OUT_GATED v is a gate and
// up the sum eight columns on.
static __device__ __forceinline__ void finish(const Product &p, int row, int col, float v, float up) {
  if (p.mode == OUT_GATED) {
    if (p.bias) v += p.bias[col], up += p.bias[col + 8];
    ((bf16 *)p.y)[(int64_t)row * p.stride + col / 16 * 8 + col % 16] = float_to_bf16(activate(v, p.act) * up);
    return;
  }
  if (p.bias) v += p.bias[col];
  const int64_t at = (int64_t)row * p.stride + col;
  if (p.mode == OUT_STORE) ((float *)p.y)[at] = v;
  else if (p.mode == OUT_ADD) ((float *)p.y)[at] += v;
  else ((bf16 *)p.y)[at] = float_to_bf16(v);
}

// run_product is the product of one run of an expert's slots: (expert, first
// slot, slots, 0).
static __device__ __forceinline__ Product run_product(void *y, const bf16 *x, const int32_t *x_row, int4 run, int n, int k,
                                                      int mode, int act) {
  const int64_t width = mode == OUT_GATED ? n / 2 : n, size = mode == OUT_GATED || mode == OUT_BF16 ? 2 : 4;
  return Product{(uint8_t *)y + run.y * width * size, x_row ? x : x + (int64_t)run.y * k, x_row ? x_row + run.y : nullptr,
                 nullptr, run.z, mode, act, (int)width};
}

// row_stride is what a parameter ldy means: 0 stands for rows without gaps.
static __device__ __forceinline__ int row_stride(int ldy, int n, int mode) {
  return ldy ? ldy : mode == OUT_GATED ? n / 2 : n;
}
