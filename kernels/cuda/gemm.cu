// Products of many rows with bf16 weights: for experts, and where cuBLASLt is
// not at hand. Tiles of 128 by 128 by 64, three of them in flight.
#include "output.cuh"

extern __shared__ __align__(16) unsigned char dyn_smem[];

#define GEMM_TILE 128
#define GEMM_STEP 64
#define GEMM_STAGES 3
#define GEMM_THREADS 256
#define GEMM_STAGE_BYTES (2 * GEMM_TILE * GEMM_STEP * 2)

static __device__ __forceinline__ uint8_t *chunk_at(uint8_t *tile, int row, int c) {
  return tile + row * (GEMM_STEP * 2) + ((c ^ (row & 7)) << 4);
}

struct Gemm {
  const bf16 *w;
  Product p;
  int n, k;

  // Starts copying columns [64*step, +64) of the rows and of the weight's rows.
  __device__ __forceinline__ void load(int step, int row0, int col0) const {
    uint8_t *stage = dyn_smem + step % GEMM_STAGES * GEMM_STAGE_BYTES;
#pragma unroll
    for (int i = 0; i < GEMM_TILE * 8 / GEMM_THREADS; i++) {
      const int at = i * GEMM_THREADS + threadIdx.x, r = at / 8, c = at % 8, col = step * GEMM_STEP + c * 8;
      const bool x_valid = row0 + r < p.rows && col < k, w_valid = col0 + r < n && col < k;
      const int64_t row = x_valid ? p.x_row ? p.x_row[row0 + r] : row0 + r : 0;
      copy_async16(chunk_at(stage, r, c), p.x + (x_valid ? row * k + col : 0), x_valid);
      copy_async16(chunk_at(stage + GEMM_STAGE_BYTES / 2, r, c), w + (w_valid ? (int64_t)(col0 + r) * k + col : 0), w_valid);
    }
  }

  __device__ __forceinline__ void run(int row0, int col0) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int wr = warp / 4 * 64, wc = warp % 4 * 32, steps = (k + GEMM_STEP - 1) / GEMM_STEP;
    float acc[4][4][4] = {};
    for (int s = 0; s < GEMM_STAGES - 1; s++) {
      if (s < steps) load(s, row0, col0);
      copy_async_commit();
    }
#pragma unroll 1
    for (int s = 0; s < steps; s++) {
      copy_async_wait<GEMM_STAGES - 2>();
      __syncthreads();
      if (s + GEMM_STAGES - 1 < steps) load(s + GEMM_STAGES - 1, row0, col0);
      copy_async_commit();
      uint8_t *x_tile = dyn_smem + s % GEMM_STAGES * GEMM_STAGE_BYTES, *w_tile = x_tile + GEMM_STAGE_BYTES / 2;
#pragma unroll 2 // registers
      for (int d = 0; d < GEMM_STEP / 16; d++) {
        uint32_t a[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) ldmatrix_x4(a[i], chunk_at(x_tile, wr + i * 16 + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int j = 0; j < 2; j++) {
          uint32_t b[4];
          ldmatrix_x4(b, chunk_at(w_tile, wc + j * 16 + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
          const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
          for (int i = 0; i < 4; i++) {
            mma_16816(ElemBF16(), acc[i][2 * j], a[i], b0);
            mma_16816(ElemBF16(), acc[i][2 * j + 1], a[i], b1);
          }
        }
      }
    }
    copy_async_wait<0>();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int row = row0 + wr + i * 16 + g + 8 * r;
        if (row >= p.rows) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (p.mode == OUT_GATED && j % 2) continue; // the ups of the tile before
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int col = col0 + wc + j * 8 + 2 * t + e;
            const float up = j % 2 ? 0.0f : acc[i][j % 2 ? j : j + 1][2 * r + e];
            if (col < n) finish(p, row, col, acc[i][j][2 * r + e], up);
          }
        }
      }
  }
};

// td_gemm_bf16: y = x * w^T (+ bias), parameters as td_gemv_bf16 for any number
// of rows. Grid (ceil(rows/128), ceil(n/128)), block 256, 96 KiB of dynamic
// shared memory.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2)
    td_gemm_bf16(void *y, const void *w, const bf16 *x, const float *bias, int32_t rows, int32_t n, int32_t k,
                 int32_t mode, int32_t act, int32_t ldy) {
  overlap();
  const Gemm gemm = {(const bf16 *)w, Product{y, x, nullptr, bias, rows, mode, act, row_stride(ldy, n, mode)}, n, k};
  gemm.run((int)blockIdx.x * GEMM_TILE, (int)blockIdx.y * GEMM_TILE);
}

// td_moe_gemm_bf16 does it for experts, parameters as td_moe_gemv_bf16, with runs
// of at most 128 slots. Grid (most runs, ceil(n/128)), block 256, as above.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2)
    td_moe_gemm_bf16(void *y, const void *w, const bf16 *x, const int32_t *x_row, const int32_t *runs,
                     const int32_t *run_count, int64_t w_stride, int32_t n, int32_t k, int32_t mode, int32_t act) {
  overlap();
  if ((int)blockIdx.x >= run_count[0]) return;
  const int4 run = ((const int4 *)runs)[blockIdx.x];
  const Gemm gemm = {(const bf16 *)((const uint8_t *)w + run.x * w_stride), run_product(y, x, x_row, run, n, k, mode, act), n, k};
  gemm.run(0, (int)blockIdx.y * GEMM_TILE);
}
