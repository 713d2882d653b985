#include "matmul_impl.h"

// Dequantised values are rounded after each operation, as the file format's
// definition does it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#elif defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

enum { SUPER = 256 };  // k values of a K-quant block

static const struct {
	int elems, bytes, format;
} dtypes[] = {
	[TM_F32] = {1, 4, FMT_F32},        [TM_F16] = {1, 2, FMT_F16},
	[TM_BF16] = {1, 2, FMT_BF16},      [TM_Q4_0] = {32, 18, FMT_W4_0},
	[TM_Q4_1] = {32, 20, FMT_W4_1},    [TM_Q5_0] = {32, 22, FMT_W8},
	[TM_Q5_1] = {32, 24, FMT_W8_1},   [TM_Q8_0] = {32, 34, FMT_W8},
	[TM_Q4_K] = {256, 144, FMT_W4_K},  [TM_Q5_K] = {256, 176, FMT_W8_K},
	[TM_Q6_K] = {256, 210, FMT_W8_S},
	[TM_F16_FLOAT] = {1, 2, FMT_F16},  [TM_BF16_FLOAT] = {1, 2, FMT_BF16},
};

int tm_dtype_format(int dtype, int k)
{
	if ((dtype == TM_F16 || dtype == TM_BF16) && k % TM_GROUP == 0)
		return FMT_W12;
	return dtypes[dtype].format;
}

size_t tm_row_bytes(int dtype, int k)
{
	if (dtype < TM_F32 || dtype > TM_BF16_FLOAT || !dtypes[dtype].elems || k <= 0 || k % dtypes[dtype].elems)
		return 0;
	return (size_t)(k / dtypes[dtype].elems) * dtypes[dtype].bytes;
}

static size_t round64(size_t n) { return (n + 63) & ~(size_t)63; }

tm_sections tm_format_sections(int format, int k)
{
	static const struct {
		int super, scale, w;
	} sizes[] = {
		[FMT_W4_0] = {0, 32, 256},  [FMT_W4_1] = {0, 64, 256},   [FMT_W4_K] = {64, 32, 256},
		[FMT_W8] = {0, 32, 512},    [FMT_W8_1] = {0, 64, 512},   [FMT_W8_K] = {64, 32, 512},
		[FMT_W8_S] = {32, 32, 512}, [FMT_W12] = {0, 16, 768},
		[FMT_W16] = {0, 64, 1024},  [FMT_W16_M] = {0, 128, 1024}, [FMT_W16_S] = {0, 128, 1024},
		[FMT_B8] = {0, 64, 512},    [FMT_B8_M] = {0, 128, 512},   [FMT_B8_S] = {0, 128, 512},
	};
	size_t n = (size_t)k, groups = n / TM_GROUP;
	switch (format) {
	case FMT_F32: return (tm_sections){0, 0, n * 64};
	case FMT_F16: return (tm_sections){0, 0, round64(n * 32)};
	case FMT_BF16: return (tm_sections){0, 0, (n + 1) / 2 * 64};
	}
	tm_sections s;
	s.scale = round64(n / SUPER * sizes[format].super);
	s.w = s.scale + round64(groups * sizes[format].scale);
	s.bytes = s.w + groups * sizes[format].w;
	return s;
}

tm_panel tm_panel_at(int format, int k, const uint8_t *base)
{
	tm_sections s = tm_format_sections(format, k);
	return (tm_panel){format, k / TM_GROUP, k, base, base + s.scale, base + s.w};
}

int tm_mat_layout(tm_mat *m, int parts, const int *dts, const int *ns, int k, int interleaved)
{
	enum { MAX_COLS = 1 << 28 };
	if (parts < 1 || parts > TM_SEGMENTS || k <= 0 || (interleaved && (parts != 2 || ns[0] != ns[1])))
		return -1;
	memset(m, 0, sizeof *m);
	m->k = k;
	m->segs = parts;
	m->interleaved = interleaved != 0;
	for (int i = 0; i < parts; i++) {
		tm_seg *s = &m->seg[i];
		if (!tm_row_bytes(dts[i], k) || ns[i] <= 0 || ns[i] > MAX_COLS)
			return -1;
		s->dtype = dts[i];
		s->format = tm_dtype_format(dts[i], k);
		s->n = ns[i];
		s->panels = (ns[i] + TM_PANEL - 1) / TM_PANEL;
		s->col = m->n;
		s->offset = m->bytes;
		s->panel_bytes = tm_format_sections(s->format, k).bytes;
		if (s->panel_bytes > (SIZE_MAX / 2 - m->bytes) / s->panels)
			return -1;
		m->bytes += s->panel_bytes * s->panels;
		m->panels += s->panels;
		m->n += interleaved ? s->panels * TM_PANEL : ns[i];
		m->acts |= tm_is_quantised(s->format) ? TM_ACT_Q16 : TM_ACT_F32;
		if (s->format == FMT_W12)
			m->acts |= TM_ACT_PLAIN;
	}
	return 0;
}

