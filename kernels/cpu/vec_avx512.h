// Sixteen lanes in one AVX-512 register.
#ifndef TM_VEC_AVX512_H
#define TM_VEC_AVX512_H

#include <immintrin.h>

#include "vec.h"

#define TM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define TM_FN static inline __attribute__((always_inline)) TM_TARGET
#define TM_KERNEL static __attribute__((noinline)) TM_TARGET

// Register tiling of the attention products: at most TM_ROWS query rows and
// TM_TILES(rows) column tiles share the 32 registers.
#define TM_ROWS 12
#define TM_TILES(rows) ((rows) > 6 ? 2 : 4)

typedef __m512 v16;

TM_FN __mmask16 v_first(int n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u); }
TM_FN v16 v_zero(void) { return _mm512_setzero_ps(); }
TM_FN v16 v_set1(float a) { return _mm512_set1_ps(a); }
TM_FN v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
TM_FN void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
TM_FN v16 v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v_first(n), p); }
TM_FN void v_store_n(float *p, v16 a, int n) { _mm512_mask_storeu_ps(p, v_first(n), a); }
TM_FN v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
TM_FN v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
TM_FN v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
TM_FN v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
TM_FN v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
TM_FN v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
TM_FN v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
TM_FN v16 v_fms(v16 a, v16 b, v16 c) { return _mm512_fmsub_ps(a, b, c); }
TM_FN v16 v_round(v16 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// v_pow2 returns 2^n for integral n in [-126, 127].
TM_FN v16 v_pow2(v16 n)
{
	__m512i i = _mm512_cvtps_epi32(n);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(127)), 23));
}

// v_zero_below returns x where at >= bound and 0 elsewhere.
TM_FN v16 v_zero_below(v16 x, v16 at, float bound)
{ return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(at, _mm512_set1_ps(bound), _CMP_GE_OQ), x); }

// v_keep_n returns the first n lanes of x and fill in the others.
TM_FN v16 v_keep_n(v16 x, int n, float fill) { return _mm512_mask_mov_ps(_mm512_set1_ps(fill), v_first(n), x); }

// v_bf16_lo and v_bf16_hi widen the even and the odd ones of 32 bf16 values. Names
// with _two are of what stands in halves at two places.
TM_FN v16 v_bf16_lo(const uint16_t *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
TM_FN v16 v_bf16_hi(const uint16_t *p)
{ return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000u))); }

TM_FN __m512i v_join(const void *p, const void *q)
{
	const __m256i *a = p, *b = q;
	return _mm512_inserti32x8(_mm512_castsi256_si512(_mm256_loadu_si256(a)), _mm256_loadu_si256(b), 1);
}
TM_FN v16 v_load_two(const float *p, const float *q) { return _mm512_castsi512_ps(v_join(p, q)); }
TM_FN v16 v_bf16_lo_two(const uint16_t *p, const uint16_t *q)
{ return _mm512_castsi512_ps(_mm512_slli_epi32(v_join(p, q), 16)); }
TM_FN v16 v_bf16_hi_two(const uint16_t *p, const uint16_t *q)
{ return _mm512_castsi512_ps(_mm512_and_si512(v_join(p, q), _mm512_set1_epi32((int)0xffff0000u))); }

// v_bf16 widens 16 consecutive bf16 values, v_i8 16 signed bytes.
TM_FN v16 v_bf16(const uint16_t *p)
{ return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16)); }
TM_FN v16 v_i8(const int8_t *p)
{ return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p))); }
TM_FN v16 v_i8_two(const int8_t *p, const int8_t *q)
{
	const __m128i a = _mm_loadl_epi64((const __m128i *)(const void *)p), b = _mm_loadl_epi64((const __m128i *)(const void *)q);
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(a, b)));
}

TM_FN float v_fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

#endif
