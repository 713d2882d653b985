#include <math.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "matmul_impl.h"

// The definition of every kernel in plain C, but for one loop on arm64. Other
// levels give the same bits.

// greatest returns the bits of the greatest magnitude, compared as integers, so that
// not a number is more than any.
static uint32_t greatest(const float *x, int k)
{
	uint32_t top = 0, bits;
	for (int i = 0; i < k; i++) {
		memcpy(&bits, x + i, 4);
		bits &= 0x7fffffff;
		top = bits > top ? bits : top;
	}
	return top;
}

static void quant(uint8_t *tile, int width, int lane, const float *x, int k)
{
	const float inv = tm_store_scale(tile, lane, greatest(x, k));
	tile += width * 4;
	for (int g = 0; g < k / TM_GROUP; g++, x += TM_GROUP, tile += (size_t)TM_WORDS * 4 * width) {
		int32_t sum = 0;
		for (int i = 0; i < TM_GROUP; i++) {
			int16_t q = inv ? (int16_t)rintf(x[i] * inv) : 0;
			memcpy(tile + (i / 2 * width + lane) * 4 + i % 2 * 2, &q, 2);
			sum += q;
		}
		float fsum = (float)sum;
		int32_t start = -8 * sum;
		memcpy(tile + (TM_PAIRS * width + lane) * 4, &fsum, 4);
		memcpy(tile + ((TM_PAIRS + 1) * width + lane) * 4, &start, 4);
	}
}

// scales reads what scales group g: per half of it where halves differ.
static void scales(const tm_panel *p, int g, float s[2][TM_PANEL], float min[TM_PANEL])
{
	const uint8_t *b, *u;
	for (int c = 0; c < TM_PANEL; c++) {
		switch (p->format) {
		case FMT_W4_0: case FMT_W8:
			s[0][c] = tm_half(tm_load16(p->scale + g * 32 + c * 2));
			break;
		case FMT_W4_1: case FMT_W8_1:
			b = p->scale + g * 64 + c * 2;
			s[0][c] = tm_half(tm_load16(b));
			min[c] = tm_half(tm_load16(b + 32));
			break;
		case FMT_W4_K: case FMT_W8_K:
			b = p->scale + g * 32 + c;
			u = p->super + g / 8 * 64 + c * 2;
			s[0][c] = tm_half(tm_load16(u)) * (float)b[0];
			min[c] = -(tm_half(tm_load16(u + 32)) * (float)b[16]);
			break;
		case FMT_W16:
			s[0][c] = tm_load_f32(p->scale + g * 64 + c * 4);
			break;
		case FMT_W16_M:
			s[0][c] = tm_load_f32(p->scale + g * 128 + c * 4);
			min[c] = tm_load_f32(p->scale + g * 128 + 64 + c * 4);
			break;
		case FMT_W8_S:
			b = p->scale + g * 32 + c;
			u = p->super + g / 8 * 32 + c * 2;
			s[0][c] = tm_half(tm_load16(u)) * (float)(int8_t)b[0];
			s[1][c] = tm_half(tm_load16(u)) * (float)(int8_t)b[16];
			break;
		case FMT_W12:
			s[0][c] = tm_bits_float((uint32_t)p->scale[g * 16 + c] << 23);
			break;
		case FMT_W16_S:
			s[0][c] = tm_load_f32(p->scale + g * 128 + c * 4);
			s[1][c] = tm_load_f32(p->scale + g * 128 + 64 + c * 4);
			break;
		}
	}
}

