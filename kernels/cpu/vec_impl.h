// Bodies of the element-wise vector kernels, written over the v16 of the level
// that includes this file. Sums run in one fixed order, and every product that
// feeds a sum is an explicit v_fma, so a compiler cannot round two copies of a
// body differently.

// The lanes are added pairwise, halves first.
TM_FN float v_sum(v16 a)
{
	float t[16];
	v_store(t, a);
	for (int w = 8; w > 0; w /= 2)
		for (int i = 0; i < w; i++) t[i] += t[i + w];
	return t[0];
}

TM_FN float v_top(v16 a)
{
	float t[16];
	v_store(t, a);
	for (int w = 8; w > 0; w /= 2)
		for (int i = 0; i < w; i++) t[i] = t[i] > t[i + w] ? t[i] : t[i + w];
	return t[0];
}

// v_exp2 returns 2^x for x <= 126, and exactly 1 for 0. Below -126 it is 0. The
// polynomial is the series of 2^f on [-0.5, 0.5].
TM_FN v16 v_exp2(v16 x)
{
	v16 c = v_max(x, v_set1(-126.0f));
	v16 n = v_round(c);
	v16 f = v_sub(c, n);
	v16 p = v_set1(1.5403530e-4f);
	p = v_fma(p, f, v_set1(1.3333558e-3f));
	p = v_fma(p, f, v_set1(9.6181291e-3f));
	p = v_fma(p, f, v_set1(5.5504109e-2f));
	p = v_fma(p, f, v_set1(2.4022651e-1f));
	p = v_fma(p, f, v_set1(6.9314718e-1f));
	p = v_fma(p, f, v_set1(1.0f));
	return v_zero_below(v_mul(p, v_pow2(n)), x, -126.0f);
}

TM_KERNEL void k_rmsnorm(float *out, const float *x, const float *w, int n, float eps)
{
	v16 s0 = v_zero(), s1 = v_zero(), s2 = v_zero(), s3 = v_zero();
	int i = 0;
	for (; i + 64 <= n; i += 64) {
		v16 a = v_load(x + i), b = v_load(x + i + 16), c = v_load(x + i + 32), d = v_load(x + i + 48);
		s0 = v_fma(a, a, s0);
		s1 = v_fma(b, b, s1);
		s2 = v_fma(c, c, s2);
		s3 = v_fma(d, d, s3);
	}
	for (; i < n; i += 16) {
		v16 a = v_load_n(x + i, n - i);
		s0 = v_fma(a, a, s0);
	}
	float sum = v_sum(v_add(v_add(s0, s1), v_add(s2, s3)));
	v16 scale = v_set1(1.0f / sqrtf(sum / (float)n + eps));
	for (i = 0; i < n; i += 16)
		v_store_n(out + i, v_mul(v_mul(v_load_n(x + i, n - i), scale), v_load_n(w + i, n - i)), n - i);
}

TM_KERNEL void k_add(float *x, const float *y, int n)
{
	for (int i = 0; i < n; i += 16) v_store_n(x + i, v_add(v_load_n(x + i, n - i), v_load_n(y + i, n - i)), n - i);
}

TM_KERNEL void k_silu_mul(float *out, const float *gate, const float *up, int n)
{
	const v16 one = v_set1(1.0f);
	for (int i = 0; i < n; i += 16) {
		v16 g = v_load_n(gate + i, n - i);
		v16 e = v_exp2(v_min(v_mul(g, v_set1(-1.44269504f)), v_set1(126.0f)));
		v_store_n(out + i, v_mul(v_div(g, v_add(one, e)), v_load_n(up + i, n - i)), n - i);
	}
}

// With t = sqrt(2/pi)*(g + 0.044715*g^3), gelu is g/2 * (1 + tanh(t)), which is
// g / (1 + exp(-2t)).
TM_KERNEL void k_gelu_mul(float *out, const float *gate, const float *up, int n)
{
	const v16 one = v_set1(1.0f), cube = v_set1(0.044715f), rate = v_set1(-2.302208198f);
	for (int i = 0; i < n; i += 16) {
		v16 g = v_load_n(gate + i, n - i);
		v16 t = v_mul(g, v_fma(v_mul(g, g), cube, one));
		v16 e = v_exp2(v_min(v_mul(t, rate), v_set1(126.0f)));
		v_store_n(out + i, v_mul(v_div(g, v_add(one, e)), v_load_n(up + i, n - i)), n - i);
	}
}

TM_KERNEL void k_scale(float *x, float s, int n)
{
	const v16 f = v_set1(s);
	for (int i = 0; i < n; i += 16) v_store_n(x + i, v_mul(v_load_n(x + i, n - i), f), n - i);
}

TM_KERNEL void k_tree_sum(float *out, const float *const *leaf, const uint8_t *joins, int leaves, int n, int accumulate)
{
	for (int i = 0; i < n; i += 16) {
		v16 sum[TM_TREE_DEPTH];
		int top = 0;
		sum[0] = v_zero();
		for (int j = 0; j < leaves; j++) {
			sum[top++] = v_load_n(leaf[j] + i, n - i);
			for (int k = joins[j]; k > 0; k--, top--) sum[top - 2] = v_add(sum[top - 2], sum[top - 1]);
		}
		v_store_n(out + i, accumulate ? v_add(v_load_n(out + i, n - i), sum[0]) : sum[0], n - i);
	}
}

