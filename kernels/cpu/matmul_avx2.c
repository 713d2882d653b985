#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")

#include <immintrin.h>
#include <math.h>

#include "matmul_avx2.h"

// level_pair returns the 16-bit levels of pair j for 8 columns of a group.
INLINE __m256i level_pair(const uint8_t *w, const int format, const int j, const int side)
{
	if (format >= FMT_W16)
		return _mm256_loadu_si256((const __m256i *)(w + j * 64 + side * 32));
	if (format == FMT_W12) {
		const __m256i *at = (const __m256i *)(w + j / 4 * 192 + side * 32);
		if (j % 4 < 3)
			return _mm256_srai_epi16(_mm256_loadu_si256(at + j % 4 * 2), 4);
		__m256i low = _mm256_set1_epi16(15), a = _mm256_slli_epi16(_mm256_loadu_si256(at), 12);
		__m256i b = _mm256_slli_epi16(_mm256_and_si256(_mm256_loadu_si256(at + 2), low), 8);
		__m256i c = _mm256_slli_epi16(_mm256_and_si256(_mm256_loadu_si256(at + 4), low), 4);
		return _mm256_srai_epi16(_mm256_or_si256(_mm256_or_si256(a, b), c), 4);
	}
	if (!tm_is_w4(format)) {
		__m256i x = _mm256_loadu_si256((const __m256i *)(w + j / 4 * 128 + j % 2 * 64 + side * 32));
		return _mm256_srai_epi16(j % 4 / 2 ? x : _mm256_slli_epi16(x, 8), 8);
	}
	__m256i x = _mm256_loadu_si256((const __m256i *)(w + j / 4 * 64 + side * 32));
	x = _mm256_and_si256(_mm256_srli_epi16(x, j % 4 * 4), _mm256_set1_epi16(15));
	return format == FMT_W4_0 ? _mm256_sub_epi16(x, _mm256_set1_epi16(8)) : x;
}

// add_group adds group g of one panel to the sums of R rows of a tile.
INLINE void add_group(const tm_panel *p, const uint8_t *w, const int32_t *rec, int width,
                      const int format, const int R, size_t g, __m256 acc[][2])
{
	if (tm_has_min(format))
		UNROLL for (int r = 0; r < R; r++)
			UNROLL for (int s = 0; s < 2; s++)
				acc[r][s] = _mm256_fmadd_ps(group_min(p, format, g, s),
					_mm256_set1_ps(((const float *)rec)[TM_PAIRS * width + r]), acc[r][s]);
	const int step = tm_has_halves(format) ? TM_PAIRS / 2 : TM_PAIRS;
	for (int h = 0; h < TM_PAIRS / step; h++) {
		__m256i sum[ROWS][2];
		UNROLL for (int r = 0; r < R; r++)
			sum[r][0] = sum[r][1] = _mm256_setzero_si256();
		UNROLL for (int j = h * step; j < h * step + step; j++) {
			__m256i w0 = level_pair(w, format, j, 0), w1 = level_pair(w, format, j, 1);
			UNROLL for (int r = 0; r < R; r++) {
				__m256i a = _mm256_set1_epi32(rec[j * width + r]);
				sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(w0, a));
				sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(w1, a));
			}
		}
		UNROLL for (int s = 0; s < 2; s++) {
			__m256 scale = group_scale(p, format, g, h, s);
			UNROLL for (int r = 0; r < R; r++)
				acc[r][s] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[r][s]), acc[r][s]);
		}
	}
}

