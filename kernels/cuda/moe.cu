// Mixtures of experts: which experts a row gets, its rows in the order of
// experts, and the weighted sum of what they made of it. Between them stand
// td_moe_gemv and td_moe_gemm.
#include "defs.cuh"

typedef unsigned long long u64;

#define ROUTER_TILE 64
#define ROUTER_STEP 16

// td_router sets logits [rows, experts] f32 to w * n, n the RMSNorm of x. Both x
// [rows, hidden] and w [experts, hidden] are f32, so that which experts a row
// gets hangs on no rounding. norm [hidden] f32. hidden % 4 == 0.
// Grid (ceil(rows/64), ceil(experts/64)), block 256; for few rows td_router_few.
extern "C" __global__ void __launch_bounds__(256)
    td_router(float *logits, const float *x, const float *norm, const float *w, int32_t rows, int32_t experts,
              int32_t hidden, float eps) {
  overlap();
  __shared__ __align__(16) float xs[ROUTER_STEP][ROUTER_TILE + 4], ws[ROUTER_STEP][ROUTER_TILE + 4];
  __shared__ float squares[ROUTER_TILE];
  const int row0 = (int)blockIdx.x * ROUTER_TILE, expert0 = (int)blockIdx.y * ROUTER_TILE;
  const int tr = threadIdx.x / 16 * 4, te = threadIdx.x % 16 * 4;
  const int lr = threadIdx.x / 4, lc = threadIdx.x % 4 * 4; // row and columns that a thread loads
  float acc[4][4] = {}, sum = 0;
  for (int k = 0; k < hidden; k += ROUTER_STEP) {
    float4 a = make_float4(0, 0, 0, 0), b = a;
    if (k + lc < hidden) {
      const float4 n = *(const float4 *)(norm + k + lc);
      if (row0 + lr < rows) a = *(const float4 *)(x + (int64_t)(row0 + lr) * hidden + k + lc);
      if (expert0 + lr < experts) b = *(const float4 *)(w + (int64_t)(expert0 + lr) * hidden + k + lc);
      sum += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
      a.x *= n.x, a.y *= n.y, a.z *= n.z, a.w *= n.w;
    }
    __syncthreads();
    xs[lc][lr] = a.x, xs[lc + 1][lr] = a.y, xs[lc + 2][lr] = a.z, xs[lc + 3][lr] = a.w;
    ws[lc][lr] = b.x, ws[lc + 1][lr] = b.y, ws[lc + 2][lr] = b.z, ws[lc + 3][lr] = b.w;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROUTER_STEP; i++) {
      const float4 p = *(const float4 *)&xs[i][tr], q = *(const float4 *)&ws[i][te];
      const float u[4] = {p.x, p.y, p.z, p.w}, v[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[r][e] += u[r] * v[e];
    }
  }
  sum += __shfl_xor_sync(FULL_WARP, sum, 1);
  sum += __shfl_xor_sync(FULL_WARP, sum, 2);
  if (threadIdx.x % 4 == 0) squares[lr] = rsqrtf(sum / (float)hidden + eps);
  __syncthreads();
  for (int r = 0; r < 4; r++)
    for (int e = 0; e < 4; e++)
      if (row0 + tr + r < rows && expert0 + te + e < experts)
        logits[(int64_t)(row0 + tr + r) * experts + expert0 + te + e] = acc[r][e] * squares[tr + r];
}