int tm_mat_acts(const tm_mat *m, int bits)
{
	int acts = 0;
	if (bits == 16)
		return m->acts;
	for (int i = 0; i < m->segs; i++) {
		const int format = m->seg[i].format;
		acts |= tm_is_bytes(format) ? TM_ACT_Q8 : format == FMT_W12 ? TM_ACT_Q16 | TM_ACT_PLAIN : TM_ACT_F32;
	}
	return acts;
}

// k_scale unpacks the 6-bit scale and min of group j of a Q4_K or Q5_K block.
static void k_scale(const uint8_t *s, int j, uint8_t *scale, uint8_t *min)
{
	if (j < 4) {
		*scale = s[j] & 63;
		*min = s[j + 4] & 63;
		return;
	}
	*scale = (uint8_t)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
	*min = (uint8_t)(s[j + 4] >> 4 | s[j] >> 6 << 4);
}

// nibbles spreads 16 bytes: element i in the low, i+16 in the high half.
static void nibbles(const uint8_t *qs, uint8_t q[TM_GROUP])
{
	for (int i = 0; i < 16; i++) {
		q[i] = qs[i] & 15;
		q[i + 16] = qs[i] >> 4;
	}
}

static void levels_q5(const uint8_t *qh, const uint8_t *qs, int below, uint8_t q[TM_GROUP])
{
	uint32_t high;
	memcpy(&high, qh, 4);
	nibbles(qs, q);
	for (int i = 0; i < TM_GROUP; i++)
		q[i] = (uint8_t)((q[i] | (high >> i & 1) << 4) - below);
}

static void levels_k(const uint8_t *qs, int j, uint8_t q[TM_GROUP])
{
	for (int i = 0; i < TM_GROUP; i++)
		q[i] = qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
}

static void levels_q6k(const uint8_t *block, int j, uint8_t q[TM_GROUP])
{
	const uint8_t *ql = block + j / 4 * 64 + j % 2 * 32, *qh = block + 128 + j / 4 * 32;
	int low = j % 4 / 2 * 4, high = j % 4 * 2;
	for (int i = 0; i < TM_GROUP; i++)
		q[i] = (uint8_t)((ql[i] >> low & 15) + ((qh[i] >> high & 3) << 4) - 32);
}

// group_levels reads the levels of group g of a row: unsigned for formats of 4
// bits, else two's complement.
static void group_levels(int dtype, const uint8_t *row, int g, uint8_t q[TM_GROUP])
{
	const uint8_t *b = row + (size_t)(g * TM_GROUP / dtypes[dtype].elems) * dtypes[dtype].bytes;
	int j = g % (SUPER / TM_GROUP);
	switch (dtype) {
	case TM_Q4_0: nibbles(b + 2, q); break;
	case TM_Q4_1: nibbles(b + 4, q); break;
	case TM_Q5_0: levels_q5(b + 2, b + 6, 16, q); break;
	case TM_Q5_1: levels_q5(b + 4, b + 8, 0, q); break;
	case TM_Q8_0: memcpy(q, b + 2, TM_GROUP); break;
	case TM_Q4_K: levels_k(b + 16, j, q); break;
	case TM_Q5_K:
		levels_k(b + 48, j, q);
		for (int i = 0; i < TM_GROUP; i++)
			q[i] = (uint8_t)(q[i] + ((b[16 + i] >> j & 1) << 4));
		break;
	case TM_Q6_K: levels_q6k(b, j, q); break;
	}
}

static void put_16(uint8_t *run, int c, const uint8_t *v) { memcpy(run + c * 2, v, 2); }

