#include "amx.h"
#include "matmul_impl.h"

// Activations of one pass over a panel stay under this, so that they come from
// the level 2 cache for every panel but the first.
enum { BLOCK_BYTES = 1 << 20 };

static const tm_kernels *kernels(int isa)
{
#if defined(__x86_64__)
	if (isa >= TM_ISA_AVX512)
		return &tm_kernels_avx512;
	if (isa == TM_ISA_AVX2)
		return &tm_kernels_avx2;
#endif
	(void)isa;
	return &tm_kernels_portable;
}

static const tm_kernels8 *kernels8(int isa)
{
#if defined(__x86_64__)
	if (isa >= TM_ISA_AVX512)
		return &tm_kernels8_avx512;
	if (isa == TM_ISA_AVX2)
		return &tm_kernels8_avx2;
#endif
	(void)isa;
	return &tm_kernels8_portable;
}

static size_t round64(size_t n) { return (n + 63) & ~(size_t)63; }

static size_t q16_bytes(int rows, int k) { return round64(tm_q16_row_bytes(k) * rows); }
static size_t q8_bytes(int rows, int k) { return round64(tm_q8_row_bytes(k) * rows); }

size_t tm_act_bytes(int acts, int rows, int k)
{
	size_t n = 0;
	if (acts & TM_ACT_Q16)
		n += q16_bytes(rows, k);
	if (acts & TM_ACT_Q8)
		n += q8_bytes(rows, k);
	if (acts & TM_ACT_F32)
		n += round64(tm_f32_row_bytes(k) * rows);
	return n;
}

void tm_act_init(tm_act *a, int isa, int acts, int rows, int k, void *mem)
{
	uint8_t *at = mem;
	const int tiled = isa >= TM_ISA_AMX && rows >= TM_AMX_LEAST && !(acts & TM_ACT_PLAIN);
	*a = (tm_act){.isa = isa, .rows = rows, .k = k, .acts = acts, .tiled = tiled};
	if (acts & TM_ACT_Q16) {
		a->q16 = at;
		at += q16_bytes(rows, k);
	}
	if (acts & TM_ACT_Q8) {
		a->q8 = at;
		at += q8_bytes(rows, k);
	}
	if (acts & TM_ACT_F32)
		a->f32 = (float *)at;
}

static void fill_f32(float *tile, int width, int lane, const float *x, int k)
{
	for (size_t i = 0; i < (size_t)k; i++)
		tile[i * width + lane] = x[i];
	if (k % 2)
		tile[(size_t)k * width + lane] = 0;
}

static void fill_tiled(const tm_act *a, const float *x, size_t ldx, int row0, int row1)
{
#if defined(__x86_64__)
	for (int r = row0; r < row1; r++) {
		const int begin = r / TM_AMX_ROWS * TM_AMX_ROWS;
		const int width = tm_amx_width(a->rows, begin);
		const float *row = x + ldx * (size_t)(r - row0);
		if (a->q8)
			tm_amx_quant8(a->q8 + tm_amx_row_bytes8(a->k) * begin, width, r - begin, row, a->k);
		else
			tm_amx_quant(a->q16 + tm_amx_row_bytes(a->k) * begin, width, r - begin, row, a->k);
	}
#endif
}

void tm_act_fill(const tm_act *a, const float *x, size_t ldx, int row0, int row1)
{
	const tm_kernels *kern = kernels(a->isa);
	if (a->tiled && a->acts & (TM_ACT_Q16 | TM_ACT_Q8))
		fill_tiled(a, x, ldx, row0, row1);
	if (a->tiled && !(a->acts & TM_ACT_F32))
		return;
	size_t q16 = tm_q16_row_bytes(a->k), q8 = tm_q8_row_bytes(a->k), f32 = tm_f32_row_bytes(a->k) / sizeof(float);
	for (int t = 0; t < tm_tiles(a->rows); t++) {
		int begin = tm_tile_row(a->rows, t), end = tm_tile_row(a->rows, t + 1);
		int from = begin > row0 ? begin : row0, to = end < row1 ? end : row1;
		for (int r = from; r < to; r++) {
			const float *row = x + ldx * (size_t)(r - row0);
			if (a->acts & TM_ACT_Q16 && !a->tiled)
				kern->quant(a->q16 + q16 * begin, end - begin, r - begin, row, a->k);
			if (a->acts & TM_ACT_Q8 && !a->tiled)
				kernels8(a->isa)->quant(a->q8 + q8 * begin, end - begin, r - begin, row, a->k);
			if (a->acts & TM_ACT_F32)
				fill_f32(a->f32 + f32 * begin, end - begin, r - begin, row, a->k);
		}
	}
}

