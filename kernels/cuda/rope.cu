// What stands between the projection and attention: bias, Q/K norm, rotation,
// the write into the paged cache.
#include "defs.cuh"

// td_rope_table sets table [rows, half] pairs f32 to cos and sin of
// position[row]*inv_freq[i], both times scale; once a step, for all layers.
// Grid ceil(rows*half/256), block 256.
extern "C" __global__ void __launch_bounds__(256)
    td_rope_table(float *table, const int32_t *position, const float *inv_freq, int32_t rows, int32_t half, float scale) {
  overlap();
  const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
  if (i >= (int64_t)rows * half) return;
  double s, c;
  const double turns = (double)position[i / half] * (double)inv_freq[i % half] * 0.31830988618379067154; // half turns
  sincospi(turns, &s, &c);
  ((float2 *)table)[i] = make_float2((float)c * scale, (float)s * scale);
}

static __device__ __forceinline__ void store_kv(void *cache, int64_t at, float x, int kv_type, float inv_scale) {
  if (kv_type == KV_BF16)
    ((bf16 *)cache)[at] = float_to_bf16(x);
  else if (kv_type == KV_F16)
    ((uint16_t *)cache)[at] = (uint16_t)pack_f16(fminf(fmaxf(x, -65504.0f), 65504.0f), 0.0f);
  else
    ((uint8_t *)cache)[at] = (uint8_t)float_to_e4m3(x * inv_scale);
}

// td_qkv finishes rows of a projection.
//   q        [rows, heads*head_dim] bf16, out
//   k, v     cache of a layer: block b, head h, token t at element
//            b*block_stride + (h*block_tokens + t)*head_dim
//   qkv      [rows, (heads+2*kv_heads)*head_dim] f32, q heads, k heads, v heads
//   bias     [(heads+2*kv_heads)*head_dim] f32 or null
//   q_norm, k_norm  [head_dim] f32 weight of an RMSNorm on each head, or null
//   rope     [rows, rope_dims/2] pairs of td_rope_table
//   slot     [rows] where to write: block*block_tokens + token; -1 writes nothing
//   adjacent pairs (2i, 2i+1) rotate, else (i, i+rope_dims/2)
//   kv_type  KV_BF16, KV_F16 or KV_E4M3; E4M3 stores x*k_inv_scale, x*v_inv_scale
// head_dim <= 256. Grid (rows, ceil((heads+2*kv_heads)/4)), block 128: a warp
// for each head.
extern "C" __global__ void __launch_bounds__(128)
    td_qkv(bf16 *q, void *k, void *v, const float *qkv, const float *bias, const float *q_norm, const float *k_norm,
           const float *rope, const int32_t *slot, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t rope_dims,
           int32_t adjacent, int32_t block_tokens, int64_t block_stride, int32_t kv_type, float eps, float k_inv_scale,
           float v_inv_scale) {
  overlap();
  __shared__ float rows[4][256];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int h = (int)blockIdx.y * 4 + warp;
  const int64_t row = blockIdx.x;
  if (h >= heads + 2 * kv_heads) return;
  float *x = rows[warp];
  const int64_t width = (int64_t)(heads + 2 * kv_heads) * head_dim;
  const bool is_q = h < heads, is_v = h >= heads + kv_heads;
  float sum = 0;
  for (int i = lane; i < head_dim; i += 32) {
    float e = qkv[row * width + (int64_t)h * head_dim + i];
    if (bias) e += bias[h * head_dim + i];
    x[i] = e;
    sum += e * e;
  }
  const float *norm = is_v ? nullptr : is_q ? q_norm : k_norm;
  if (norm) {
    const float inv = rsqrtf(warp_sum(sum) / (float)head_dim + eps);
    for (int i = lane; i < head_dim; i += 32) x[i] *= inv * norm[i];
  }
  __syncwarp();
  if (!is_v) {
    const int half = rope_dims / 2;
    const float2 *cs = (const float2 *)rope + row * half;
    for (int i = lane; i < half; i += 32) {
      const int a = adjacent ? 2 * i : i, b = adjacent ? 2 * i + 1 : i + half;
      const float2 w = cs[i];
      const float xa = x[a], xb = x[b];
      x[a] = xa * w.x - xb * w.y;
      x[b] = xb * w.x + xa * w.y;
    }
    __syncwarp();
  }
  if (is_q) {
    for (int i = lane; i < head_dim; i += 32) q[row * heads * head_dim + h * head_dim + i] = float_to_bf16(x[i]);
    return;
  }
  const int32_t s = slot[row];
  if (s < 0) return;
  const int head = is_v ? h - heads - kv_heads : h - heads;
  const int64_t at =
      (int64_t)(s / block_tokens) * block_stride + ((int64_t)head * block_tokens + s % block_tokens) * head_dim;
  for (int i = lane; i < head_dim; i += 32)
    store_kv(is_v ? v : k, at + i, x[i], kv_type, is_v ? v_inv_scale : k_inv_scale);
}
