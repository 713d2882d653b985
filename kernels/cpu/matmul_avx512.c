#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#include <immintrin.h>
#include <math.h>

#include "matmul_avx512.h"

INLINE __m512i pair(const int32_t *rec, const int i) { return _mm512_set1_epi32(rec[i]); }

// dots_w4 sets sum[r] to the integer dots of group g with R rows. The odd
// nibbles of a lane are used in place, 16 times too large, and kept apart.
INLINE void dots_w4(const uint8_t *w, const int32_t *rec, const int R, const int format, __m512i *sum)
{
	const __m512i low = _mm512_set1_epi16(0x0f), high = _mm512_set1_epi16(0xf0);
	__m512i odd[TM_TILE];
	UNROLL for (int r = 0; r < R; r++) {
		odd[r] = _mm512_setzero_si512();
		sum[r] = format == FMT_W4_0 ? pair(rec, (TM_PAIRS + 1) * R + r) : _mm512_setzero_si512();
	}
	UNROLL for (int v = 0; v < 4; v++) {
		__m512i x = _mm512_loadu_si512(w + v * 64), y = _mm512_srli_epi16(x, 8);
		__m512i w0 = _mm512_and_si512(x, low), w1 = _mm512_and_si512(x, high);
		__m512i w2 = _mm512_and_si512(y, low), w3 = _mm512_and_si512(y, high);
		UNROLL for (int r = 0; r < R; r++) {
			sum[r] = _mm512_dpwssd_epi32(sum[r], w0, pair(rec, (v * 4 + 0) * R + r));
			odd[r] = _mm512_dpwssd_epi32(odd[r], w1, pair(rec, (v * 4 + 1) * R + r));
			sum[r] = _mm512_dpwssd_epi32(sum[r], w2, pair(rec, (v * 4 + 2) * R + r));
			odd[r] = _mm512_dpwssd_epi32(odd[r], w3, pair(rec, (v * 4 + 3) * R + r));
		}
	}
	UNROLL for (int r = 0; r < R; r++)
		sum[r] = _mm512_add_epi32(sum[r], _mm512_srai_epi32(odd[r], 4));
}

// levels8 makes the two pairs of quad q of 8-bit levels.
INLINE void levels8(const uint8_t *w, const int q, __m512i lev[2])
{
	const __m512i x = _mm512_loadu_si512(w + q * 64);
	lev[0] = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
	lev[1] = _mm512_srai_epi16(x, 8);
}

// dots_w8 does so for the quads [from, to) of 8-bit levels, in two chains.
INLINE void dots_w8(const uint8_t *w, const int32_t *rec, const int R, const int from, const int to, __m512i *sum)
{
	__m512i odd[TM_TILE];
	UNROLL for (int r = 0; r < R; r++)
		sum[r] = odd[r] = _mm512_setzero_si512();
	UNROLL for (int q = from; q < to; q++) {
		__m512i lev[2];
		levels8(w, q, lev);
		UNROLL for (int r = 0; r < R; r++) {
			sum[r] = _mm512_dpwssd_epi32(sum[r], lev[0], pair(rec, TM_QUAD_PAIR(q) * R + r));
			odd[r] = _mm512_dpwssd_epi32(odd[r], lev[1], pair(rec, (TM_QUAD_PAIR(q) + 2) * R + r));
		}
	}
	UNROLL for (int r = 0; r < R; r++)
		sum[r] = _mm512_add_epi32(sum[r], odd[r]);
}

// levels12 rebuilds four vectors of 16-bit levels.
INLINE void levels12(const uint8_t *w, __m512i lev[4])
{
	const __m512i x = _mm512_loadu_si512(w), y = _mm512_loadu_si512(w + 64), z = _mm512_loadu_si512(w + 128);
	const int a_or_b_and_c = 0xf8;
	__m512i last = _mm512_slli_epi16(x, 12);
	last = _mm512_ternarylogic_epi32(last, _mm512_slli_epi16(y, 8), _mm512_set1_epi16(0xf00), a_or_b_and_c);
	last = _mm512_ternarylogic_epi32(last, _mm512_slli_epi16(z, 4), _mm512_set1_epi16(0xf0), a_or_b_and_c);
	lev[0] = _mm512_srai_epi16(x, 4);
	lev[1] = _mm512_srai_epi16(y, 4);
	lev[2] = _mm512_srai_epi16(z, 4);
	lev[3] = _mm512_srai_epi16(last, 4);
}

