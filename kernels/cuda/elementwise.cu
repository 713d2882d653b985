// Kernels that touch each element once.
#include "defs.cuh"

// td_embed sets out [rows, hidden] f32 to the rows ids [rows] of table [vocab,
// hidden] bf16; zeros for an id that is not in the table. hidden % 8 == 0.
// Grid (rows), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_embed(float *out, const bf16 *table, const int32_t *ids, int32_t hidden, int32_t vocab) {
  overlap();
  const int64_t row = blockIdx.x;
  const int32_t id = ids[row];
  const bool known = id >= 0 && id < vocab;
  for (int i = (int)threadIdx.x * 8; i < hidden; i += 256 * 8) {
    float x[8] = {};
    if (known) unpack8(x, *(const uint4 *)(table + (int64_t)id * hidden + i));
    store8f(out + row * hidden + i, x);
  }
}

// td_merge_tokens sets ids [rows] to host_ids [rows], or, where from [rows] is
// not negative, to sampled[from]: tokens that the host does not know yet.
// Grid ceil(rows/256), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_merge_tokens(int32_t *ids, const int32_t *host_ids, const int32_t *from, const int32_t *sampled, int32_t rows) {
  overlap();
  const int i = (int)(blockIdx.x * 256 + threadIdx.x);
  if (i < rows) ids[i] = from[i] >= 0 ? sampled[from[i]] : host_ids[i];
}

// td_rmsnorm sets out [rows, cols] bf16 to x/rms(x)*weight. x [rows, cols] f32
// has delta [rows, cols] f32 added first, unless delta is null, and keeps the
// sum. weight [cols] f32. cols % 8 == 0. Grid (rows), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_rmsnorm(bf16 *out, float *x, const float *delta, const float *weight, int32_t cols, float eps) {
  overlap();
  __shared__ float scratch[32];
  const int64_t base = (int64_t)blockIdx.x * cols;
  float sum = 0;
  for (int i = (int)threadIdx.x * 8; i < cols; i += 256 * 8) {
    float v[8];
    load8f(v, x + base + i);
    if (delta) {
      float d[8];
      load8f(d, delta + base + i);
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] += d[j];
      store8f(x + base + i, v);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) sum += v[j] * v[j];
  }
  const float inv = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
  for (int i = (int)threadIdx.x * 8; i < cols; i += 256 * 8) {
    float v[8], w[8];
    load8f(v, x + base + i); // this thread wrote it
    load8f(w, weight + i);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = v[j] * inv * w[j];
    *(uint4 *)(out + base + i) = pack8(v);
  }
}

// td_norm_rows is td_rmsnorm of chosen rows: out row i is that of x row
// index[i] (the rows whose logits are wanted). Grid (rows of out), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_norm_rows(bf16 *out, const float *x, const int32_t *index, const float *weight, int32_t cols, float eps) {
  overlap();
  __shared__ float scratch[32];
  const float *row = x + (int64_t)index[blockIdx.x] * cols;
  bf16 *to = out + (int64_t)blockIdx.x * cols;
  float sum = 0;
  for (int i = (int)threadIdx.x * 8; i < cols; i += 256 * 8) {
    float v[8];
    load8f(v, row + i);
#pragma unroll
    for (int j = 0; j < 8; j++) sum += v[j] * v[j];
  }
  const float inv = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
  for (int i = (int)threadIdx.x * 8; i < cols; i += 256 * 8) {
    float v[8], w[8];
    load8f(v, row + i);
    load8f(w, weight + i);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = v[j] * inv * w[j];
    *(uint4 *)(to + i) = pack8(v);
  }
}