// levels spreads group g into int16 [16 pairs][16 columns][2].
static void levels(const tm_panel *p, int g, int16_t w[TM_GROUP * TM_PANEL])
{
	enum { N = TM_GROUP * TM_PANEL };
	if (p->format >= FMT_W16) {
		memcpy(w, p->w + (size_t)g * N * 2, N * 2);
	} else if (p->format == FMT_W12) {
		for (int v = 0; v < 4; v++) {
			const uint8_t *b = p->w + (size_t)g * 768 + v * 192;
			int16_t *to = w + v * 128;
			for (int i = 0; i < 32; i++, b += 2) {
				const int x = tm_load16(b), y = tm_load16(b + 64), z = tm_load16(b + 128);
				to[i] = (int16_t)((int16_t)x >> 4);
				to[i + 32] = (int16_t)((int16_t)y >> 4);
				to[i + 64] = (int16_t)((int16_t)z >> 4);
				to[i + 96] = (int16_t)((int16_t)(uint16_t)(x << 12 | (y & 15) << 8 | (z & 15) << 4) >> 4);
			}
		}
	} else if (!tm_is_w4(p->format)) {
		const uint8_t *b = p->w + (size_t)g * N;
		for (int q = 0; q < TM_QUADS; q++)
			for (int i = 0; i < TM_PANEL * 4; i++)
				w[(TM_QUAD_PAIR(q) + i % 2 * 2) * 32 + i / 2] = (int8_t)b[q * TM_PANEL * 4 + i];
	} else {
		int below = p->format == FMT_W4_0 ? 8 : 0;
		for (int v = 0; v < 4; v++)
			for (int i = 0; i < 32; i++) {
				int word = tm_load16(p->w + (size_t)g * 256 + v * 64 + i * 2);
				for (int n = 0; n < 4; n++)
					w[(v * 4 + n) * 32 + i] = (int16_t)((word >> (4 * n) & 15) - below);
			}
	}
}

#if defined(__aarch64__)
// dots sets sum to the integer dots of the pairs [from, to) with one row.
static void dots(const int16_t *w, const uint8_t *rec, int width, int from, int to, int32_t sum[TM_PANEL])
{
	int32x4_t s0 = vdupq_n_s32(0), s1 = s0, s2 = s0, s3 = s0;
	for (int j = from; j < to; j++) {
		int16_t a[2];
		memcpy(a, rec + (size_t)j * width * 4, 4);
		int16x8x2_t lo = vld2q_s16(w + j * 32), hi = vld2q_s16(w + j * 32 + 16);
		for (int i = 0; i < 2; i++) {
			s0 = vmlal_n_s16(s0, vget_low_s16(lo.val[i]), a[i]);
			s1 = vmlal_high_n_s16(s1, lo.val[i], a[i]);
			s2 = vmlal_n_s16(s2, vget_low_s16(hi.val[i]), a[i]);
			s3 = vmlal_high_n_s16(s3, hi.val[i], a[i]);
		}
	}
	vst1q_s32(sum, s0);
	vst1q_s32(sum + 4, s1);
	vst1q_s32(sum + 8, s2);
	vst1q_s32(sum + 12, s3);
}
#else
static void dots(const int16_t *w, const uint8_t *rec, int width, int from, int to, int32_t sum[TM_PANEL])
{
	memset(sum, 0, TM_PANEL * sizeof *sum);
	for (int j = from; j < to; j++) {
		int16_t a[2];
		memcpy(a, rec + (size_t)j * width * 4, 4);
		for (int c = 0; c < TM_PANEL; c++)
			sum[c] += w[j * 32 + c * 2] * a[0] + w[j * 32 + c * 2 + 1] * a[1];
	}
}
#endif

// dot_group adds group g of one row to its 16 sums.
static void dot_group(const int16_t *w, const uint8_t *rec, int width, int halves,
                      float s[2][TM_PANEL], float acc[TM_PANEL])
{
	for (int h = 0; h < halves; h++) {
		int32_t sum[TM_PANEL];
		dots(w, rec, width, h * 8, halves == 2 ? h * 8 + 8 : TM_PAIRS, sum);
		for (int c = 0; c < TM_PANEL; c++)
			acc[c] = fmaf(s[h][c], (float)sum[c], acc[c]);
	}
}

