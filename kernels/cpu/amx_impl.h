// The tile kernel, over the operations of the file that includes this one:
//
//   TILES_CONFIG(c)            sets all tile shapes, and the tiles to zero
//   TILES_DONE()               gives the tiles back
//   TILE_ZERO(t)
//   TILE_LOAD(t, base, stride), TILE_STORE(t, base, stride)
//   TILE_DOT_SS(c, a, b)       c += a . b, signed bytes
//   TILE_DOT_US(c, a, b)       the same with a unsigned
//
// TM_AMX_TABLE names what it makes.

// tile_config is the operand of ldtilecfg.
typedef struct {
	uint8_t palette, start_row, reserved[14];
	uint16_t colsb[16];
	uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "ldtilecfg reads 64 bytes");

// shapes names what tiles are configured for: `width` rows, `bytes` k of a step.
static int shapes(int width, int bytes) { return width << 8 | bytes; }

// Tiles 0 and 4 hold weights, 1 and 5 activations, the others sums: two sets, so
// that the products of a step need not wait for the sums of the one before.
static void configure(tm_amx_job *j, int width, int bytes)
{
	if (j->config == shapes(width, bytes))
		return;
	j->config = shapes(width, bytes);
	tile_config c = {.palette = 1};
	for (int t = 0; t < 8; t++) {
		c.rows[t] = (uint8_t)(t % 4 == 0 ? bytes / 4 : width);
		c.colsb[t] = (uint16_t)(t % 4 == 1 ? bytes : 64);
	}
	TILES_CONFIG(&c);
}

// STEP sets sums[2][R][16] to the dots of h and of l with `bytes` k of weights.
#define STEP(W, A, H, L, w, h, l, sums) \
	do { \
		TILE_LOAD(W, w, 64); \
		TILE_LOAD(A, h, TM_GROUP); \
		TILE_ZERO(H); \
		TILE_DOT_SS(H, A, W); \
		TILE_LOAD(A, l, TM_GROUP); \
		TILE_ZERO(L); \
		TILE_DOT_US(L, A, W); \
		TILE_STORE(H, (sums)[0], 64); \
		TILE_STORE(L, (sums)[1], 64); \
	} while (0)

// STEP8 sets sums[0] to the dots of bytes.
#define STEP8(W, A, S, w, a, sums) \
	do { \
		TILE_LOAD(W, w, 64); \
		TILE_LOAD(A, a, TM_GROUP); \
		TILE_ZERO(S); \
		TILE_DOT_SS(S, A, W); \
		TILE_STORE(S, (sums)[0], 64); \
	} while (0)

typedef int32_t tile_sums[2][TM_AMX_ROWS * TM_PANEL];

INLINE void add_min_rows(__m512 *acc, const float *asum, __m512 min, const int R)
{
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(asum[r]), acc[r]);
}

INLINE void add_sums(__m512 *acc, const tile_sums s, __m512 scale, const int R)
{
	UNROLL for (int r = 0; r < R; r++) {
		__m512i h = _mm512_slli_epi32(_mm512_load_si512(s[0] + r * TM_PANEL), 8);
		__m512i dot = _mm512_add_epi32(h, _mm512_load_si512(s[1] + r * TM_PANEL));
		acc[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot), acc[r]);
	}
}

INLINE void add_sums8(__m512 *acc, const tile_sums s, const float *ascale, __m512 scale, const int R)
{
	UNROLL for (int r = 0; r < R; r++) {
		const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(s[0] + r * TM_PANEL));
		acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(ascale[r])), dot, acc[r]);
	}
}

// add_step does the float work of a step: half h of group g.
INLINE void add_step(__m512 *acc, const tm_amx_job *j, const uint8_t *rec, const tile_sums s, size_t g, const int format,
                     const int bits, const int h, const int R)
{
	if (bits == 8) {
		const float *ascale = (const float *)(rec + R * TM_GROUP);
		if (format == FMT_W16_M)
			add_min_rows(acc, ascale + R, group_min(&j->panel, format, g), R);
		add_sums8(acc, s, ascale, group_scale(&j->panel, format, g, h), R);
		return;
	}
	if (format == FMT_W16_M)
		add_min_rows(acc, (const float *)(rec + R * 2 * TM_GROUP), group_min(&j->panel, format, g), R);
	add_sums(acc, s, group_scale(&j->panel, format, g, h), R);
}

// add_outliers adds what the lists of a tile of activations of 8 bits say.
INLINE void add_outliers(const tm_amx_job *j, __m512 *acc, const uint8_t *tile, const int R)
{
	float out[TM_AMX_ROWS * TM_PANEL] __attribute__((aligned(64)));
	UNROLL for (int r = 0; r < R; r++)
		_mm512_store_ps(out + r * TM_PANEL, acc[r]);
	tm_kernels8_avx512.outliers(&j->packed, 1, tm_amx_lists(tile, R, j->panel.k), R, out);
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_load_ps(out + r * TM_PANEL);
}

