// Products with activations of 8 bits, see matmul.h.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#include <immintrin.h>
#include <math.h>

#include "matmul_avx512.h"

INLINE __m512i word(const int32_t *rec, const int i) { return _mm512_set1_epi32(rec[i]); }

// start sets the sums of R rows to what makes dots with unsigned bytes those with the
// levels of the format: half h of those that have halves.
INLINE void start(const int32_t *rec, const int R, const int format, const int h, __m512i *sum)
{
	UNROLL for (int r = 0; r < R; r++) {
		if (format == FMT_W4_0)
			sum[r] = word(rec, TM_BELOW8 * R + r);
		else if (tm_has_halves(format))
			sum[r] = word(rec, (TM_HALF8 + h) * R + r);
		else if (tm_has_min(format))
			sum[r] = _mm512_setzero_si512();
		else
			sum[r] = _mm512_slli_epi32(word(rec, TM_BELOW8 * R + r), 4);
	}
}

// bytes4 makes quads 2v and 2v+1 of 4-bit levels.
INLINE void bytes4(const uint8_t *w, const int v, __m512i quad[2])
{
	const __m512i low = _mm512_set1_epi8(0x0f), x = _mm512_loadu_si512(w + v * 64);
	quad[0] = _mm512_and_si512(x, low);
	quad[1] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
}

// bytes8 does so for 8-bit levels, which become unsigned.
INLINE void bytes8(const uint8_t *w, const int v, const int format, __m512i quad[2])
{
	UNROLL for (int i = 0; i < 2; i++) {
		quad[i] = _mm512_loadu_si512(w + v * 128 + i * 64);
		if (!tm_has_min(format))
			quad[i] = _mm512_xor_si512(quad[i], _mm512_set1_epi8((char)0x80));
	}
}

INLINE void bytes(const uint8_t *w, const int v, const int format, __m512i quad[2])
{
	if (tm_is_w4(format))
		bytes4(w, v, quad);
	else
		bytes8(w, v, format, quad);
}

// dots adds the quads [2*from, 2*to) of a packed group, in two chains where rows are
// too few to hide how long a product takes.
INLINE void dots(const uint8_t *w, const int32_t *rec, const int R, const int format, const int from, const int to,
                 __m512i *sum)
{
	__m512i odd[TM_TILE];
	UNROLL for (int r = 0; r < R; r++)
		odd[r] = _mm512_setzero_si512();
	UNROLL for (int v = from; v < to; v++) {
		__m512i quad[2];
		bytes(w, v, format, quad);
		UNROLL for (int r = 0; r < R; r++)
			sum[r] = _mm512_dpbusd_epi32(sum[r], quad[0], word(rec, 2 * v * R + r));
		UNROLL for (int r = 0; r < R; r++) {
			if (R < 4)
				odd[r] = _mm512_dpbusd_epi32(odd[r], quad[1], word(rec, (2 * v + 1) * R + r));
			else
				sum[r] = _mm512_dpbusd_epi32(sum[r], quad[1], word(rec, (2 * v + 1) * R + r));
		}
	}
	if (R < 4)
		UNROLL for (int r = 0; r < R; r++)
			sum[r] = _mm512_add_epi32(sum[r], odd[r]);
}

INLINE void add_dots(__m512 *acc, const int32_t *rec, const __m512i *sum, __m512 scale, const int R)
{
	const float *ascale = (const float *)rec + TM_SCALE8 * R;
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(ascale[r])), _mm512_cvtepi32_ps(sum[r]), acc[r]);
}

INLINE void add_min(__m512 *acc, const int32_t *rec, __m512 min, const int R)
{
	const float *asum = (const float *)rec + TM_ASUM8 * R;
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(asum[r]), acc[r]);
}