// panel_seg finds the segment of a panel and its index inside it.
static const tm_seg *panel_seg(const tm_mat *m, int panel, int *index)
{
	if (m->interleaved) {
		*index = panel / 2;
		return &m->seg[panel % 2];
	}
	const tm_seg *s = m->seg;
	while (panel >= s->panels)
		panel -= s++->panels;
	*index = panel;
	return s;
}

int tm_mat_col(const tm_mat *m, int panel, int *width)
{
	int index;
	const tm_seg *s = panel_seg(m, panel, &index);
	int left = s->n - index * TM_PANEL;
	*width = left < TM_PANEL ? left : TM_PANEL;
	return m->interleaved ? panel * TM_PANEL : s->col + index * TM_PANEL;
}

size_t tm_mat_span(const tm_mat *m, int panel0, int panel1)
{
	size_t bytes = 0;
	for (int index; panel0 < panel1; panel0++)
		bytes += panel_seg(m, panel0, &index)->panel_bytes;
	return bytes;
}

tm_panel tm_mat_panel(const tm_mat *m, int panel)
{
	int index;
	const tm_seg *s = panel_seg(m, panel, &index);
	return tm_panel_at(s->format, m->k, m->data + s->offset + s->panel_bytes * index);
}

size_t tm_matmul_scratch(const tm_mat *m)
{
	size_t need = 0;
	for (int i = 0; i < m->segs; i++) {
		if (!tm_is_quantised(m->seg[i].format))
			continue;
		size_t n = tm_format_sections(tm_widened(m->seg[i].format), m->k).bytes;
		need = n > need ? n : need;
	}
	return need * TM_RUN;
}

// job is what all steps of one tm_matmul call share.
typedef struct {
	const tm_mat *m;
	const tm_act *a;
	const tm_kernels *kern;
	const tm_kernels8 *kern8;
	float *out;  // row 0 of the first column of the call's first panel
	size_t ldo;
	int col0;  // that column
	int accumulate;
} job;

static inline void add4(float *to, const float *x)
{
	typedef float four __attribute__((vector_size(16)));
	four a, b;
	memcpy(&a, to, sizeof a);
	memcpy(&b, x, sizeof b);
	a += b;
	memcpy(to, &a, sizeof a);
}

// store writes a tile's products with one panel, val[width][TM_PANEL].
static void store(const job *j, int panel, int row0, int width, const float *val)
{
	int cols, col = tm_mat_col(j->m, panel, &cols);
	float *out = j->out + j->ldo * (size_t)row0 + (col - j->col0);
	for (int r = 0; r < width; r++, out += j->ldo, val += TM_PANEL) {
		if (cols < TM_PANEL)
			for (int c = 0; c < cols; c++)
				out[c] = j->accumulate ? out[c] + val[c] : val[c];
		else if (j->accumulate)
			for (int c = 0; c < TM_PANEL; c += 4)
				add4(out + c, val + c);
		else
			memcpy(out, val, sizeof(float) * TM_PANEL);
	}
}

// expect fetches what a tile's products with num panels are added to. Its rows are far
// apart, and the processor does not guess them.
static void expect(const job *j, int panel, int num, int row0, int width)
{
	int cols;
	const float *out = j->out + j->ldo * (size_t)row0 + (tm_mat_col(j->m, panel, &cols) - j->col0);
	for (int r = 0; r < width; r++, out += j->ldo)
		for (int i = 0; i < num; i++)
			__builtin_prefetch(out + i * TM_PANEL, 1);
}

// in8 tells whether panels of a packed format are multiplied with activations of 8 bits.
static int in8(const job *j, int format) { return j->a->acts & TM_ACT_Q8 && tm_is_bytes(format); }

// kind is the format that panels of a packed format have when they are multiplied with
// so many tiles.
static int kind(const job *j, int format, int tiles)
{
	if (!tm_is_quantised(format) || tiles <= TM_WIDEN_TILES)
		return format;
	if (!in8(j, format))
		return tm_widened(format);
	return j->kern8->wide ? j->kern8->wide + tm_widened(format) - FMT_W16 : format;
}

