// Sixteen lanes in an array, for machines without a level of their own. The
// loops are short and constant, so a compiler maps them to what it has (SSE2,
// NEON). A fused multiply-add is used where the machine has one, and never left
// to the compiler's choice, so that every path rounds alike.
#ifndef TM_VEC_PORTABLE_H
#define TM_VEC_PORTABLE_H

#include "vec.h"

#define TM_FN static inline __attribute__((always_inline))
#define TM_KERNEL static __attribute__((noinline))

#define TM_ROWS 3
#define TM_TILES(rows) 1

typedef struct {
	float f[16];
} v16;

#define TM_EACH for (int i = 0; i < 16; i++)

TM_FN float v_fma1(float a, float b, float c)
{
#ifdef __FP_FAST_FMAF
	return __builtin_fmaf(a, b, c);
#else
	return a * b + c;
#endif
}
TM_FN v16 v_set1(float x)
{
	v16 r;
	TM_EACH r.f[i] = x;
	return r;
}
TM_FN v16 v_zero(void) { return v_set1(0.0f); }
TM_FN v16 v_load(const float *p)
{
	v16 r;
	memcpy(r.f, p, sizeof r.f);
	return r;
}
TM_FN void v_store(float *p, v16 x) { memcpy(p, x.f, sizeof x.f); }
TM_FN v16 v_load_n(const float *p, int n)
{
	v16 r = v_zero();
	memcpy(r.f, p, (size_t)(n > 16 ? 16 : n) * 4);
	return r;
}
TM_FN void v_store_n(float *p, v16 x, int n) { memcpy(p, x.f, (size_t)(n > 16 ? 16 : n) * 4); }
TM_FN v16 v_add(v16 x, v16 y)
{
	TM_EACH x.f[i] += y.f[i];
	return x;
}
TM_FN v16 v_sub(v16 x, v16 y)
{
	TM_EACH x.f[i] -= y.f[i];
	return x;
}
TM_FN v16 v_mul(v16 x, v16 y)
{
	TM_EACH x.f[i] *= y.f[i];
	return x;
}
TM_FN v16 v_div(v16 x, v16 y)
{
	TM_EACH x.f[i] /= y.f[i];
	return x;
}
TM_FN v16 v_max(v16 x, v16 y)
{
	TM_EACH x.f[i] = x.f[i] > y.f[i] ? x.f[i] : y.f[i];
	return x;
}
TM_FN v16 v_min(v16 x, v16 y)
{
	TM_EACH x.f[i] = x.f[i] < y.f[i] ? x.f[i] : y.f[i];
	return x;
}
TM_FN v16 v_fma(v16 x, v16 y, v16 z)
{
	TM_EACH z.f[i] = v_fma1(x.f[i], y.f[i], z.f[i]);
	return z;
}
TM_FN v16 v_fms(v16 x, v16 y, v16 z)
{
	TM_EACH z.f[i] = v_fma1(x.f[i], y.f[i], -z.f[i]);
	return z;
}
// v_round is exact for |x| < 2^22, far beyond what the exponent range needs.
TM_FN v16 v_round(v16 x)
{
	const float magic = 12582912.0f;
	TM_EACH x.f[i] = (x.f[i] + magic) - magic;
	return x;
}

// v_pow2 returns 2^n for integral n in [-126, 127].
TM_FN v16 v_pow2(v16 n)
{
	v16 r;
	uint32_t u[16];
	TM_EACH u[i] = (uint32_t)((int32_t)n.f[i] + 127) << 23;
	memcpy(r.f, u, sizeof u);
	return r;
}

// v_zero_below returns x where at >= bound and 0 elsewhere.
TM_FN v16 v_zero_below(v16 x, v16 at, float bound)
{
	TM_EACH x.f[i] = at.f[i] >= bound ? x.f[i] : 0.0f;
	return x;
}

// v_keep_n returns the first n lanes of x and fill in the others.
TM_FN v16 v_keep_n(v16 x, int n, float fill)
{
	TM_EACH x.f[i] = i < n ? x.f[i] : fill;
	return x;
}

// v_bf16_lo and v_bf16_hi widen the even and the odd ones of 32 bf16 values. Names
// with _two are of what stands in halves at two places.
TM_FN v16 v_bf16_lo(const uint16_t *p)
{
	uint32_t u[16];
	v16 r;
	memcpy(u, p, sizeof u);
	TM_EACH u[i] <<= 16;
	memcpy(r.f, u, sizeof u);
	return r;
}
TM_FN v16 v_bf16_hi(const uint16_t *p)
{
	uint32_t u[16];
	v16 r;
	memcpy(u, p, sizeof u);
	TM_EACH u[i] &= 0xffff0000u;
	memcpy(r.f, u, sizeof u);
	return r;
}

TM_FN v16 v_load_two(const float *p, const float *q)
{
	float f[16];
	memcpy(f, p, 32);
	memcpy(f + 8, q, 32);
	return v_load(f);
}
TM_FN v16 v_bf16_lo_two(const uint16_t *p, const uint16_t *q)
{
	uint16_t u[32];
	memcpy(u, p, 32);
	memcpy(u + 16, q, 32);
	return v_bf16_lo(u);
}
TM_FN v16 v_bf16_hi_two(const uint16_t *p, const uint16_t *q)
{
	uint16_t u[32];
	memcpy(u, p, 32);
	memcpy(u + 16, q, 32);
	return v_bf16_hi(u);
}

// v_bf16 widens 16 consecutive bf16 values, v_i8 16 signed bytes.
TM_FN v16 v_bf16(const uint16_t *p)
{
	uint32_t u[16];
	v16 r;
	TM_EACH u[i] = (uint32_t)p[i] << 16;
	memcpy(r.f, u, sizeof u);
	return r;
}
TM_FN v16 v_i8(const int8_t *p)
{
	v16 r;
	TM_EACH r.f[i] = (float)p[i];
	return r;
}
TM_FN v16 v_i8_two(const int8_t *p, const int8_t *q)
{
	int8_t b[16];
	memcpy(b, p, 8);
	memcpy(b + 8, q, 8);
	return v_i8(b);
}

#endif
