// What the files of AVX-512 products share. They are compiled for that level, so
// this stands behind their target pragma and immintrin.h.
#ifndef TANDEM_MATMUL_AVX512_H
#define TANDEM_MATMUL_AVX512_H

#include "matmul_impl.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

// How many bytes ahead of the levels in use a panel is fetched when it is read straight
// from memory: into the level 2 cache, which can wait for more lines at once than
// that of level 1, and from there.
enum { FAR = 8192, NEAR = 1024 };

// fetch does so beside group g, for as much as a group's levels and scales are, of which
// 64 bytes are the most: so the panel behind is fetched at the same distance, without a gap.
INLINE void fetch(const tm_panel *p, size_t g, const int format)
{
	const size_t levels = tm_level_bytes(format), share = levels + tm_scale_bytes(format);
	const char *far = (const char *)p->w + g * share + FAR, *near = (const char *)p->w + g * levels + NEAR;
	UNROLL for (size_t i = 0; i < levels + 64; i += 64)
		_mm_prefetch(far + i, _MM_HINT_T1);
	UNROLL for (size_t i = 0; i < levels; i += 64)
		_mm_prefetch(near + i, _MM_HINT_T0);
}

INLINE __m512 half16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE __m512 byte16(const uint8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE __m512 sbyte16(const uint8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

// group_scale reads the scale of half h of group g.
INLINE __m512 group_scale(const tm_panel *p, const int format, size_t g, const int h)
{
	switch (format) {
	case FMT_W4_1: case FMT_W8_1: return half16(p->scale + g * 64);
	case FMT_W4_K: case FMT_W8_K:
		return _mm512_mul_ps(half16(p->super + g / 8 * 64), byte16(p->scale + g * 32));
	case FMT_W8_S: return _mm512_mul_ps(half16(p->super + g / 8 * 32), sbyte16(p->scale + g * 32 + h * 16));
	case FMT_W12: return _mm512_castsi512_ps(_mm512_slli_epi32(
		_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p->scale + g * 16))), 23));
	case FMT_W16: case FMT_B8: return _mm512_loadu_ps(p->scale + g * 64);
	case FMT_W16_M: case FMT_B8_M: return _mm512_loadu_ps(p->scale + g * 128);
	case FMT_W16_S: case FMT_B8_S: return _mm512_loadu_ps(p->scale + g * 128 + h * 64);
	}
	return half16(p->scale + g * 32);  // W4_0, W8
}

INLINE __m512 group_min(const tm_panel *p, const int format, size_t g)
{
	if (format == FMT_W4_1 || format == FMT_W8_1)
		return half16(p->scale + g * 64 + 32);
	if (format == FMT_W4_K || format == FMT_W8_K)
		return _mm512_sub_ps(_mm512_set1_ps(-0.0f), _mm512_mul_ps(half16(p->super + g / 8 * 64 + 32),
		                                                       byte16(p->scale + g * 32 + 16)));
	return _mm512_loadu_ps(p->scale + g * 128 + 64);
}

// row_max returns the bits of the greatest magnitude, not a number being more.
INLINE uint32_t row_max(const float *x, int k)
{
	const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
	__m512i top = _mm512_setzero_si512();
	for (int i = 0; i < k; i += 16)
		top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
	return (uint32_t)_mm512_reduce_max_epi32(top);
}

// magnitudes returns the sum of those of a row.
INLINE float magnitudes(const float *x, int k)
{
	__m512 sum = _mm512_setzero_ps();
	for (int i = 0; i < k; i += 16)
		sum = _mm512_add_ps(sum, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
	const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// set_apart lists the outliers of the group at k0, which is x and y as well, where it
// makes them zeros.
INLINE void set_apart(tm_outliers *o, int k, int k0, const float *group, float bound, __m512 *x, __m512 *y)
{
	const __m512 most = _mm512_set1_ps(bound);
	const __mmask16 low = _mm512_cmp_ps_mask(_mm512_abs_ps(*x), most, _CMP_GT_OQ);
	const __mmask16 high = _mm512_cmp_ps_mask(_mm512_abs_ps(*y), most, _CMP_GT_OQ);
	uint32_t mask = low | (uint32_t)high << 16;
	if (!mask)
		return;
	mask = tm_list_outliers(o, k, k0, mask, group);
	*x = _mm512_maskz_mov_ps((__mmask16)~mask, *x);
	*y = _mm512_maskz_mov_ps((__mmask16)(~mask >> 16), *y);
}

// top_of returns the bits of the greatest magnitude, as row_max does.
INLINE uint32_t top_of(__m512 x, __m512 y)
{
	const __m512i a = _mm512_castps_si512(_mm512_abs_ps(x)), b = _mm512_castps_si512(_mm512_abs_ps(y));
	return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
}

#endif