// dots_w12 does so for 12-bit levels.
INLINE void dots_w12(const uint8_t *w, const int32_t *rec, const int R, __m512i *sum)
{
	__m512i odd[TM_TILE];
	UNROLL for (int r = 0; r < R; r++)
		sum[r] = odd[r] = _mm512_setzero_si512();
	UNROLL for (int v = 0; v < TM_PAIRS; v += 4) {
		__m512i lev[4];
		levels12(w + v * 48, lev);
		UNROLL for (int i = 0; i < 4; i += 2)
			UNROLL for (int r = 0; r < R; r++) {
				sum[r] = _mm512_dpwssd_epi32(sum[r], lev[i], pair(rec, (v + i) * R + r));
				odd[r] = _mm512_dpwssd_epi32(odd[r], lev[i + 1], pair(rec, (v + i + 1) * R + r));
			}
	}
	UNROLL for (int r = 0; r < R; r++)
		sum[r] = _mm512_add_epi32(sum[r], odd[r]);
}

INLINE void add_dots(__m512 *acc, const __m512i *sum, __m512 scale, const int R)
{
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[r]), acc[r]);
}

INLINE void add_min(__m512 *acc, const int32_t *rec, __m512 min, const int R)
{
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(((const float *)rec)[TM_PAIRS * R + r]), acc[r]);
}

INLINE void finish(const __m512 *acc, const int32_t *tile, float *out, const int R)
{
	UNROLL for (int r = 0; r < R; r++)
		_mm512_storeu_ps(out + r * TM_PANEL, _mm512_mul_ps(acc[r], _mm512_set1_ps(((const float *)tile)[r])));
}

// dot_packed multiplies a panel as it lies in memory with R rows.
INLINE void dot_packed(const tm_panel *p, const int32_t *tile, float *out, const int format, const int R)
{
	__m512 acc[TM_TILE];
	__m512i sum[TM_TILE];
	const int32_t *rec = tile + R;
	const uint8_t *w = p->w;
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_setzero_ps();
	for (size_t g = 0; g < (size_t)p->groups; g++, rec += TM_WORDS * R, w += tm_level_bytes(format)) {
		fetch(p, g, format);
		if (tm_has_min(format))
			add_min(acc, rec, group_min(p, format, g), R);
		if (tm_has_halves(format)) {
			dots_w8(w, rec, R, 0, TM_QUADS / 2, sum);
			add_dots(acc, sum, group_scale(p, format, g, 0), R);
			dots_w8(w, rec, R, TM_QUADS / 2, TM_QUADS, sum);
			add_dots(acc, sum, group_scale(p, format, g, 1), R);
			continue;
		}
		if (tm_is_w4(format))
			dots_w4(w, rec, R, format, sum);
		else if (format == FMT_W12)
			dots_w12(w, rec, R, sum);
		else
			dots_w8(w, rec, R, 0, TM_QUADS, sum);
		add_dots(acc, sum, group_scale(p, format, g, 0), R);
	}
	finish(acc, tile, out, R);
}

// dots_wide computes the pairs [from, to) of P widened panels with R rows.
INLINE void dots_wide(const uint8_t *const *w, const int32_t *rec, const int P, const int R,
                      const int from, const int to, __m512i sum[][TM_TILE])
{
	UNROLL for (int i = 0; i < P; i++)
		UNROLL for (int r = 0; r < R; r++)
			sum[i][r] = _mm512_setzero_si512();
	UNROLL for (int j = from; j < to; j++) {
		__m512i lev[2];
		UNROLL for (int i = 0; i < P; i++)
			lev[i] = _mm512_loadu_si512(w[i] + j * 64);
		UNROLL for (int r = 0; r < R; r++) {
			__m512i a = pair(rec, j * R + r);
			UNROLL for (int i = 0; i < P; i++)
				sum[i][r] = _mm512_dpwssd_epi32(sum[i][r], lev[i], a);
		}
	}
}