TM_KERNEL void k_rope(float *x, const float *cosv, const float *sinv, int dims, int adjacent)
{
	const int half = dims / 2;
	if (adjacent) {
		for (int i = 0; i < half; i++) {
			float a = x[2 * i], b = x[2 * i + 1];
			x[2 * i] = v_fma1(a, cosv[i], -(b * sinv[i]));
			x[2 * i + 1] = v_fma1(a, sinv[i], b * cosv[i]);
		}
		return;
	}
	for (int i = 0; i < half; i += 16) {
		const int n = half - i;
		v16 a = v_load_n(x + i, n), b = v_load_n(x + half + i, n);
		v16 c = v_load_n(cosv + i, n), s = v_load_n(sinv + i, n);
		v_store_n(x + i, v_fms(a, c, v_mul(b, s)), n);
		v_store_n(x + half + i, v_fma(a, s, v_mul(b, c)), n);
	}
}

// Returns the scale of n values and what they are multiplied with: the least
// bfloat16 by which all fit a byte, 0 for values that a float cannot divide by, not
// a number if one of them is that or infinite.
TM_FN uint16_t byte_scale(const float *x, int n, float *inv)
{
	uint32_t top = 0, u;
	for (int i = 0; i < n; i++) {
		memcpy(&u, x + i, 4);
		u &= 0x7fffffffu;
		top = u > top ? u : top;
	}
	float max, scale;
	memcpy(&max, &top, 4);
	*inv = 0.0f;
	if (top >= 0x7f800000u) return 0x7fc0;
	if (max < 1e-30f) return 0;
	scale = max / 127.0f;
	memcpy(&u, &scale, 4);
	u = (u + 0xffffu) & 0xffff0000u;
	memcpy(&scale, &u, 4);
	*inv = 1.0f / scale;
	return (uint16_t)(u >> 16);
}

// Rounds n values to bytes that stand `step` apart.
TM_FN void to_bytes(int8_t *d, size_t step, const float *x, int n, float inv)
{
	const v16 m = v_set1(inv);
	for (int i = 0; i < n; i += 16) {
		float t[16];
		v_store(t, inv == 0.0f ? v_zero() : v_round(v_mul(v_load(x + i), m)));
		for (int j = 0; j < 16; j++) d[(size_t)(i + j) * step] = (int8_t)(int)t[j];
	}
}

TM_FN void store_scale(void *block, uint16_t scale, int head_dim, int block_tokens, int token)
{ memcpy((int8_t *)block + (size_t)block_tokens * (size_t)head_dim + (size_t)token * 2, &scale, 2); }

// Keys of a head: [head_dim/2][block_tokens][2] bfloat16, [head_dim][block_tokens] float32, or
// [block_tokens/16][head_dim][16] bytes, [head_dim][8] in a block of 8 tokens.
TM_KERNEL void k_store_k(void *block, const float *x, int head_dim, int block_tokens, int token, int kv_type)
{
	if (kv_type == TM_KV_I8) {
		float inv;
		store_scale(block, byte_scale(x, head_dim, &inv), head_dim, block_tokens, token);
		const int line = block_tokens < 16 ? block_tokens : 16;
		int8_t *d = (int8_t *)block + (size_t)(token / line * line) * (size_t)head_dim + token % line;
		to_bytes(d, (size_t)line, x, head_dim, inv);
		return;
	}
	if (kv_type == TM_KV_F32) {
		float *d = (float *)block + token;
		for (int i = 0; i < head_dim; i++) d[(size_t)i * (size_t)block_tokens] = x[i];
		return;
	}
	uint32_t *d = (uint32_t *)block + token;
	for (int i = 0; i < head_dim / 2; i++)
		d[(size_t)i * (size_t)block_tokens] = (uint32_t)tm_bf16(x[2 * i]) | (uint32_t)tm_bf16(x[2 * i + 1])
											    << 16;
}

// Values of a head: [block_tokens/2][head_dim][2] bfloat16 or [block_tokens][head_dim] float32 or bytes.
TM_KERNEL void k_store_v(void *block, const float *x, int head_dim, int block_tokens, int token, int kv_type)
{
	if (kv_type == TM_KV_I8) {
		float inv;
		store_scale(block, byte_scale(x, head_dim, &inv), head_dim, block_tokens, token);
		to_bytes((int8_t *)block + (size_t)token * (size_t)head_dim, 1, x, head_dim, inv);
		return;
	}
	if (kv_type == TM_KV_F32) {
		memcpy((float *)block + (size_t)token * (size_t)head_dim, x, (size_t)head_dim * 4);
		return;
	}
	uint16_t *d = (uint16_t *)block + (size_t)(token / 2) * (size_t)head_dim * 2 + (token & 1);
	for (int i = 0; i < head_dim; i++) d[2 * i] = tm_bf16(x[i]);
}