// dot_packed multiplies a panel as it lies in memory with R rows.
INLINE void dot_packed(const tm_panel *p, const int32_t *rec, float *out, const int format, const int R)
{
	__m512 acc[TM_TILE];
	__m512i sum[TM_TILE];
	const uint8_t *w = p->w;
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_setzero_ps();
	for (size_t g = 0; g < (size_t)p->groups; g++, rec += TM_WORDS8 * R, w += tm_level_bytes(format)) {
		fetch(p, g, format);
		if (tm_has_min(format))
			add_min(acc, rec, group_min(p, format, g), R);
		const int halves = tm_has_halves(format) ? 2 : 1, step = 4 / halves;
		UNROLL for (int h = 0; h < halves; h++) {
			start(rec, R, format, h, sum);
			dots(w, rec, R, format, h * step, h * step + step, sum);
			add_dots(acc, rec, sum, group_scale(p, format, g, h), R);
		}
	}
	UNROLL for (int r = 0; r < R; r++)
		_mm512_storeu_ps(out + r * TM_PANEL, acc[r]);
}

// dots_wide adds the quads [from, to) of P widened panels with R rows.
INLINE void dots_wide(const uint8_t *const *w, const int32_t *rec, const int P, const int R,
                      const int from, const int to, __m512i sum[][TM_TILE])
{
	UNROLL for (int q = from; q < to; q++) {
		__m512i lev[2];
		UNROLL for (int i = 0; i < P; i++)
			lev[i] = _mm512_loadu_si512(w[i] + q * 64);
		UNROLL for (int r = 0; r < R; r++) {
			__m512i a = word(rec, q * R + r);
			UNROLL for (int i = 0; i < P; i++)
				sum[i][r] = _mm512_dpbusd_epi32(sum[i][r], lev[i], a);
		}
	}
}

// dot_wide multiplies P widened panels with R rows.
INLINE void dot_wide(const tm_panel *p, const int32_t *rec, float *out, const int format, const int P, const int R)
{
	__m512 acc[2][TM_TILE];
	__m512i sum[2][TM_TILE];
	const uint8_t *w[2] = {p[0].w, p[P - 1].w};
	UNROLL for (int i = 0; i < P; i++)
		UNROLL for (int r = 0; r < R; r++)
			acc[i][r] = _mm512_setzero_ps();
	for (size_t g = 0; g < (size_t)p->groups; g++, rec += TM_WORDS8 * R, w[0] += 512, w[1] += 512) {
		if (tm_has_min(format))
			UNROLL for (int i = 0; i < P; i++)
				add_min(acc[i], rec, group_min(&p[i], format, g), R);
		const int halves = tm_has_halves(format) ? 2 : 1, step = TM_QUADS / halves;
		UNROLL for (int h = 0; h < halves; h++) {
			UNROLL for (int i = 0; i < P; i++)
				start(rec, R, format, h, sum[i]);
			dots_wide(w, rec, P, R, h * step, h * step + step, sum);
			UNROLL for (int i = 0; i < P; i++)
				add_dots(acc[i], rec, sum[i], group_scale(&p[i], format, g, h), R);
		}
	}
	UNROLL for (int i = 0; i < P; i++)
		UNROLL for (int r = 0; r < R; r++)
			_mm512_storeu_ps(out + (i * R + r) * TM_PANEL, acc[i][r]);
}

// One function for every format and number of rows, so that each is compiled
// with its sums in registers.
typedef void dot_fn(const tm_panel *p, const int32_t *tile, float *out);
#define PACKED(F, R) \
	static void packed_##F##_##R(const tm_panel *p, const int32_t *t, float *o) { dot_packed(p, t, o, FMT_##F, R); }
#define WIDE(F, P, R) \
	static void wide_##F##_##P##_##R(const tm_panel *p, const int32_t *t, float *o) { dot_wide(p, t, o, FMT_##F, P, R); }