INLINE void put(const tm_amx_job *j, const __m512 *acc, const float *scale, int row, const int R)
{
	const __mmask16 mask = (__mmask16)((1u << j->cols) - 1);
	float *out = j->out + j->ldo * (size_t)row;
	UNROLL for (int r = 0; r < R; r++, out += j->ldo) {
		__m512 v = scale ? _mm512_mul_ps(acc[r], _mm512_set1_ps(scale[r])) : acc[r];
		if (j->accumulate)
			v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), v);
		_mm512_mask_storeu_ps(out, mask, v);
	}
}

// tile_rows multiplies a panel with a tile of R rows. The float work of a step
// stands behind the tile work of the next, so that the two overlap.
INLINE void tile_rows(const tm_amx_job *j, int row, const int format, const int bits, const int R)
{
	const int halves = format == FMT_W16_S, bytes = halves ? 16 : 32;
	const size_t record = bits == 8 ? tm_amx_record8(R) : tm_amx_record(R), groups = (size_t)j->panel.groups;
	const uint8_t *tile = bits == 8 ? j->q8 + tm_amx_row_bytes8(j->panel.k) * (size_t)row
	                                : j->q16 + tm_amx_row_bytes(j->panel.k) * (size_t)row;
	const uint8_t *rec = bits == 8 ? tile : tile + R * 4, *w = j->panel.w;
	tile_sums sums[2] __attribute__((aligned(64)));
	__m512 acc[TM_AMX_ROWS];
	UNROLL for (int r = 0; r < R; r++)
		acc[r] = _mm512_setzero_ps();
	for (size_t g = 0; g < groups; g++, rec += record, w += 512) {
		const uint8_t *low = rec + R * TM_GROUP;
		if (halves) {
			if (bits == 8)
				STEP8(0, 1, 2, w, rec, sums[0]);
			else
				STEP(0, 1, 2, 3, w, rec, low, sums[0]);
			if (g > 0)
				add_step(acc, j, rec - record, sums[1], g - 1, format, bits, 1, R);
			if (bits == 8)
				STEP8(4, 5, 6, w + 256, rec + bytes, sums[1]);
			else
				STEP(4, 5, 6, 7, w + 256, rec + bytes, low + bytes, sums[1]);
			add_step(acc, j, rec, sums[0], g, format, bits, 0, R);
			continue;
		}
		if (bits == 8 && g % 2 == 0)
			STEP8(0, 1, 2, w, rec, sums[0]);
		else if (bits == 8)
			STEP8(4, 5, 6, w, rec, sums[1]);
		else if (g % 2 == 0)
			STEP(0, 1, 2, 3, w, rec, low, sums[0]);
		else
			STEP(4, 5, 6, 7, w, rec, low, sums[1]);
		if (g > 0)
			add_step(acc, j, rec - record, sums[(g - 1) % 2], g - 1, format, bits, 0, R);
	}
	add_step(acc, j, rec - record, sums[halves ? 1 : (groups - 1) % 2], groups - 1, format, bits, halves, R);
	if (bits == 8)
		add_outliers(j, acc, tile, R);
	put(j, acc, bits == 8 ? NULL : (const float *)tile, row, R);
}

#define ROWS(NAME, FORMAT, BITS) \
	static void full_##NAME##_##BITS(const tm_amx_job *j, int row) { tile_rows(j, row, FORMAT, BITS, TM_AMX_ROWS); } \
	static void few_##NAME##_##BITS(const tm_amx_job *j, int row, int width) { tile_rows(j, row, FORMAT, BITS, width); }
// The last tile's sums are in memory, since how many there are is not constant.
ROWS(plain, FMT_W16, 16) ROWS(min, FMT_W16_M, 16) ROWS(halves, FMT_W16_S, 16)
ROWS(plain, FMT_W16, 8) ROWS(min, FMT_W16_M, 8) ROWS(halves, FMT_W16_S, 8)

static void run(tm_amx_job *j)
{
	static void (*const full[][3])(const tm_amx_job *, int) = {
		{full_plain_16, full_min_16, full_halves_16}, {full_plain_8, full_min_8, full_halves_8}};
	static void (*const few[][3])(const tm_amx_job *, int, int) = {
		{few_plain_16, few_min_16, few_halves_16}, {few_plain_8, few_min_8, few_halves_8}};
	const int form = j->q8 != NULL;
	const int kind = j->panel.format - FMT_W16, bytes = kind == FMT_W16_S - FMT_W16 ? 16 : 32;
	const int left = (j->row1 - j->row0) % TM_AMX_ROWS, last = j->row1 - left;
	// Changing shapes costs, so a panel begins with the one that the last ended with.
	const int ragged_first = left && j->config == shapes(left, bytes);
	for (int turn = 0; turn < 2; turn++) {
		if (turn != ragged_first) {
			if (!left)
				continue;
			configure(j, left, bytes);
			few[form][kind](j, last, left);
		} else if (last > j->row0) {
			configure(j, TM_AMX_ROWS, bytes);
			for (int row = j->row0; row < last; row += TM_AMX_ROWS)
				full[form][kind](j, row);
		}
	}
}

static void done(void) { TILES_DONE(); }

const tm_amx TM_AMX_TABLE = {run, done};