// dot_wide multiplies P widened panels with R rows.
INLINE void dot_wide(const tm_panel *p, const int32_t *tile, float *out, const int format, const int P, const int R)
{
	__m512 acc[2][TM_TILE];
	__m512i sum[2][TM_TILE];
	const int32_t *rec = tile + R;
	const uint8_t *w[2] = {p[0].w, p[P - 1].w};
	UNROLL for (int i = 0; i < P; i++)
		UNROLL for (int r = 0; r < R; r++)
			acc[i][r] = _mm512_setzero_ps();
	for (size_t g = 0; g < (size_t)p->groups; g++, rec += TM_WORDS * R, w[0] += 1024, w[1] += 1024) {
		if (tm_has_min(format))
			UNROLL for (int i = 0; i < P; i++)
				add_min(acc[i], rec, group_min(&p[i], format, g), R);
		const int step = tm_has_halves(format) ? TM_PAIRS / 2 : TM_PAIRS;
		for (int h = 0; h < TM_PAIRS / step; h++) {
			dots_wide(w, rec, P, R, h * step, h * step + step, sum);
			UNROLL for (int i = 0; i < P; i++)
				add_dots(acc[i], sum[i], group_scale(&p[i], format, g, h), R);
		}
	}
	UNROLL for (int i = 0; i < P; i++)
		finish(acc[i], tile, out + i * R * TM_PANEL, R);
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
TM_BYTE_FORMATS(PACKED_ROWS) PACKED_ROWS(W12)
WIDE_ROWS(W16, 1) WIDE_ROWS(W16_M, 1) WIDE_ROWS(W16_S, 1)
WIDE_ROWS(W16, 2) WIDE_ROWS(W16_M, 2) WIDE_ROWS(W16_S, 2)

static void dot(const tm_panel *p, int num, const uint8_t *tile, int width, float *out)
{
	static dot_fn *const one[][TM_TILE] = {
		PACKED_TABLE(W4_0), PACKED_TABLE(W4_1), PACKED_TABLE(W4_K), PACKED_TABLE(W8), PACKED_TABLE(W8_1),
		PACKED_TABLE(W8_K), PACKED_TABLE(W8_S), PACKED_TABLE(W12),
		WIDE_TABLE(W16, 1), WIDE_TABLE(W16_M, 1), WIDE_TABLE(W16_S, 1),
	};
	static dot_fn *const two[][TM_TILE] = {WIDE_TABLE(W16, 2), WIDE_TABLE(W16_M, 2), WIDE_TABLE(W16_S, 2)};
	(num == 2 ? two : one)[p->format][width - 1](p, (const int32_t *)tile, out);
}

static void widen(const tm_panel *p, uint8_t *dst)
{
	const __m512i low = _mm512_set1_epi16(15), below = _mm512_set1_epi16(p->format == FMT_W4_0 ? 8 : 0);
	tm_panel to = tm_panel_at(tm_widened(p->format), p->k, dst);
	uint8_t *w = (uint8_t *)to.w, *s = (uint8_t *)to.scale;
	for (size_t g = 0; g < (size_t)p->groups; g++, w += 1024) {
		fetch(p, g, p->format);
		_mm512_storeu_ps(s, group_scale(p, p->format, g, 0));
		if (to.format == FMT_W16_M)
			_mm512_storeu_ps(s + 64, group_min(p, p->format, g));
		if (to.format == FMT_W16_S)
			_mm512_storeu_ps(s + 64, group_scale(p, p->format, g, 1));
		s += to.format == FMT_W16 ? 64 : 128;
		if (p->format == FMT_W12) {
			for (int v = 0; v < 4; v++) {
				__m512i lev[4];
				levels12(p->w + g * 768 + v * 192, lev);
				for (int i = 0; i < 4; i++)
					_mm512_storeu_si512(w + (v * 4 + i) * 64, lev[i]);
			}
			continue;
		}
		if (!tm_is_w4(p->format)) {
			for (int q = 0; q < TM_QUADS; q++) {
				__m512i lev[2];
				levels8(p->w + g * 512, q, lev);
				for (int i = 0; i < 2; i++)
					_mm512_storeu_si512(w + (TM_QUAD_PAIR(q) + 2 * i) * 64, lev[i]);
			}
			continue;
		}
		for (int v = 0; v < 4; v++) {
			__m512i x = _mm512_loadu_si512(p->w + g * 256 + v * 64);
			for (int n = 0; n < 4; n++, x = _mm512_srli_epi16(x, 4))
				_mm512_storeu_si512(w + (v * 4 + n) * 64, _mm512_sub_epi16(_mm512_and_si512(x, low), below));
		}
	}
}

static void quant(uint8_t *tile, int width, int lane, const float *x, int k)
{
	const float inv = tm_store_scale(tile, lane, row_max(x, k));
	int32_t *rec = (int32_t *)tile + width + lane;
	for (int g = 0; g < k / TM_GROUP; g++, x += TM_GROUP, rec += TM_WORDS * width) {
		int32_t pairs[TM_PAIRS] __attribute__((aligned(64))) = {0};
		int32_t sum = 0;
		if (inv) {
			__m512 m = _mm512_set1_ps(inv);
			__m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), m));
			__m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), m));
			_mm256_store_si256((__m256i *)pairs, _mm512_cvtepi32_epi16(a));
			_mm256_store_si256((__m256i *)(pairs + 8), _mm512_cvtepi32_epi16(b));
			sum = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
		}
		float fsum = (float)sum;
		for (int i = 0; i < TM_PAIRS; i++)
			rec[i * width] = pairs[i];
		memcpy(&rec[TM_PAIRS * width], &fsum, 4);
		rec[(TM_PAIRS + 1) * width] = -8 * sum;
	}
}