// td_router_few does the same for up to some dozen rows: a warp for each expert
// and four rows. Grid (ceil(experts/4), ceil(rows/4)), block 128.
extern "C" __global__ void __launch_bounds__(128)
    td_router_few(float *logits, const float *x, const float *norm, const float *w, int32_t rows, int32_t experts,
                  int32_t hidden, float eps) {
  overlap();
  const int lane = threadIdx.x % 32, expert = (int)blockIdx.x * 4 + threadIdx.x / 32, row0 = (int)blockIdx.y * 4;
  if (expert >= experts) return;
  float acc[4] = {}, squares[4] = {};
  for (int k = lane * 4; k < hidden; k += 128) {
    const float4 n = *(const float4 *)(norm + k), b = *(const float4 *)(w + (int64_t)expert * hidden + k);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      if (row0 + r >= rows) break;
      const float4 a = *(const float4 *)(x + (int64_t)(row0 + r) * hidden + k);
      acc[r] += a.x * n.x * b.x + a.y * n.y * b.y + a.z * n.z * b.z + a.w * n.w * b.w;
      squares[r] += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
    }
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const float y = warp_sum(acc[r]), s = warp_sum(squares[r]);
    if (lane == 0 && row0 + r < rows) logits[(int64_t)(row0 + r) * experts + expert] = y * rsqrtf(s / (float)hidden + eps);
  }
}

// td_moe_route picks for every row the used largest of logits [rows, experts],
// of equal ones the lowest ids; a NaN counts as the smallest. expert [rows, used]
// i32 gets their ids ascending, weight [rows, used] f32 their softmax: over the
// chosen with renorm, else over all. used <= 64.
// Grid (ceil(rows/4)), block 128: a warp for each row.
extern "C" __global__ void __launch_bounds__(128)
    td_moe_route(int32_t *expert, float *weight, const float *logits, int32_t rows, int32_t experts, int32_t used,
                 int32_t renorm) {
  overlap();
  __shared__ int32_t ids[4][64];
  __shared__ float values[4][64];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = (int64_t)blockIdx.x * 4 + warp;
  if (row >= rows) return;
  const float *from = logits + row * experts;
  u64 last = 0;
  double sum = 0, top = 0;
  for (int i = 0; i < used; i++) {
    u64 next = ~0ull; // the least key above the last
    for (int e = lane; e < experts; e += 32) {
      const float l = from[e];
      uint32_t b = __float_as_uint(l == l ? l + 0.0f : __int_as_float((int)0xff800000u));
      if (!(b >> 31)) b = ~b & 0x7fffffffu;
      const u64 k = (u64)b << 32 | (uint32_t)e;
      if ((i == 0 || k > last) && k < next) next = k;
    }
#pragma unroll
    for (int s = 16; s; s >>= 1) {
      const u64 y = __shfl_xor_sync(FULL_WARP, next, s);
      next = y < next ? y : next;
    }
    last = next;
    uint32_t b = (uint32_t)(next >> 32);
    if (!(b >> 31)) b = ~b & 0x7fffffffu;
    const float l = __uint_as_float(b);
    if (i == 0) top = (double)l;
    if (renorm) sum += exp((double)l - top);
    if (lane == 0) ids[warp][i] = (int32_t)(uint32_t)next, values[warp][i] = l;
  }
  if (!renorm) {
    for (int e = lane; e < experts; e += 32) sum += exp((double)from[e] - top);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int i = lane; i < used; i += 32) {
    const int32_t id = ids[warp][i];
    int at = 0;
    for (int j = 0; j < used; j++) at += ids[warp][j] < id;
    expert[row * used + at] = id;
    weight[row * used + at] = (float)(exp((double)values[warp][i] - top) / sum);
  }
}

#define SORT_THREADS 1024
#define MAX_EXPERTS 4096

// td_moe_sort sorts the n entries of expert [rows, used] by expert, leaving out
// those not in [first, first+held).
//   slot      [n] i32, the slot of each entry, -1 if left out
//   slot_row  [n] i32, the row of each slot
//   runs      [most runs] of (expert-first, first slot, slots <= per, 0) i32
//   run_count [1] i32
// The order within an expert hangs on timing; a row's product does not hang on
// its slot. held <= 4096. Grid (1), block 1024.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    td_moe_sort(int32_t *slot, int32_t *slot_row, int32_t *runs, int32_t *run_count, const int32_t *expert, int32_t n,
                int32_t used, int32_t first, int32_t held, int32_t per) {
  overlap();
  __shared__ int32_t count[MAX_EXPERTS], begin[MAX_EXPERTS];
  __shared__ int32_t slots[32], cuts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int e = threadIdx.x; e < held; e += SORT_THREADS) count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += SORT_THREADS) {
    const int e = expert[i] - first;
    if (e >= 0 && e < held) atomicAdd(&count[e], 1);
  }
  __syncthreads();
  // A thread has four experts at most: running sums over threads, then warps.
  const int each = (held + SORT_THREADS - 1) / SORT_THREADS, e0 = threadIdx.x * each;
  int mine = 0, runs_mine = 0;
  for (int e = e0; e < e0 + each && e < held; e++) mine += count[e], runs_mine += (count[e] + per - 1) / per;
  int sum = mine, cut = runs_mine;