static void dot_panel(const tm_panel *p, const uint8_t *tile, int width, float *out)
{
	int16_t w[TM_GROUP * TM_PANEL];
	float s[2][TM_PANEL], min[TM_PANEL];
	const uint8_t *rec = tile + width * 4;
	memset(out, 0, sizeof(float) * width * TM_PANEL);
	for (int g = 0; g < p->groups; g++, rec += (size_t)TM_WORDS * 4 * width) {
		levels(p, g, w);
		scales(p, g, s, min);
		for (int r = 0; r < width; r++) {
			float *acc = out + r * TM_PANEL;
			float asum = tm_load_f32(rec + (TM_PAIRS * width + r) * 4);
			if (tm_has_min(p->format))
				for (int c = 0; c < TM_PANEL; c++)
					acc[c] = fmaf(min[c], asum, acc[c]);
			dot_group(w, rec + r * 4, width, tm_has_halves(p->format) ? 2 : 1, s, acc);
		}
	}
	for (int r = 0; r < width; r++)
		for (int c = 0; c < TM_PANEL; c++)
			out[r * TM_PANEL + c] *= tm_load_f32(tile + r * 4);
}

static void dot(const tm_panel *p, int num, const uint8_t *tile, int width, float *out)
{
	for (int i = 0; i < num; i++)
		dot_panel(&p[i], tile, width, out + i * width * TM_PANEL);
}

static void widen(const tm_panel *p, uint8_t *dst)
{
	tm_panel to = tm_panel_at(tm_widened(p->format), p->k, dst);
	float s[2][TM_PANEL], min[TM_PANEL];
	for (int g = 0; g < p->groups; g++) {
		int16_t w[TM_GROUP * TM_PANEL];
		levels(p, g, w);
		memcpy((uint8_t *)to.w + (size_t)g * sizeof w, w, sizeof w);
		scales(p, g, s, min);
		uint8_t *scale = (uint8_t *)to.scale + (size_t)g * (to.format == FMT_W16 ? 64 : 128);
		memcpy(scale, s[0], 64);
		if (to.format != FMT_W16)
			memcpy(scale + 64, to.format == FMT_W16_M ? min : s[1], 64);
	}
}

// weights reads the 16 of one k of a float panel.
static void weights(const tm_panel *p, size_t k, float w[TM_PANEL])
{
	for (int c = 0; c < TM_PANEL; c++) {
		switch (p->format) {
		case FMT_F16: w[c] = tm_half(tm_load16(p->w + (k * TM_PANEL + c) * 2)); break;
		case FMT_BF16: w[c] = tm_bf16(tm_load16(p->w + (k / 2 * TM_PANEL + c) * 4 + k % 2 * 2)); break;
		default: w[c] = tm_load_f32(p->w + (k * TM_PANEL + c) * 4);
		}
	}
}

static void fdot(const tm_panel *p, int num, const float *tile, int width, float *out)
{
	memset(out, 0, sizeof(float) * num * width * TM_PANEL);
	for (int i = 0; i < num; i++, out += width * TM_PANEL)
		for (size_t k = 0; k < (size_t)p[i].k; k++) {
			float w[TM_PANEL];
			weights(&p[i], k, w);
			for (int r = 0; r < width; r++)
				for (int c = 0; c < TM_PANEL; c++)
					out[r * TM_PANEL + c] = fmaf(w[c], tile[k * width + r], out[r * TM_PANEL + c]);
		}
}

const tm_kernels tm_kernels_portable = {1, 1, quant, widen, dot, fdot};

// magnitudes returns the sum of those of a row, in the order in which vectors add it.
static float magnitudes(const float *x, int k)
{
	float sum[16] = {0};
	for (int i = 0; i < k; i++)
		sum[i % 16] += fabsf(x[i]);
	for (int n = 8; n > 0; n /= 2)
		for (int i = 0; i < n; i++)
			sum[i] += sum[i + n];
	return sum[0];
}