// fweights loads the weights of k and k+1 (k even) of a float panel.
INLINE void fweights(const uint8_t *w, const int format, size_t k, __m512 *even, __m512 *odd)
{
	if (format == FMT_F16) {
		*even = half16(w + k * 32);
		*odd = half16(w + k * 32 + 32);
	} else if (format == FMT_BF16) {
		__m512i x = _mm512_loadu_si512(w + k * 32);
		*even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
		*odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
	} else {
		*even = _mm512_loadu_ps(w + k * 64);
		*odd = _mm512_loadu_ps(w + k * 64 + 64);
	}
}

// fdot_rows multiplies P float panels with R rows, one chain per result.
INLINE void fdot_rows(const tm_panel *p, const float *tile, float *out, const int format, const int P, const int R)
{
	const size_t pair_bytes = format == FMT_F32 ? 128 : 64, ahead = R > 2 ? 512 : 2048;
	__m512 acc[4][TM_TILE];
	size_t k = 0;
	UNROLL for (int i = 0; i < P; i++)
		UNROLL for (int r = 0; r < R; r++)
			acc[i][r] = _mm512_setzero_ps();
	for (; k + 2 <= (size_t)p->k; k += 2)
		UNROLL for (int i = 0; i < P; i++) {
			__m512 w0, w1;
			fweights(p[i].w, format, k, &w0, &w1);
			_mm_prefetch((const char *)p[i].w + k / 2 * pair_bytes + ahead, _MM_HINT_T0);
			UNROLL for (int r = 0; r < R; r++) {
				acc[i][r] = _mm512_fmadd_ps(w0, _mm512_set1_ps(tile[k * R + r]), acc[i][r]);
				acc[i][r] = _mm512_fmadd_ps(w1, _mm512_set1_ps(tile[(k + 1) * R + r]), acc[i][r]);
			}
		}
	if (k < (size_t)p->k)
		UNROLL for (int i = 0; i < P; i++) {
			__m512 w0, w1;
			if (format == FMT_BF16)  // always whole pairs
				fweights(p[i].w, format, k, &w0, &w1);
			else
				w0 = format == FMT_F16 ? half16(p[i].w + k * 32) : _mm512_loadu_ps(p[i].w + k * 64);
			UNROLL for (int r = 0; r < R; r++)
				acc[i][r] = _mm512_fmadd_ps(w0, _mm512_set1_ps(tile[k * R + r]), acc[i][r]);
		}
	UNROLL for (int i = 0; i < P; i++)
		UNROLL for (int r = 0; r < R; r++)
			_mm512_storeu_ps(out + (i * R + r) * TM_PANEL, acc[i][r]);
}

