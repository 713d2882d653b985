#include "amx.h"

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#include <immintrin.h>
#include <math.h>

#include "matmul_avx512.h"

void tm_amx_quant(uint8_t *tile, int width, int lane, const float *x, int k)
{
	const float inv = tm_store_scale(tile, lane, row_max(x, k));
	uint8_t *rec = tile + width * 4, *h = rec + lane * TM_GROUP, *l = h + width * TM_GROUP;
	uint8_t *asum = rec + width * 2 * TM_GROUP + lane * 4;
	const size_t record = tm_amx_record(width);
	const __m512 m = _mm512_set1_ps(inv);
	for (int g = 0; g < k / TM_GROUP; g++, x += TM_GROUP, h += record, l += record, asum += record) {
		__m512i a = _mm512_setzero_si512(), b = a;
		if (inv) {
			a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), m));
			b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), m));
		}
		_mm_storeu_si128((__m128i *)l, _mm512_cvtepi32_epi8(a));
		_mm_storeu_si128((__m128i *)(l + 16), _mm512_cvtepi32_epi8(b));
		_mm_storeu_si128((__m128i *)h, _mm512_cvtepi32_epi8(_mm512_srai_epi32(a, 8)));
		_mm_storeu_si128((__m128i *)(h + 16), _mm512_cvtepi32_epi8(_mm512_srai_epi32(b, 8)));
		float sum = (float)_mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
		memcpy(asum, &sum, 4);
	}
}

void tm_amx_quant8(uint8_t *tile, int width, int lane, const float *row, int k)
{
	tm_outliers *o = tm_outliers_row(tm_amx_lists(tile, width, k), k, lane);
	const float bound = tm_outlier_bound(magnitudes(row, k), k);
	o->n = 0;
	for (int k0 = 0; k0 < k; k0 += TM_GROUP, tile += tm_amx_record8(width)) {
		uint8_t *to = tile + lane * TM_GROUP, *floats = tile + width * TM_GROUP + lane * 4;
		float scale;
		__m512 x = _mm512_loadu_ps(row + k0), y = _mm512_loadu_ps(row + k0 + 16);
		set_apart(o, k, k0, row + k0, bound, &x, &y);
		const float inv = tm_scale8(top_of(x, y), &scale);
		__m512i a = _mm512_setzero_si512(), b = a;
		if (inv) {
			a = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inv)));
			b = _mm512_cvtps_epi32(_mm512_mul_ps(y, _mm512_set1_ps(inv)));
		}
		_mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(a));
		_mm_storeu_si128((__m128i *)(to + 16), _mm512_cvtepi32_epi8(b));
		const float asum = scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
		memcpy(floats, &scale, 4);
		memcpy(floats + width * 4, &asum, 4);
	}
}

// ordered makes two lines of tile order of two quads, whose k of a column's four bytes
// are TM_QUAD: even ones belong to the first line.
INLINE void ordered(__m512i first, __m512i second, uint8_t *to)
{
	const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
	first = _mm512_shuffle_epi8(first, order);
	second = _mm512_shuffle_epi8(second, order);
	_mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16)));
	_mm512_storeu_si512(to + 64, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second));
}

// expand4 spreads 64 bytes of a W4 panel, which are two lines of tile order.
INLINE void expand4(const uint8_t *w, __m512i below, uint8_t *to)
{
	const __m512i nibble = _mm512_set1_epi8(15), x = _mm512_loadu_si512(w);
	ordered(_mm512_sub_epi8(_mm512_and_si512(x, nibble), below),
	        _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(x, 4), nibble), below), to);
}

// expand8 does so for 128 bytes of a W8 panel.
INLINE void expand8(const uint8_t *w, uint8_t *to) { ordered(_mm512_loadu_si512(w), _mm512_loadu_si512(w + 64), to); }

// expand writes a panel in tile order to scratch: format and scales are those of
// the widened form, levels are bytes, per group [8][16 columns][4 consecutive k].
static tm_panel expand(const tm_panel *p, uint8_t *scratch)
{
	const tm_panel to = tm_panel_at(tm_widened(p->format), p->k, scratch);
	const __m512i below = _mm512_set1_epi8(p->format == FMT_W4_0 ? 8 : 0);
	uint8_t *w = (uint8_t *)to.w, *s = (uint8_t *)to.scale;
	for (size_t g = 0; g < (size_t)p->groups; g++, w += 512) {
		_mm512_storeu_ps(s, group_scale(p, p->format, g, 0));
		if (to.format == FMT_W16_M)
			_mm512_storeu_ps(s + 64, group_min(p, p->format, g));
		if (to.format == FMT_W16_S)
			_mm512_storeu_ps(s + 64, group_scale(p, p->format, g, 1));
		s += to.format == FMT_W16 ? 64 : 128;
		for (int v = 0; v < 4; v++) {
			if (tm_is_w4(p->format))
				expand4(p->w + g * 256 + v * 64, below, w + v * 128);
			else
				expand8(p->w + g * 512 + v * 128, w + v * 128);
		}
	}
	return to;
}

// Activations of one pass over a panel stay under this, to come from the level 2
// cache beside the panel.
enum { PASS_BYTES = 1 << 20 };

void tm_amx_matmul(const tm_mat *m, const tm_act *a, int panel0, int panel1,
                   float *out, size_t ldo, int accumulate, void *scratch)
{
	const tm_amx *amx = a->isa == TM_ISA_AMX ? &tm_amx_tiles : &tm_amx_model;
	const size_t row = a->q8 ? tm_amx_row_bytes8(m->k) : tm_amx_row_bytes(m->k);
	const int step = (int)(PASS_BYTES / (row * TM_AMX_ROWS)), tiles = step < 4 ? 4 : step;
	int cols;
	const int col0 = tm_mat_col(m, panel0, &cols);
	tm_amx_job j = {.q16 = a->q16, .q8 = a->q8, .ldo = ldo, .accumulate = accumulate};
	for (j.row0 = 0; j.row0 < a->rows; j.row0 = j.row1) {
		const int left = a->rows - j.row0;
		j.row1 = tiles * TM_AMX_ROWS < left ? j.row0 + tiles * TM_AMX_ROWS : a->rows;
		for (int p = panel0; p < panel1; p++) {
			const tm_panel packed = tm_mat_panel(m, p);
			if (!tm_is_quantised(packed.format))
				continue;
			j.packed = packed;
			j.panel = expand(&packed, scratch);
			j.out = out + (tm_mat_col(m, p, &j.cols) - col0);
			amx->run(&j);
		}
	}
	if (j.config)
		amx->done();
}
#endif