// pack_scales writes what scales column c of group g.
static void pack_scales(int dtype, const uint8_t *row, int g, uint8_t *super, uint8_t *scale, int c)
{
	const uint8_t *b = row + (size_t)(g * TM_GROUP / dtypes[dtype].elems) * dtypes[dtype].bytes;
	int s = g / (SUPER / TM_GROUP), j = g % (SUPER / TM_GROUP);
	switch (dtype) {
	case TM_Q4_0: case TM_Q5_0: case TM_Q8_0:
		put_16(scale + g * 32, c, b);
		break;
	case TM_Q4_1: case TM_Q5_1:
		put_16(scale + g * 64, c, b);
		put_16(scale + g * 64 + 32, c, b + 2);
		break;
	case TM_Q4_K: case TM_Q5_K:
		put_16(super + s * 64, c, b);
		put_16(super + s * 64 + 32, c, b + 2);
		k_scale(b + 4, j, &scale[g * 32 + c], &scale[g * 32 + 16 + c]);
		break;
	case TM_Q6_K:
		put_16(super + s * 32, c, b + 208);
		scale[g * 32 + c] = b[192 + j * 2];
		scale[g * 32 + 16 + c] = b[192 + j * 2 + 1];
		break;
	}
}

static void pack_column(const tm_seg *s, int k, const uint8_t *row, uint8_t *panel, int c)
{
	tm_sections sec = tm_format_sections(s->format, k);
	uint8_t *w = panel + sec.w, q[TM_GROUP];
	for (int g = 0; g < k / TM_GROUP; g++) {
		group_levels(s->dtype, row, g, q);
		pack_scales(s->dtype, row, g, panel, panel + sec.scale, c);
		const int pack = tm_is_w4(s->format) ? 2 : 1;  // quads in a vector
		for (int v = 0; v < TM_QUADS; v += pack, w += 64)
			for (int b = 0; b < 4; b++)
				w[c * 4 + b] = (uint8_t)(q[TM_QUAD(v, b)] | (pack == 2 ? q[TM_QUAD(v + 1, b)] << 4 : 0));
	}
}

// Levels of 12 bits for F16 and BF16. A group's scale is the power of two at which
// its greatest weight, of at most 11 bits, is exact with 1024 to 2047; so is every
// weight down to an eighth of that in BF16, and what is lost of the others is at most
// half a level, an eighth of what BF16 itself loses of the greatest. 32 products with
// activations of TM_LEVEL_MAX fit 32 bits: 32 * 2047 * 32639 < 2^31.

// half_values and bf16_values decode a group.
static void half_values(const uint8_t *b, float v[TM_GROUP])
{
	for (int i = 0; i < TM_GROUP; i++)
		v[i] = tm_half(tm_load16(b + i * 2));
}

static void bf16_values(const uint8_t *b, float v[TM_GROUP])
{
	for (int i = 0; i < TM_GROUP; i++)
		v[i] = tm_bf16(tm_load16(b + i * 2));
}

// levels12 sets q to a group's levels and returns the exponent of its scale.
static uint8_t levels12(const float v[TM_GROUP], uint32_t q[TM_GROUP])
{
	// Added to a number below 2^22 this rounds to an integer, ties to even.
	const float magic = 0x1.8p23f;
	uint32_t top = 0, bits[TM_GROUP];
	memcpy(bits, v, sizeof bits);
	for (int i = 0; i < TM_GROUP; i++) {
		const uint32_t u = bits[i] & 0x7fffffff;
		top = u > top ? u : top;
	}
	const int high = (int)(top >> 23), exponent = high > 11 ? high - 10 : 1;
	if (high == 255 || top == 0) {
		memset(q, 0, TM_GROUP * sizeof *q);
		return high == 255 ? TM_NO_NUMBER : 0;
	}
	const float inverse = tm_bits_float((uint32_t)(254 - exponent) << 23);
	for (int i = 0; i < TM_GROUP; i++) {
		const float level = v[i] * inverse + magic;
		memcpy(&q[i], &level, 4);
		q[i] -= 0x4b400000;
	}
	return (uint8_t)exponent;
}

// pack_w12_column packs column c of F16 or BF16.
static void pack_w12_column(int dtype, int k, const uint8_t *row, uint8_t *panel, int c)
{
	uint8_t *w = panel + tm_format_sections(FMT_W12, k).w;
	for (int g = 0; g < k / TM_GROUP; g++, row += TM_GROUP * 2) {
		float v[TM_GROUP];
		uint32_t q[TM_GROUP];
		if (dtype == TM_F16)
			half_values(row, v);
		else
			bf16_values(row, v);
		panel[g * TM_PANEL + c] = levels12(v, q);
		for (int i = 0; i < TM_GROUP; i += 8, w += 192) {
			// Two levels in a word, the even k low.
			uint32_t pair[4];
			for (int j = 0; j < 4; j++)
				pair[j] = (q[i + j * 2] & 0xfff) | (q[i + j * 2 + 1] & 0xfff) << 16;
			for (int j = 0; j < 3; j++) {
				const uint32_t word = pair[j] << 4 | (pair[3] >> (8 - j * 4) & 0x000f000f);
				memcpy(w + j * 64 + c * 4, &word, 4);
			}
		}
	}
}

