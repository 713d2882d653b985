// What kernels write as inline PTX on hardware: tensor-core products, matrix
// loads and asynchronous copies, with the register layouts of the PTX manual.
// Each call is a warp operation of all 32 lanes, except the copies.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace emu {

struct Mma {
  const uint32_t *a, *b;
  const float* c;
  float* d;
};

template <float (*Dec)(uint16_t), int K>
void mma_all(void* const rec[32], unsigned) {
  float A[16][K], B[K][8];
  auto pair = [](uint32_t r, float& lo, float& hi) { lo = Dec((uint16_t)r), hi = Dec((uint16_t)(r >> 16)); };
  for (int l = 0; l < 32; l++) {
    auto* m = static_cast<Mma*>(rec[l]);
    int g = l / 4, t = l % 4 * 2;
    for (int h = 0; h < K / 8; h++) {
      pair(m->a[2 * h], A[g][8 * h + t], A[g][8 * h + t + 1]);
      pair(m->a[2 * h + 1], A[g + 8][8 * h + t], A[g + 8][8 * h + t + 1]);
      pair(m->b[h], B[8 * h + t][g], B[8 * h + t + 1][g]);
    }
  }
  for (int l = 0; l < 32; l++) {
    auto* m = static_cast<Mma*>(rec[l]);
    float out[4];
    for (int i = 0; i < 4; i++) {
      int row = l / 4 + (i / 2) * 8, col = l % 4 * 2 + i % 2;
      float s = m->c[i];
      for (int k = 0; k < K; k++) s += A[row][k] * B[k][col];
      out[i] = s;
    }
    for (int i = 0; i < 4; i++) m->d[i] = out[i];
  }
}

#define TDEMU_MMA(NAME, DEC, K, NA, NB)                                                            \
  inline void NAME(float (&d)[4], const uint32_t (&a)[NA], const uint32_t (&b)[NB], const float (&c)[4], TDEMU_AT) { \
    Mma m{a, b, c, d};                                                                             \
    tdemu::warp_op(0xffffffffu, mma_all<DEC, K>, &m, file_, line_);                                \
  }
// D(16x8, f32) = A(16xK, row) B(Kx8, col) + C; a lane holds 4 floats of C and D.
TDEMU_MMA(mma_m16n8k16_bf16, tdemu_bf16_to_float, 16, 4, 2)
TDEMU_MMA(mma_m16n8k16_f16, tdemu_half_to_float, 16, 4, 2)
TDEMU_MMA(mma_m16n8k8_bf16, tdemu_bf16_to_float, 8, 2, 1)
TDEMU_MMA(mma_m16n8k8_f16, tdemu_half_to_float, 8, 2, 1)
#undef TDEMU_MMA

struct LdMatrix {
  const void* row;
  uint32_t* r;
};

template <int N, bool Trans>
void ldmatrix_all(void* const rec[32], unsigned) {
  for (int m = 0; m < N; m++) {
    uint16_t tile[8][8];
    for (int i = 0; i < 8; i++) {
      const void* p = static_cast<LdMatrix*>(rec[8 * m + i])->row;
      if ((uintptr_t)p % 16) tdemu::fail("ldmatrix reads a row that is not 16-byte aligned", nullptr, 0);
      memcpy(tile[i], p, 16);
    }
    for (int l = 0; l < 32; l++) {
      int i = l / 4, j = l % 4 * 2;
      uint16_t lo = Trans ? tile[j][i] : tile[i][j], hi = Trans ? tile[j + 1][i] : tile[i][j + 1];
      static_cast<LdMatrix*>(rec[l])->r[m] = (uint32_t)hi << 16 | lo;
    }
  }
}

// ldmatrix loads N 8x8 matrices of 16-bit elements from shared memory; lane
// 8m+i gives the address of row i of matrix m.
template <int N, bool Trans = false>
inline void ldmatrix(uint32_t (&r)[N], const void* row, TDEMU_AT) {
  LdMatrix m{row, r};
  tdemu::warp_op(0xffffffffu, ldmatrix_all<N, Trans>, &m, file_, line_);
}

// cp_async copies 4, 8 or 16 bytes to shared memory no earlier than a wait
// that covers its group: reading before the wait sees the old content. src
// bytes may be fewer than the copy; the rest is zero.
template <int Bytes>
inline void cp_async(void* shared, const void* global, int src = Bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  tdemu::async_copy(shared, global, Bytes, (unsigned)src);
}
inline void cp_async_commit() { tdemu::async_commit(); }
template <int Pending>
inline void cp_async_wait() { tdemu::async_wait(Pending); }

}  // namespace emu
