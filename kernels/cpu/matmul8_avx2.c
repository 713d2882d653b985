// Products with activations of 8 bits, see matmul.h.
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")

#include <immintrin.h>
#include <math.h>

#include "matmul_avx2.h"

INLINE __m256i word(const int32_t *rec, const int i) { return _mm256_set1_epi32(rec[i]); }

// dots4 sets the sums of R rows to the dots with a group of 4-bit levels. Those of a
// lane of 16 bits are at most 16 * 15 * 127, which fits.
INLINE void dots4(const uint8_t *w, const int32_t *rec, int width, const int format, const int R, __m256i sum[][2])
{
	const __m256i low = _mm256_set1_epi8(15);
	UNROLL for (int r = 0; r < R; r++)
		sum[r][0] = sum[r][1] = _mm256_setzero_si256();
	UNROLL for (int q = 0; q < TM_QUADS; q++)
		UNROLL for (int s = 0; s < 2; s++) {
			__m256i x = _mm256_loadu_si256((const __m256i *)(w + q / 2 * 64 + s * 32));
			x = _mm256_and_si256(q % 2 ? _mm256_srli_epi16(x, 4) : x, low);
			UNROLL for (int r = 0; r < R; r++)
				sum[r][s] = _mm256_add_epi16(sum[r][s], _mm256_maddubs_epi16(x, word(rec, q * width + r)));
		}
	UNROLL for (int r = 0; r < R; r++)
		UNROLL for (int s = 0; s < 2; s++) {
			sum[r][s] = _mm256_madd_epi16(sum[r][s], _mm256_set1_epi16(1));
			if (format == FMT_W4_0)
				sum[r][s] = _mm256_add_epi32(sum[r][s], word(rec, TM_BELOW8 * width + r));
		}
}

// dots8 does so for the quads [from, to) of 8-bit levels. The product of bytes
// wants one of them unsigned: signed ones give their sign to the activations.
INLINE void dots8(const uint8_t *w, const int32_t *rec, int width, const int format, const int R, const int from,
                  const int to, __m256i sum[][2])
{
	UNROLL for (int r = 0; r < R; r++)
		sum[r][0] = sum[r][1] = _mm256_setzero_si256();
	UNROLL for (int q = from; q < to; q++)
		UNROLL for (int s = 0; s < 2; s++) {
			const __m256i x = _mm256_loadu_si256((const __m256i *)(w + q * 64 + s * 32));
			const __m256i size = tm_has_min(format) ? x : _mm256_abs_epi8(x);
			UNROLL for (int r = 0; r < R; r++) {
				__m256i a = word(rec, q * width + r);
				if (!tm_has_min(format))
					a = _mm256_sign_epi8(a, x);
				a = _mm256_madd_epi16(_mm256_maddubs_epi16(size, a), _mm256_set1_epi16(1));
				sum[r][s] = _mm256_add_epi32(sum[r][s], a);
			}
		}
}

// add_group adds group g of one panel to the sums of R rows of a tile.
INLINE void add_group(const tm_panel *p, const uint8_t *w, const int32_t *rec, int width,
                      const int format, const int R, size_t g, __m256 acc[][2])
{
	const float *ascale = (const float *)rec + TM_SCALE8 * width, *asum = (const float *)rec + TM_ASUM8 * width;
	if (tm_has_min(format))
		UNROLL for (int s = 0; s < 2; s++) {
			const __m256 min = group_min(p, format, g, s);
			UNROLL for (int r = 0; r < R; r++)
				acc[r][s] = _mm256_fmadd_ps(min, _mm256_set1_ps(asum[r]), acc[r][s]);
		}
	const int halves = tm_has_halves(format) ? 2 : 1, step = TM_QUADS / halves;
	UNROLL for (int h = 0; h < halves; h++) {
		__m256i sum[ROWS][2];
		if (tm_is_w4(format))
			dots4(w, rec, width, format, R, sum);
		else
			dots8(w, rec, width, format, R, h * step, h * step + step, sum);
		UNROLL for (int s = 0; s < 2; s++) {
			const __m256 scale = group_scale(p, format, g, h, s);
			UNROLL for (int r = 0; r < R; r++)
				acc[r][s] = _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_set1_ps(ascale[r])),
				                            _mm256_cvtepi32_ps(sum[r][s]), acc[r][s]);
		}
	}
}

// dot_rows multiplies a panel with rows [lane, lane+R) of a tile.
INLINE void dot_rows(const tm_panel *p, const int32_t *tile, int width, int lane, float *out, const int format, const int R)
{
	__m256 acc[ROWS][2];
	const int32_t *rec = tile + lane;
	const uint8_t *w = p->w;
	UNROLL for (int r = 0; r < R; r++)
		acc[r][0] = acc[r][1] = _mm256_setzero_ps();
	for (size_t g = 0; g < (size_t)p->groups; g++, rec += TM_WORDS8 * width, w += tm_level_bytes(format)) {
		fetch(p, g, format);
		add_group(p, w, rec, width, format, R, g, acc);
	}
	UNROLL for (int r = 0; r < R; r++)
		UNROLL for (int s = 0; s < 2; s++)
			_mm256_storeu_ps(out + (lane + r) * TM_PANEL + s * 8, acc[r][s]);
}

INLINE void dot_format(const tm_panel *p, const int32_t *tile, int width, float *out, const int format)
{
	int lane = 0;
	for (; width - lane >= 3; lane += 3)
		dot_rows(p, tile, width, lane, out, format, 3);
	if (width - lane == 2)
		dot_rows(p, tile, width, lane, out, format, 2);
	else if (width - lane == 1)
		dot_rows(p, tile, width, lane, out, format, 1);
}