// td_act_mul_f32 and td_act_mul_bf16 set out [rows, inter] bf16 to
// act(gate)*up. in [rows, 2*inter] holds 8 gate columns, then the 8 up columns
// beside them, and so on. act: 0 SiLU, 1 GELU by tanh, 2 GELU by erf.
// inter % 8 == 0. Grid (ceil(inter/8/128), rows), block 128.
template <class Load> static __device__ __forceinline__ void act_mul(bf16 *out, int32_t inter, int32_t act, Load load) {
  const int64_t row = blockIdx.y;
  const int i = (int)(blockIdx.x * 128 + threadIdx.x) * 8;
  if (i >= inter) return;
  float gate[8], up[8];
  load(gate, row * 2 * inter + 2 * i);
  load(up, row * 2 * inter + 2 * i + 8);
#pragma unroll
  for (int j = 0; j < 8; j++) gate[j] = activate(gate[j], act) * up[j];
  *(uint4 *)(out + row * inter + i) = pack8(gate);
}
extern "C" __global__ void __launch_bounds__(128)
    td_act_mul_f32(bf16 *out, const float *in, int32_t inter, int32_t act) {
  overlap();
  act_mul(out, inter, act, [=](float(&x)[8], int64_t at) { load8f(x, in + at); });
}
extern "C" __global__ void __launch_bounds__(128)
    td_act_mul_bf16(bf16 *out, const bf16 *in, int32_t inter, int32_t act) {
  overlap();
  act_mul(out, inter, act, [=](float(&x)[8], int64_t at) { unpack8(x, *(const uint4 *)(in + at)); });
}

// td_add adds delta [n] f32, and bias [cols] f32 to every row of cols elements,
// to x [n] f32; either may be null. cols % 4 == 0. Grid ceil(n/1024), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_add(float *x, const float *delta, const float *bias, int64_t n, int32_t cols) {
  overlap();
  const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;
  if (i >= n) return;
  float4 v = *(float4 *)(x + i);
  if (delta) {
    const float4 d = *(const float4 *)(delta + i);
    v.x += d.x, v.y += d.y, v.z += d.z, v.w += d.w;
  }
  if (bias) {
    const float4 b = *(const float4 *)(bias + i % cols);
    v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
  }
  *(float4 *)(x + i) = v;
}

// td_to_bf16 rounds in [n] f32 to out [n] bf16. n % 8 == 0.
// Grid ceil(n/2048), block 256.
extern "C" __global__ void __launch_bounds__(256) td_to_bf16(bf16 *out, const float *in, int64_t n) {
  overlap();
  const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 8;
  if (i >= n) return;
  float v[8];
  load8f(v, in + i);
  *(uint4 *)(out + i) = pack8(v);
}

static __device__ __forceinline__ uint32_t scramble(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return (uint32_t)(x >> 32);
}

// td_fill_bf16 and td_fill_f32 set element i of out [n] to a number that is
// even over [-scale, scale) and depends on seed and i only; the f32 form adds
// center. Grid ceil(n/1024), block 256.
extern "C" __global__ void __launch_bounds__(256) td_fill_bf16(bf16 *out, int64_t n, int64_t seed, float scale) {
  overlap();
  const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;
  for (int64_t j = i; j < i + 4 && j < n; j++)
    out[j] = float_to_bf16(scale * ((float)(int32_t)scramble((uint64_t)j * 0x9e3779b97f4a7c15ull + (uint64_t)seed) * 0x1p-31f));
}
extern "C" __global__ void __launch_bounds__(256)
    td_fill_f32(float *out, int64_t n, int64_t seed, float scale, float center) {
  overlap();
  const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;
  for (int64_t j = i; j < i + 4 && j < n; j++)
    out[j] = center + scale * ((float)(int32_t)scramble((uint64_t)j * 0x9e3779b97f4a7c15ull + (uint64_t)seed) * 0x1p-31f);
}

// td_fill_packed fills tiles of packed weights (see quant.cuh): tile_bytes
// bytes each, of which the first code_bytes are codes and the rest half
// precision scales, all equal to scale. Grid (tiles), block 128.
extern "C" __global__ void __launch_bounds__(128)
    td_fill_packed(uint8_t *out, int32_t tile_bytes, int32_t code_bytes, int64_t seed, float scale) {
  overlap();
  const int64_t base = (int64_t)blockIdx.x * tile_bytes;
  const uint32_t half = pack_f16(scale, scale);
  for (int i = (int)threadIdx.x * 4; i < tile_bytes; i += 128 * 4)
    *(uint32_t *)(out + base + i) =
        i < code_bytes ? scramble((uint64_t)(base + i) * 0x9e3779b97f4a7c15ull + (uint64_t)seed) : half;
}
