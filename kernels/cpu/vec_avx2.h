// Sixteen lanes in two AVX2 registers.
#ifndef TM_VEC_AVX2_H
#define TM_VEC_AVX2_H

#include <immintrin.h>

#include "vec.h"

#define TM_TARGET __attribute__((target("avx2,fma")))
#define TM_FN static inline __attribute__((always_inline)) TM_TARGET
#define TM_KERNEL static __attribute__((noinline)) TM_TARGET

// Register tiling of the attention products, for 16 registers of 8 lanes.
#define TM_ROWS 6
#define TM_TILES(rows) ((rows) > 2 ? 1 : 2)

typedef struct {
	__m256 a, b;
} v16;

#define TM_BOTH(f, x, y) ((v16){f((x).a, (y).a), f((x).b, (y).b)})

TM_FN v16 v_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TM_FN v16 v_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TM_FN v16 v_load_two(const float *p, const float *q) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(q)}; }
TM_FN v16 v_load(const float *p) { return v_load_two(p, p + 8); }
TM_FN void v_store(float *p, v16 x)
{
	_mm256_storeu_ps(p, x.a);
	_mm256_storeu_ps(p + 8, x.b);
}
TM_FN v16 v_load_n(const float *p, int n)
{
	if (n >= 16) return v_load(p);
	float t[16] = {0};
	memcpy(t, p, (size_t)n * 4);
	return v_load(t);
}
TM_FN void v_store_n(float *p, v16 x, int n)
{
	float t[16];
	v_store(t, x);
	memcpy(p, t, (size_t)(n > 16 ? 16 : n) * 4);
}
TM_FN v16 v_add(v16 x, v16 y) { return TM_BOTH(_mm256_add_ps, x, y); }
TM_FN v16 v_sub(v16 x, v16 y) { return TM_BOTH(_mm256_sub_ps, x, y); }
TM_FN v16 v_mul(v16 x, v16 y) { return TM_BOTH(_mm256_mul_ps, x, y); }
TM_FN v16 v_div(v16 x, v16 y) { return TM_BOTH(_mm256_div_ps, x, y); }
TM_FN v16 v_max(v16 x, v16 y) { return TM_BOTH(_mm256_max_ps, x, y); }
TM_FN v16 v_min(v16 x, v16 y) { return TM_BOTH(_mm256_min_ps, x, y); }
TM_FN v16 v_fma(v16 x, v16 y, v16 z) { return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
TM_FN v16 v_fms(v16 x, v16 y, v16 z) { return (v16){_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b)}; }
TM_FN v16 v_round(v16 x)
{
	return (v16){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
		_mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// v_pow2 returns 2^n for integral n in [-126, 127].
TM_FN __m256 v_pow2_half(__m256 n)
{ return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)); }
TM_FN v16 v_pow2(v16 n) { return (v16){v_pow2_half(n.a), v_pow2_half(n.b)}; }

// v_zero_below returns x where at >= bound and 0 elsewhere.
TM_FN v16 v_zero_below(v16 x, v16 at, float bound)
{
	__m256 m = _mm256_set1_ps(bound);
	return (v16){_mm256_and_ps(x.a, _mm256_cmp_ps(at.a, m, _CMP_GE_OQ)),
		_mm256_and_ps(x.b, _mm256_cmp_ps(at.b, m, _CMP_GE_OQ))};
}

// v_keep_n returns the first n lanes of x and fill in the others.
TM_FN v16 v_keep_n(v16 x, int n, float fill)
{
	const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	__m256 f = _mm256_set1_ps(fill);
	__m256 ka = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes));
	__m256 kb = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes));
	return (v16){_mm256_blendv_ps(f, x.a, ka), _mm256_blendv_ps(f, x.b, kb)};
}

// v_bf16_lo and v_bf16_hi widen the even and the odd ones of 32 bf16 values. Names
// with _two are of what stands in halves at two places.
TM_FN v16 v_bf16_lo_two(const uint16_t *p, const uint16_t *q)
{
	const __m256i *a = (const __m256i *)(const void *)p, *b = (const __m256i *)(const void *)q;
	return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(a), 16)),
		_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(b), 16))};
}
TM_FN v16 v_bf16_hi_two(const uint16_t *p, const uint16_t *q)
{
	const __m256i *a = (const __m256i *)(const void *)p, *b = (const __m256i *)(const void *)q;
	const __m256i m = _mm256_set1_epi32((int)0xffff0000u);
	return (v16){_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(a), m)),
		_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(b), m))};
}
TM_FN v16 v_bf16_lo(const uint16_t *p) { return v_bf16_lo_two(p, p + 16); }
TM_FN v16 v_bf16_hi(const uint16_t *p) { return v_bf16_hi_two(p, p + 16); }

// v_bf16 widens 16 consecutive bf16 values, v_i8 16 signed bytes.
TM_FN v16 v_bf16(const uint16_t *p)
{
	const __m128i *q = (const __m128i *)(const void *)p;
	return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
		_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16))};
}
TM_FN v16 v_i8_two(const int8_t *p, const int8_t *q)
{
	return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p))),
		_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)q)))};
}
TM_FN v16 v_i8(const int8_t *p) { return v_i8_two(p, p + 8); }

TM_FN float v_fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

#endif