#define PACKED_ROWS(F) PACKED(F, 1) PACKED(F, 2) PACKED(F, 3) PACKED(F, 4) PACKED(F, 5) PACKED(F, 6) PACKED(F, 7) PACKED(F, 8)
#define WIDE_ROWS(F, P) WIDE(F, P, 1) WIDE(F, P, 2) WIDE(F, P, 3) WIDE(F, P, 4) WIDE(F, P, 5) WIDE(F, P, 6)
#define PACKED_TABLE(F) [FMT_##F] = {packed_##F##_1, packed_##F##_2, packed_##F##_3, \
	packed_##F##_4, packed_##F##_5, packed_##F##_6, packed_##F##_7, packed_##F##_8}
#define WIDE_TABLE(F, P) [FMT_##F] = {wide_##F##_##P##_1, wide_##F##_##P##_2, wide_##F##_##P##_3, \
	wide_##F##_##P##_4, wide_##F##_##P##_5, wide_##F##_##P##_6}
TM_BYTE_FORMATS(PACKED_ROWS)
WIDE_ROWS(B8, 1) WIDE_ROWS(B8_M, 1) WIDE_ROWS(B8_S, 1)
WIDE_ROWS(B8, 2) WIDE_ROWS(B8_M, 2) WIDE_ROWS(B8_S, 2)

static void dot(const tm_panel *p, int num, const uint8_t *tile, int width, float *out)
{
	static dot_fn *const one[][TM_TILE] = {
		PACKED_TABLE(W4_0), PACKED_TABLE(W4_1), PACKED_TABLE(W4_K), PACKED_TABLE(W8), PACKED_TABLE(W8_1),
		PACKED_TABLE(W8_K), PACKED_TABLE(W8_S), WIDE_TABLE(B8, 1), WIDE_TABLE(B8_M, 1), WIDE_TABLE(B8_S, 1),
	};
	static dot_fn *const two[][TM_TILE] = {WIDE_TABLE(B8, 2), WIDE_TABLE(B8_M, 2), WIDE_TABLE(B8_S, 2)};
	(num == 2 ? two : one)[p->format][width - 1](p, (const int32_t *)tile, out);
}

INLINE void widen_format(const tm_panel *p, uint8_t *dst, const int format)
{
	const tm_panel to = tm_panel_at(FMT_B8 + tm_widened(format) - FMT_W16, p->k, dst);
	uint8_t *w = (uint8_t *)to.w, *s = (uint8_t *)to.scale;
	for (size_t g = 0; g < (size_t)p->groups; g++, w += 512) {
		fetch(p, g, format);
		_mm512_storeu_ps(s, group_scale(p, format, g, 0));
		if (tm_has_min(format))
			_mm512_storeu_ps(s + 64, group_min(p, format, g));
		if (tm_has_halves(format))
			_mm512_storeu_ps(s + 64, group_scale(p, format, g, 1));
		s += tm_has_min(format) || tm_has_halves(format) ? 128 : 64;
		UNROLL for (int v = 0; v < 4; v++) {
			__m512i quad[2];
			bytes(p->w + g * tm_level_bytes(format), v, format, quad);
			UNROLL for (int i = 0; i < 2; i++) {
				if (format == FMT_W4_0)
					quad[i] = _mm512_add_epi8(quad[i], _mm512_set1_epi8(128 - 8));
				_mm512_storeu_si512(w + (2 * v + i) * 64, quad[i]);
			}
		}
	}
}

static void widen(const tm_panel *p, uint8_t *dst)
{
#define WIDEN(F) case FMT_##F: widen_format(p, dst, FMT_##F); break;
	switch (p->format) { TM_BYTE_FORMATS(WIDEN) }
}