#pragma unroll
  for (int s = 1; s < 32; s <<= 1) {
    const int a = __shfl_up_sync(FULL_WARP, sum, s), b = __shfl_up_sync(FULL_WARP, cut, s);
    if (lane >= s) sum += a, cut += b;
  }
  if (lane == 31) slots[warp] = sum, cuts[warp] = cut;
  __syncthreads();
  sum -= mine, cut -= runs_mine;
  for (int i = 0; i < warp; i++) sum += slots[i], cut += cuts[i];
  for (int e = e0; e < e0 + each && e < held; e++) {
    begin[e] = sum;
    for (int at = 0; at < count[e]; at += per)
      ((int4 *)runs)[cut++] = make_int4(e, sum + at, min(per, count[e] - at), 0);
    sum += count[e];
  }
  if (threadIdx.x == SORT_THREADS - 1) run_count[0] = cut;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += SORT_THREADS) {
    const int e = expert[i] - first;
    const bool here = e >= 0 && e < held;
    const int at = here ? atomicAdd(&begin[e], 1) : -1;
    slot[i] = at;
    if (here) slot_row[at] = i / used;
  }
}

// td_moe_combine_f32 and td_moe_combine_bf16 sum over a row's entries in order
// weight*y[slot]: x [rows, hidden] f32 is set to the sum, or has it added.
//   y       [slots, hidden] f32 or bf16
//   slot    [rows, used] i32, -1 contributes nothing; weight [rows, used] f32
// hidden % 8 == 0. Grid (ceil(hidden/1024), rows), block 128.
template <class Load>
static __device__ __forceinline__ void combine(float *x, const int32_t *slot, const float *weight, int32_t used,
                                               int32_t hidden, int32_t add, Load load) {
  const int64_t row = blockIdx.y;
  const int i = (int)(blockIdx.x * 128 + threadIdx.x) * 8;
  if (i >= hidden) return;
  float sum[8] = {};
  for (int j = 0; j < used; j++) {
    const int32_t s = slot[row * used + j];
    if (s < 0) continue;
    float v[8];
    load(v, (int64_t)s * hidden + i);
    const float w = weight[row * used + j];
#pragma unroll
    for (int e = 0; e < 8; e++) sum[e] += w * v[e];
  }
  if (add) {
    float v[8];
    load8f(v, x + row * hidden + i);
#pragma unroll
    for (int e = 0; e < 8; e++) sum[e] += v[e];
  }
  store8f(x + row * hidden + i, sum);
}
extern "C" __global__ void __launch_bounds__(128)
    td_moe_combine_f32(float *x, const float *y, const int32_t *slot, const float *weight, int32_t used, int32_t hidden,
                       int32_t add) {
  overlap();
  combine(x, slot, weight, used, hidden, add, [=](float(&v)[8], int64_t at) { load8f(v, y + at); });
}
extern "C" __global__ void __launch_bounds__(128)
    td_moe_combine_bf16(float *x, const bf16 *y, const int32_t *slot, const float *weight, int32_t used, int32_t hidden,
                        int32_t add) {
  overlap();
  combine(x, slot, weight, used, hidden, add, [=](float(&v)[8], int64_t at) { unpack8(v, *(const uint4 *)(y + at)); });
}