typedef void fdot_fn(const tm_panel *p, const float *tile, float *out);
#define FDOT(F, P, R) \
	static void fdot_##F##_##P##_##R(const tm_panel *p, const float *t, float *o) { fdot_rows(p, t, o, FMT_##F, P, R); }
#define FDOT_ROWS(F, P) FDOT(F, P, 1) FDOT(F, P, 2) FDOT(F, P, 3) FDOT(F, P, 4) FDOT(F, P, 5) FDOT(F, P, 6)
#define FDOT_TABLE(F, P) [FMT_##F - FMT_F32] = {fdot_##F##_##P##_1, fdot_##F##_##P##_2, fdot_##F##_##P##_3, \
	fdot_##F##_##P##_4, fdot_##F##_##P##_5, fdot_##F##_##P##_6}
FDOT(F32, 1, 7) FDOT(F32, 1, 8) FDOT(F16, 1, 7) FDOT(F16, 1, 8) FDOT(BF16, 1, 7) FDOT(BF16, 1, 8)
FDOT(F32, 2, 7) FDOT(F32, 2, 8) FDOT(F16, 2, 7) FDOT(F16, 2, 8) FDOT(BF16, 2, 7) FDOT(BF16, 2, 8)
FDOT_ROWS(F32, 1) FDOT_ROWS(F16, 1) FDOT_ROWS(BF16, 1)
FDOT_ROWS(F32, 4) FDOT_ROWS(F16, 4) FDOT_ROWS(BF16, 4)

static void fdot(const tm_panel *p, int num, const float *tile, int width, float *out)
{
#define FDOT_PAIRS(F, P) [FMT_##F - FMT_F32] = {fdot_##F##_##P##_7, fdot_##F##_##P##_8}
	static fdot_fn *const one[][TM_TILE_MANY] = {FDOT_TABLE(F32, 1), FDOT_TABLE(F16, 1), FDOT_TABLE(BF16, 1)};
	static fdot_fn *const one_more[][2] = {FDOT_PAIRS(F32, 1), FDOT_PAIRS(F16, 1), FDOT_PAIRS(BF16, 1)};
	static fdot_fn *const pairs[][2] = {FDOT_PAIRS(F32, 2), FDOT_PAIRS(F16, 2), FDOT_PAIRS(BF16, 2)};
	static fdot_fn *const four[][TM_TILE_MANY] = {FDOT_TABLE(F32, 4), FDOT_TABLE(F16, 4), FDOT_TABLE(BF16, 4)};
	if (num == 4 && width > TM_TILE_MANY) {
		fdot_fn *two = pairs[p->format - FMT_F32][width - TM_TILE_MANY - 1];
		two(p, tile, out);
		two(p + 2, tile, out + 2 * width * TM_PANEL);
		return;
	}
	if (num == 4)
		four[p->format - FMT_F32][width - 1](p, tile, out);
	else if (width > TM_TILE_MANY)
		one_more[p->format - FMT_F32][width - TM_TILE_MANY - 1](p, tile, out);
	else
		one[p->format - FMT_F32][width - 1](p, tile, out);
}

const tm_kernels tm_kernels_avx512 = {2, 4, quant, widen, dot, fdot};
#endif