static void quant8(uint8_t *tile, int width, int lane, const float *row, int k)
{
	tm_outliers *o = tm_outliers_row(tm_q8_lists(tile, width, k), k, lane);
	const float bound = tm_outlier_bound(magnitudes(row, k), k);
	o->n = 0;
	for (int k0 = 0; k0 < k; k0 += TM_GROUP, tile += tm_q8_record(width)) {
		int32_t quads[TM_QUADS], sums[2] = {0};
		float scale, x[TM_GROUP];
		uint32_t mask = 0;
		for (int i = 0; i < TM_GROUP; i++)
			mask |= (uint32_t)(fabsf(row[k0 + i]) > bound) << i;
		mask = tm_list_outliers(o, k, k0, mask, row + k0);
		for (int i = 0; i < TM_GROUP; i++)
			x[i] = mask >> i & 1 ? 0 : row[k0 + i];
		const float inv = tm_scale8(greatest(x, TM_GROUP), &scale);
		for (int q = 0; q < TM_QUADS; q++) {
			int8_t b[4];
			for (int i = 0; i < 4; i++) {
				b[i] = inv ? (int8_t)rintf(x[TM_QUAD(q, i)] * inv) : 0;
				sums[q / 4] += b[i];
			}
			memcpy(&quads[q], b, 4);
		}
		tm_store8(tile, width, lane, quads, scale, sums[0], sums[1]);
	}
}

// spread8 turns a row's quads of a record into the pairs of an activation of 16 bits.
static void spread8(const uint8_t *rec, int width, int16_t a[TM_GROUP])
{
	for (int q = 0; q < TM_QUADS; q++)
		for (int i = 0; i < 4; i++)
			a[TM_QUAD(q, i)] = (int8_t)rec[q * width * 4 + i];
}

static void dot8_panel(const tm_panel *p, const uint8_t *rec, int width, float *out)
{
	int16_t w[TM_GROUP * TM_PANEL], a[TM_GROUP];
	float s[2][TM_PANEL], scaled[2][TM_PANEL], min[TM_PANEL];
	const int halves = tm_has_halves(p->format) ? 2 : 1;
	memset(out, 0, sizeof(float) * width * TM_PANEL);
	for (int g = 0; g < p->groups; g++, rec += (size_t)TM_WORDS8 * 4 * width) {
		levels(p, g, w);
		scales(p, g, s, min);
		for (int r = 0; r < width; r++) {
			float *acc = out + r * TM_PANEL;
			const float ascale = tm_load_f32(rec + (TM_SCALE8 * width + r) * 4);
			const float asum = tm_load_f32(rec + (TM_ASUM8 * width + r) * 4);
			if (tm_has_min(p->format))
				for (int c = 0; c < TM_PANEL; c++)
					acc[c] = fmaf(min[c], asum, acc[c]);
			for (int h = 0; h < halves; h++)
				for (int c = 0; c < TM_PANEL; c++)
					scaled[h][c] = s[h][c] * ascale;
			spread8(rec + r * 4, width, a);
			dot_group(w, (const uint8_t *)a, 1, halves, scaled, acc);
		}
	}
}

static void dot8(const tm_panel *p, int num, const uint8_t *tile, int width, float *out)
{
	for (int i = 0; i < num; i++)
		dot8_panel(&p[i], tile, width, out + i * width * TM_PANEL);
}

static void outliers_panel(const tm_panel *p, const tm_outliers *o, float *out)
{
	for (int i = 0; i < o->n; i++) {
		const int quad = o->at[i].quad, g = quad / TM_QUADS, k = TM_QUAD(quad % TM_QUADS, o->at[i].byte / 8);
		int16_t w[TM_GROUP * TM_PANEL];
		float s[2][TM_PANEL], min[TM_PANEL];
		levels(p, g, w);
		scales(p, g, s, min);
		for (int c = 0; c < TM_PANEL; c++) {
			const float scale = s[tm_has_halves(p->format) ? k / 16 : 0][c], level = w[k / 2 * 32 + c * 2 + k % 2];
			const float weight = tm_has_min(p->format) ? fmaf(scale, level, min[c]) : scale * level;
			out[c] = fmaf(weight, o->at[i].x, out[c]);
		}
	}
}

static void outliers(const tm_panel *p, int num, const tm_outliers *first, int width, float *out)
{
	for (int i = 0; i < num; i++)
		for (int r = 0; r < width; r++, out += TM_PANEL)
			outliers_panel(&p[i], tm_outliers_row(first, p->k, r), out);
}

const tm_kernels8 tm_kernels8_portable = {1, FMT_W16, quant8, widen, dot8, outliers};