static void quant(uint8_t *tile, int width, int lane, const float *row, int k)
{
	const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
	tm_outliers *o = tm_outliers_row(tm_q8_lists(tile, width, k), k, lane);
	const float bound = tm_outlier_bound(magnitudes(row, k), k);
	o->n = 0;
	for (int k0 = 0; k0 < k; k0 += TM_GROUP, tile += tm_q8_record(width)) {
		int32_t quads[TM_QUADS] __attribute__((aligned(32))) = {0}, sums[8] __attribute__((aligned(32))) = {0};
		float scale;
		__m512 x = _mm512_loadu_ps(row + k0), y = _mm512_loadu_ps(row + k0 + 16);
		set_apart(o, k, k0, row + k0, bound, &x, &y);
		const float inv = tm_scale8(top_of(x, y), &scale);
		if (inv) {
			const __m512 m = _mm512_set1_ps(inv);
			const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(x, m)), b = _mm512_cvtps_epi32(_mm512_mul_ps(y, m));
			const __m256i q = _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
			__m256i s = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
			s = _mm256_hadd_epi32(s, s);
			_mm256_store_si256((__m256i *)sums, _mm256_hadd_epi32(s, s));
			_mm256_store_si256((__m256i *)quads, _mm256_shuffle_epi8(q, order));
		}
		tm_store8(tile, width, lane, quads, scale, sums[0], sums[4]);
	}
}

// weights makes the weights of an outlier's k, of all columns.
INLINE __m512 weights(const tm_panel *p, const int format, const tm_outlier *o)
{
	const size_t quad = (size_t)o->quad, g = quad / TM_QUADS;
	const int half = tm_has_halves(format) ? (int)(quad % TM_QUADS / 4) : 0;
	__m512 level;
	if (tm_is_w4(format)) {
		// The low four bits of a lane choose one of 16 floats.
		const float below = format == FMT_W4_0 ? 8 : 0;
		const __m512 floats = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(below));
		level = _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_loadu_si512(p->w + quad / 2 * 64), _mm512_set1_epi32(o->nibble)), floats);
	} else {
		__m512i x = _mm512_srlv_epi32(_mm512_loadu_si512(p->w + quad * 64), _mm512_set1_epi32(o->byte));
		if (format < FMT_B8)
			x = _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24);
		else
			x = _mm512_sub_epi32(_mm512_and_si512(x, _mm512_set1_epi32(255)), _mm512_set1_epi32(tm_has_min(format) ? 0 : 128));
		level = _mm512_cvtepi32_ps(x);
	}
	if (tm_has_min(format))
		return _mm512_fmadd_ps(group_scale(p, format, g, 0), level, group_min(p, format, g));
	return _mm512_mul_ps(group_scale(p, format, g, half), level);
}

INLINE void outliers_format(const tm_panel *p, const tm_outliers *o, int width, float *out, const int format, const int P)
{
	for (int r = 0; r < width; r++, out += TM_PANEL, o = tm_outliers_row(o, p->k, 1)) {
		if (!o->n)
			continue;
		__m512 acc[2];
		UNROLL for (int i = 0; i < P; i++)
			acc[i] = _mm512_loadu_ps(out + i * width * TM_PANEL);
		for (int e = 0; e < o->n; e++) {
			const __m512 x = _mm512_set1_ps(o->at[e].x);
			UNROLL for (int i = 0; i < P; i++)
				acc[i] = _mm512_fmadd_ps(weights(&p[i], format, &o->at[e]), x, acc[i]);
		}
		UNROLL for (int i = 0; i < P; i++)
			_mm512_storeu_ps(out + i * width * TM_PANEL, acc[i]);
	}
}

static void outliers(const tm_panel *p, int num, const tm_outliers *first, int width, float *out)
{
#define OUTLIERS(F) case FMT_##F: outliers_format(p, first, width, out, FMT_##F, 1); break;
#define OUTLIERS_TWO(F) case FMT_##F: outliers_format(p, first, width, out, FMT_##F, 2); break;
	if (num == 2)
		switch (p->format) { OUTLIERS_TWO(B8) OUTLIERS_TWO(B8_M) OUTLIERS_TWO(B8_S) }
	else
		switch (p->format) { TM_BYTE_FORMATS(OUTLIERS) OUTLIERS(B8) OUTLIERS(B8_M) OUTLIERS(B8_S) }
}

const tm_kernels8 tm_kernels8_avx512 = {2, FMT_B8, quant, widen, dot, outliers};
#endif