static void pack_float_column(int format, int k, const uint8_t *row, uint8_t *panel, int c)
{
	for (size_t i = 0; i < (size_t)k; i++) {
		switch (format) {
		case FMT_F32: memcpy(panel + (i * TM_PANEL + c) * 4, row + i * 4, 4); break;
		case FMT_F16: memcpy(panel + (i * TM_PANEL + c) * 2, row + i * 2, 2); break;
		case FMT_BF16: memcpy(panel + (i / 2 * TM_PANEL + c) * 4 + i % 2 * 2, row + i * 2, 2); break;
		}
	}
}

void tm_mat_pack(const tm_mat *m, int seg, const uint8_t *src, int panel0, int panel1)
{
	const tm_seg *s = &m->seg[seg];
	size_t row = tm_row_bytes(s->dtype, m->k);
	for (int p = panel0; p < panel1; p++) {
		uint8_t *panel = m->data + s->offset + s->panel_bytes * p;
		// Padding columns get zero scales and so come out as zero.
		memset(panel, 0, s->panel_bytes);
		for (int c = 0; c < TM_PANEL && p * TM_PANEL + c < s->n; c++) {
			const uint8_t *r = src + row * ((size_t)p * TM_PANEL + c);
			if (s->format == FMT_W12)
				pack_w12_column(s->dtype, m->k, r, panel, c);
			else if (tm_is_quantised(s->format))
				pack_column(s, m->k, r, panel, c);
			else
				pack_float_column(s->format, m->k, r, panel, c);
		}
	}
}

// level_scale reads scale and min of column c for half h of group g.
static float level_scale(const tm_panel *p, int g, int h, int c, float *min)
{
	const uint8_t *s;
	*min = 0;
	switch (p->format) {
	case FMT_W4_1: case FMT_W8_1:
		s = p->scale + g * 64 + c * 2;
		*min = tm_half(tm_load16(s + 32));
		return tm_half(tm_load16(s));
	case FMT_W4_K: case FMT_W8_K:
		s = p->super + g / 8 * 64 + c * 2;
		*min = -(tm_half(tm_load16(s + 32)) * (float)p->scale[g * 32 + 16 + c]);
		return tm_half(tm_load16(s)) * (float)p->scale[g * 32 + c];
	case FMT_W8_S:
		s = p->super + g / 8 * 32 + c * 2;
		return tm_half(tm_load16(s)) * (float)(int8_t)p->scale[g * 32 + h * 16 + c];
	case FMT_W12:
		return tm_bits_float((uint32_t)p->scale[g * 16 + c] << 23);
	}
	return tm_half(tm_load16(p->scale + g * 32 + c * 2));  // W4_0, W8
}

static void quantised_row(const tm_panel *p, int c, float *dst)
{
	for (int i = 0; i < p->k; i++) {
		int g = i / TM_GROUP, level;
		if (tm_is_w4(p->format))
			level = tm_w4_level(p->w, i, c) - (p->format == FMT_W4_0 ? 8 : 0);
		else if (p->format == FMT_W12)
			level = tm_w12_level(p->w, i, c);
		else
			level = tm_w8_level(p->w, i, c);
		float min, scale = level_scale(p, g, i % TM_GROUP / 16, c, &min);
		dst[i] = scale * (float)level + min;
	}
}

void tm_mat_row(const tm_mat *m, int col, float *dst)
{
	int i = 0;
	while (i + 1 < m->segs && col >= m->seg[i + 1].col && !m->interleaved)
		i++;
	int rel = col - m->seg[i].col, panel = rel / TM_PANEL, c = rel % TM_PANEL;
	if (m->interleaved) {
		i = panel % 2;
		panel /= 2;
	}
	const tm_seg *s = &m->seg[i];
	const uint8_t *base = m->data + s->offset + s->panel_bytes * panel;
	if (tm_is_quantised(s->format)) {
		tm_panel p = tm_panel_at(s->format, m->k, base);
		quantised_row(&p, c, dst);
		return;
	}
	for (size_t k = 0; k < (size_t)m->k; k++) {
		switch (s->format) {
		case FMT_F32: dst[k] = tm_load_f32(base + (k * TM_PANEL + c) * 4); break;
		case FMT_F16: dst[k] = tm_half(tm_load16(base + (k * TM_PANEL + c) * 2)); break;
		case FMT_BF16: dst[k] = tm_bf16(tm_load16(base + (k / 2 * TM_PANEL + c) * 4 + k % 2 * 2)); break;
		}
	}
}
