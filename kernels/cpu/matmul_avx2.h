// What the files of AVX2 products share. They are compiled for that level, so this
// stands behind their target pragma and immintrin.h.
#ifndef TANDEM_MATMUL_AVX2_H
#define TANDEM_MATMUL_AVX2_H

#include "matmul_impl.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

// A panel is two registers wide, so 3 rows of integer and of float sums take 12
// of the 16 registers. Wider tiles are done 3 rows at a time.
enum { ROWS = 3, AHEAD = 4096 };

// fetch fetches what is AHEAD of group g in memory, as much as a group's levels and scales
// are: so the panel behind is fetched at the same distance, without a gap.
INLINE void fetch(const tm_panel *p, size_t g, const int format)
{
	const char *ahead = (const char *)p->w + g * (tm_level_bytes(format) + tm_scale_bytes(format)) + AHEAD;
	UNROLL for (size_t i = 0; i < tm_level_bytes(format) + 64; i += 64)
		_mm_prefetch(ahead + i, _MM_HINT_T0);
}

INLINE __m256 half8(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE __m256 byte8(const uint8_t *p)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE __m256 sbyte8(const uint8_t *p)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE __m256 float8(const uint8_t *p) { return _mm256_loadu_ps((const float *)p); }

// group_scale reads the scale of half h of group g for 8 columns, side 0 or 1.
INLINE __m256 group_scale(const tm_panel *p, const int format, size_t g, const int h, const int side)
{
	switch (format) {
	case FMT_W4_1: case FMT_W8_1: return half8(p->scale + g * 64 + side * 16);
	case FMT_W4_K: case FMT_W8_K:
		return _mm256_mul_ps(half8(p->super + g / 8 * 64 + side * 16), byte8(p->scale + g * 32 + side * 8));
	case FMT_W8_S:
		return _mm256_mul_ps(half8(p->super + g / 8 * 32 + side * 16), sbyte8(p->scale + g * 32 + h * 16 + side * 8));
	case FMT_W12: return _mm256_castsi256_ps(_mm256_slli_epi32(
		_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p->scale + g * 16 + side * 8))), 23));
	case FMT_W16: return float8(p->scale + g * 64 + side * 32);
	case FMT_W16_M: return float8(p->scale + g * 128 + side * 32);
	case FMT_W16_S: return float8(p->scale + g * 128 + h * 64 + side * 32);
	}
	return half8(p->scale + g * 32 + side * 16);  // W4_0, W8
}

INLINE __m256 group_min(const tm_panel *p, const int format, size_t g, const int side)
{
	if (format == FMT_W4_1 || format == FMT_W8_1)
		return half8(p->scale + g * 64 + 32 + side * 16);
	if (format == FMT_W4_K || format == FMT_W8_K)
		return _mm256_xor_ps(_mm256_set1_ps(-0.0f), _mm256_mul_ps(half8(p->super + g / 8 * 64 + 32 + side * 16),
		                                                       byte8(p->scale + g * 32 + 16 + side * 8)));
	return float8(p->scale + g * 128 + 64 + side * 32);
}

// row_max returns the bits of the greatest magnitude, not a number being more.
INLINE uint32_t row_max(const float *x, int k)
{
	const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
	__m256i top = _mm256_setzero_si256();
	for (int i = 0; i < k; i += 8)
		top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude));
	__m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
	t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
	t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(t);
}

// magnitudes returns the sum of those of a row, in the order of the other levels.
INLINE float magnitudes(const float *x, int k)
{
	const __m256 sign = _mm256_set1_ps(-0.0f);
	__m256 low = _mm256_setzero_ps(), high = low;
	for (int i = 0; i < k; i += 16) {
		low = _mm256_add_ps(low, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
		high = _mm256_add_ps(high, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i + 8)));
	}
	low = _mm256_add_ps(low, high);
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// levels16 quantises 16 values in order.
INLINE __m256i levels16(const float *x, __m256 inv)
{
	__m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inv));
	__m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inv));
	return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

#endif