#define DOT(F) \
	static void dot_##F(const tm_panel *p, const int32_t *t, int width, float *o) { dot_format(p, t, width, o, FMT_##F); }
TM_BYTE_FORMATS(DOT)

static void dot(const tm_panel *p, int num, const uint8_t *tile, int width, float *out)
{
	static void (*const by_format[])(const tm_panel *, const int32_t *, int, float *) = {
		[FMT_W4_0] = dot_W4_0, [FMT_W4_1] = dot_W4_1, [FMT_W4_K] = dot_W4_K,
		[FMT_W8] = dot_W8, [FMT_W8_1] = dot_W8_1, [FMT_W8_K] = dot_W8_K, [FMT_W8_S] = dot_W8_S,
	};
	for (int i = 0; i < num; i++)
		by_format[p[i].format](&p[i], (const int32_t *)tile, width, out + i * width * TM_PANEL);
}

static int32_t total(__m256i pairs)
{
	int32_t sums[8], sum = 0;
	_mm256_storeu_si256((__m256i *)sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
	for (int i = 0; i < 8; i++)
		sum += sums[i];
	return sum;
}

// set_apart lists the outliers of the group at k0 and copies it with zeros for them.
static void set_apart(tm_outliers *o, int k, int k0, const float *group, float bound, float rest[TM_GROUP])
{
	const __m256 sign = _mm256_set1_ps(-0.0f), most = _mm256_set1_ps(bound);
	uint32_t mask = 0;
	for (int i = 0; i < TM_GROUP; i += 8) {
		const __m256 size = _mm256_andnot_ps(sign, _mm256_loadu_ps(group + i));
		mask |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(size, most, _CMP_GT_OQ)) << i;
	}
	memcpy(rest, group, TM_GROUP * sizeof *rest);
	for (mask = tm_list_outliers(o, k, k0, mask, group); mask; mask &= mask - 1)
		rest[__builtin_ctz(mask)] = 0;
}

static void quant(uint8_t *tile, int width, int lane, const float *row, int k)
{
	const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
	tm_outliers *o = tm_outliers_row(tm_q8_lists(tile, width, k), k, lane);
	const float bound = tm_outlier_bound(magnitudes(row, k), k);
	o->n = 0;
	for (int k0 = 0; k0 < k; k0 += TM_GROUP, tile += tm_q8_record(width)) {
		int32_t quads[TM_QUADS] = {0}, low = 0, high = 0;
		const float *x = row + k0;
		float scale, rest[TM_GROUP];
		uint32_t top = row_max(x, TM_GROUP);
		if (tm_bits_float(top) > bound) {
			set_apart(o, k, k0, x, bound, rest);
			x = rest;
			top = row_max(x, TM_GROUP);
		}
		const float inv = tm_scale8(top, &scale);
		if (inv) {
			const __m256i a = levels16(x, _mm256_set1_ps(inv)), b = levels16(x + 16, _mm256_set1_ps(inv));
			const __m256i q = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
			_mm256_storeu_si256((__m256i *)quads, _mm256_shuffle_epi8(q, order));
			low = total(a);
			high = total(b);
		}
		tm_store8(tile, width, lane, quads, scale, low, high);
	}
}

// weights makes the weights of an outlier's k, of 8 columns.
INLINE __m256 weights(const tm_panel *p, const int format, const tm_outlier *o, const int side)
{
	const size_t quad = (size_t)o->quad, g = quad / TM_QUADS;
	__m256i x = _mm256_loadu_si256((const __m256i *)(p->w + (tm_is_w4(format) ? quad / 2 : quad) * 64 + side * 32));
	if (tm_is_w4(format)) {
		x = _mm256_and_si256(_mm256_srlv_epi32(x, _mm256_set1_epi32(o->nibble)), _mm256_set1_epi32(15));
		x = _mm256_sub_epi32(x, _mm256_set1_epi32(format == FMT_W4_0 ? 8 : 0));
	} else {
		x = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_srlv_epi32(x, _mm256_set1_epi32(o->byte)), 24), 24);
	}
	const __m256 scale = group_scale(p, format, g, tm_has_halves(format) ? (int)(quad % TM_QUADS / 4) : 0, side);
	if (tm_has_min(format))
		return _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(x), group_min(p, format, g, side));
	return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(x));
}

INLINE void outliers_format(const tm_panel *p, const tm_outliers *o, int width, float *out, const int format)
{
	for (int r = 0; r < width; r++, out += TM_PANEL, o = tm_outliers_row(o, p->k, 1))
		UNROLL for (int s = 0; s < 2; s++) {
			__m256 acc = _mm256_loadu_ps(out + s * 8);
			for (int e = 0; e < o->n; e++)
				acc = _mm256_fmadd_ps(weights(p, format, &o->at[e], s), _mm256_set1_ps(o->at[e].x), acc);
			_mm256_storeu_ps(out + s * 8, acc);
		}
}

static void outliers(const tm_panel *p, int num, const tm_outliers *first, int width, float *out)
{
#define OUTLIERS(F) case FMT_##F: outliers_format(p, first, width, out, FMT_##F); break;
	for (int i = 0; i < num; i++, p++, out += width * TM_PANEL)
		switch (p->format) { TM_BYTE_FORMATS(OUTLIERS) }
}

// Widened panels would save little: rows are too few at once.
const tm_kernels8 tm_kernels8_avx2 = {.run_wide = 1, .quant = quant, .dot = dot, .outliers = outliers};
#endif