// dot8 multiplies num panels with the tile of activations of 8 bits that begins at a row.
static void dot8(const job *j, const tm_panel *p, int num, int begin, int width, float *val)
{
	const uint8_t *tile = j->a->q8 + tm_q8_row_bytes(j->m->k) * begin;
	j->kern8->dot(p, num, tile, width, val);
	j->kern8->outliers(p, num, tm_q8_lists(tile, width, j->m->k), width, val);
}

// multiply computes num panels of one kind for the tiles [tile0, tile1).
static void multiply(const job *j, int panel, int num, int tile0, int tile1, uint8_t *scratch)
{
	float val[TM_RUN * TM_TILE * TM_PANEL] __attribute__((aligned(64)));
	tm_panel p[TM_RUN];
	int rows = j->a->rows, k = j->m->k, bytes = 0;
	for (int i = 0; i < num; i++) {
		p[i] = tm_mat_panel(j->m, panel + i);
		bytes = in8(j, p[i].format);
		const int wide = kind(j, p[i].format, tile1 - tile0);
		if (wide == p[i].format)
			continue;
		(bytes ? j->kern8->widen : j->kern->widen)(&p[i], scratch);
		p[i] = tm_panel_at(wide, k, scratch);
		scratch += tm_format_sections(wide, k).bytes;
	}
	for (int t = tile0; t < tile1; t++) {
		int begin = tm_tile_row(rows, t), width = tm_tile_row(rows, t + 1) - begin;
		if (j->accumulate)
			expect(j, panel, num, begin, width);
		if (bytes)
			dot8(j, p, num, begin, width, val);
		else if (tm_is_quantised(p[0].format))
			j->kern->dot(p, num, j->a->q16 + tm_q16_row_bytes(k) * begin, width, val);
		else
			j->kern->fdot(p, num, j->a->f32 + tm_f32_row_bytes(k) / sizeof(float) * begin, width, val);
		for (int i = 0; i < num; i++)
			store(j, panel + i, begin, width, val + i * width * TM_PANEL);
	}
}

// run_length returns how many panels from `panel` on go through a kernel at once.
static int run_length(const job *j, int panel, int end, int tiles)
{
	int index, n = 1;
	const int packed = panel_seg(j->m, panel, &index)->format, first = kind(j, packed, tiles);
	if (!tm_is_quantised(packed))
		n = j->kern->run_float;
	else if (first != packed)
		n = in8(j, packed) ? j->kern8->run_wide : j->kern->run_wide;
	if (panel + n > end)
		return 1;
	for (int i = 1; i < n; i++) {
		const int next = panel_seg(j->m, panel + i, &index)->format;
		if (kind(j, next, tiles) != first || in8(j, next) != in8(j, packed))
			return 1;
	}
	return n;
}

// block_end returns the end of the run of tiles from tile0 whose activations
// stay in cache while all panels pass over them.
static int block_end(const tm_mat *m, const tm_act *a, int tile0)
{
	size_t row = m->acts & TM_ACT_F32 ? tm_f32_row_bytes(m->k)
	           : a->acts & TM_ACT_Q16 ? tm_q16_row_bytes(m->k) : tm_q8_row_bytes(m->k);
	size_t tiles = BLOCK_BYTES / (row * TM_TILE);
	int left = tm_tiles(a->rows) - tile0;
	if (tiles < 8)
		tiles = 8;
	return tiles < (size_t)left ? tile0 + (int)tiles : tile0 + left;
}

void tm_matmul(const tm_mat *m, const tm_act *a, int panel0, int panel1,
               float *out, size_t ldo, int accumulate, void *scratch)
{
	int cols;
	if (panel0 >= panel1 || a->rows <= 0)
		return;
#if defined(__x86_64__)
	if (a->tiled && m->acts & TM_ACT_Q16)
		tm_amx_matmul(m, a, panel0, panel1, out, ldo, accumulate, scratch);
#endif
	if (a->tiled && !(m->acts & TM_ACT_F32))
		return;
	job j = {m, a, kernels(a->isa), kernels8(a->isa), out, ldo, tm_mat_col(m, panel0, &cols), accumulate};
	for (int tile = 0, end; tile < tm_tiles(a->rows); tile = end) {
		end = block_end(m, a, tile);
		for (int p = panel0, n; p < panel1; p += n) {
			n = 1;
			if (a->tiled && tm_is_quantised(tm_mat_panel(m, p).format))
				continue;
			n = run_length(&j, p, panel1, end - tile);
			multiply(&j, p, n, tile, end, scratch);
		}
	}
}