// dot_rows multiplies a panel with rows [lane, lane+R) of a tile.
INLINE void dot_rows(const tm_panel *p, const int32_t *tile, int width, int lane, float *out, const int format, const int R)
{
	__m256 acc[ROWS][2];
	const int32_t *rec = tile + width + lane;
	const uint8_t *w = p->w;
	UNROLL for (int r = 0; r < R; r++)
		acc[r][0] = acc[r][1] = _mm256_setzero_ps();
	for (size_t g = 0; g < (size_t)p->groups; g++, rec += TM_WORDS * width, w += tm_level_bytes(format)) {
		if (format < FMT_W16)
			fetch(p, g, format);
		add_group(p, w, rec, width, format, R, g, acc);
	}
	UNROLL for (int r = 0; r < R; r++) {
		__m256 scale = _mm256_set1_ps(((const float *)tile)[lane + r]);
		_mm256_storeu_ps(out + (lane + r) * TM_PANEL, _mm256_mul_ps(acc[r][0], scale));
		_mm256_storeu_ps(out + (lane + r) * TM_PANEL + 8, _mm256_mul_ps(acc[r][1], scale));
	}
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
TM_BYTE_FORMATS(DOT) DOT(W12) DOT(W16) DOT(W16_M) DOT(W16_S)

static void dot(const tm_panel *p, int num, const uint8_t *tile, int width, float *out)
{
	static void (*const by_format[])(const tm_panel *, const int32_t *, int, float *) = {
		[FMT_W4_0] = dot_W4_0, [FMT_W4_1] = dot_W4_1, [FMT_W4_K] = dot_W4_K,
		[FMT_W8] = dot_W8, [FMT_W8_1] = dot_W8_1, [FMT_W8_K] = dot_W8_K, [FMT_W8_S] = dot_W8_S, [FMT_W12] = dot_W12,
		[FMT_W16] = dot_W16, [FMT_W16_M] = dot_W16_M, [FMT_W16_S] = dot_W16_S,
	};
	for (int i = 0; i < num; i++)
		by_format[p[i].format](&p[i], (const int32_t *)tile, width, out + i * width * TM_PANEL);
}

INLINE void widen_format(const tm_panel *p, uint8_t *dst, const int format)
{
	tm_panel to = tm_panel_at(tm_widened(format), p->k, dst);
	uint8_t *w = (uint8_t *)to.w, *scale = (uint8_t *)to.scale;
	for (size_t g = 0; g < (size_t)p->groups; g++, w += 1024) {
		UNROLL for (int s = 0; s < 2; s++) {
			_mm256_storeu_ps((float *)(scale + s * 32), group_scale(p, format, g, 0, s));
			if (tm_has_min(format))
				_mm256_storeu_ps((float *)(scale + 64 + s * 32), group_min(p, format, g, s));
			if (tm_has_halves(format))
				_mm256_storeu_ps((float *)(scale + 64 + s * 32), group_scale(p, format, g, 1, s));
			UNROLL for (int j = 0; j < TM_PAIRS; j++)
				_mm256_storeu_si256((__m256i *)(w + j * 64 + s * 32),
					level_pair(p->w + g * tm_level_bytes(format), format, j, s));
		}
		scale += tm_has_min(format) || tm_has_halves(format) ? 128 : 64;
	}
}

static void widen(const tm_panel *p, uint8_t *dst)
{
#define WIDEN(F) case FMT_##F: widen_format(p, dst, FMT_##F); break;
	switch (p->format) { TM_BYTE_FORMATS(WIDEN) WIDEN(W12) }
}

static void quant(uint8_t *tile, int width, int lane, const float *x, int k)
{
	const float inv = tm_store_scale(tile, lane, row_max(x, k));
	int32_t *rec = (int32_t *)tile + width + lane;
	for (int g = 0; g < k / TM_GROUP; g++, x += TM_GROUP, rec += TM_WORDS * width) {
		int32_t pairs[TM_PAIRS] = {0}, sums[8], sum = 0;
		if (inv) {
			__m256i a = levels16(x, _mm256_set1_ps(inv)), b = levels16(x + 16, _mm256_set1_ps(inv));
			const __m256i one = _mm256_set1_epi16(1);
			_mm256_storeu_si256((__m256i *)pairs, a);
			_mm256_storeu_si256((__m256i *)(pairs + 8), b);
			_mm256_storeu_si256((__m256i *)sums, _mm256_add_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one)));
			for (int i = 0; i < 8; i++)
				sum += sums[i];
		}
		float fsum = (float)sum;
		for (int i = 0; i < TM_PAIRS; i++)
			rec[i * width] = pairs[i];
		memcpy(&rec[TM_PAIRS * width], &fsum, 4);
		rec[(TM_PAIRS + 1) * width] = -8 * sum;
	}
}

// fweight loads the weights of k for 8 columns of a float panel.
INLINE __m256 fweight(const uint8_t *w, const int format, size_t k, const int side)
{
	if (format == FMT_F16)
		return half8(w + k * 32 + side * 16);
	if (format == FMT_F32)
		return float8(w + k * 64 + side * 32);
	__m256i x = _mm256_loadu_si256((const __m256i *)(w + k / 2 * 64 + side * 32));
	return _mm256_castsi256_ps(k % 2 ? _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)) : _mm256_slli_epi32(x, 16));
}

// fdot_rows multiplies a float panel with rows [lane, lane+R) of a tile.
INLINE void fdot_rows(const tm_panel *p, const float *tile, int width, int lane, float *out, const int format, const int R)
{
	__m256 acc[TM_TILE][2];
	UNROLL for (int r = 0; r < R; r++)
		acc[r][0] = acc[r][1] = _mm256_setzero_ps();
	for (size_t k = 0; k < (size_t)p->k; k++) {
		__m256 w0 = fweight(p->w, format, k, 0), w1 = fweight(p->w, format, k, 1);
		UNROLL for (int r = 0; r < R; r++) {
			__m256 a = _mm256_set1_ps(tile[k * width + lane + r]);
			acc[r][0] = _mm256_fmadd_ps(w0, a, acc[r][0]);
			acc[r][1] = _mm256_fmadd_ps(w1, a, acc[r][1]);
		}
	}
	UNROLL for (int r = 0; r < R; r++) {
		_mm256_storeu_ps(out + (lane + r) * TM_PANEL, acc[r][0]);
		_mm256_storeu_ps(out + (lane + r) * TM_PANEL + 8, acc[r][1]);
	}
}

INLINE void fdot_format(const tm_panel *p, const float *tile, int width, float *out, const int format)
{
	int lane = 0;
	if (width >= 5) {
		fdot_rows(p, tile, width, 0, out, format, 5);
		lane = 5;
	}
	for (; width - lane >= 2; lane += 2)
		fdot_rows(p, tile, width, lane, out, format, 2);
	if (lane < width)
		fdot_rows(p, tile, width, lane, out, format, 1);
}

static void fdot(const tm_panel *p, int num, const float *tile, int width, float *out)
{
	for (int i = 0; i < num; i++, out += width * TM_PANEL) {
		if (p[i].format == FMT_F32)
			fdot_format(&p[i], tile, width, out, FMT_F32);
		else if (p[i].format == FMT_F16)
			fdot_format(&p[i], tile, width, out, FMT_F16);
		else
			fdot_format(&p[i], tile, width, out, FMT_BF16);
	}
}

const tm_kernels tm_kernels_avx2 = {1, 1, quant, widen, dot, fdot};
#endif
