// What the product kernels share: packed formats, activation records, the
// table that each instruction set level fills. Private to matmul*.c and pack.c.
#ifndef TANDEM_MATMUL_IMPL_H
#define TANDEM_MATMUL_IMPL_H

#include <math.h>
#include <string.h>

#include "matmul.h"

// Packed formats. Levels are ordered for dots of 16-bit pairs: one 64-byte
// vector of 16-bit levels holds 2 consecutive k of 16 columns. W4 stores 256 bytes a
// group: in vector v the nibbles n = 0..3, from the lowest, of a 16-bit lane belong to
// the pair 4v+n. W8 stores 512 bytes a group, for dots of 8-bit quads as well: vectors 2v
// and 2v+1 are what the low and the high nibbles of vector v would be, so that the
// bytes n = 0, 1 of a lane belong to the pairs 4v+2n and 4v+2n+1 of these vectors. W12
// has three vectors for four pairs: lanes of the vectors 3v, 3v+1 and 3v+2 hold a
// level of the pair 4v, 4v+1 or 4v+2 in the upper 12 bits, and in the lower 4 those
// of pair 4v+3, the highest first.
//
//   format  per 256 k         per 32 k                  value of level q
//   W4_0    -                 f16 scale                 s*(q-8)
//   W4_1    -                 f16 scale, f16 min        s*q + m
//   W4_K    f16 d, f16 dmin   u8 scale, u8 min          d*s*q - dmin*m
//   W8      -                 f16 scale                 s*q
//   W8_1    -                 f16 scale, f16 min        s*q + m
//   W8_K    f16 d, f16 dmin   u8 scale, u8 min          d*s*q - dmin*m
//   W8_S    f16 d             2 x s8 scale (16 k each)  d*s*q
//   W12     -                 u8 exponent e             2^(e-127)*q
//   W16     -                 f32 scale                 s*q
//   W16_M   -                 f32 scale, f32 min        s*q + m
//   W16_S   -                 2 x f32 scale             s*q
//   B8      -                 f32 scale                 s*(q-128)
//   B8_M    -                 f32 scale, f32 min        s*q + m
//   B8_S    -                 2 x f32 scale             s*(q-128)
//
// Each entry of the middle columns is a run of 16, one per output column. A
// panel is three sections, each 64-byte aligned: per 256 k, per 32 k, levels.
// W16 and B8 forms live in scratch only: widening a panel pays when more than
// TM_WIDEN_TILES tiles of rows read it. B8 is for activations of 8 bits, in the order of
// W8: [8 quads][16 columns][4 k], the k of a quad in the order of TM_QUAD.
enum {
	FMT_W4_0,
	FMT_W4_1,
	FMT_W4_K,
	FMT_W8,
	FMT_W8_1,
	FMT_W8_K,
	FMT_W8_S,
	FMT_W12,
	FMT_W16,
	FMT_W16_M,
	FMT_W16_S,
	FMT_B8,
	FMT_B8_M,
	FMT_B8_S,
	FMT_F32,   // [k][16]
	FMT_F16,   // [k][16]
	FMT_BF16,  // [k/2][16][2]
};

// Fewer tiles are faster with a panel as it lies in memory: a widened one is longer, and
// comes from the level 2 cache for each of them.
enum { TM_WIDEN_TILES = 8 };

// tm_panel is one panel taken apart.
typedef struct {
	int format;
	int groups;            // k / TM_GROUP, of quantised formats
	int k;
	const uint8_t *super;  // section per 256 k
	const uint8_t *scale;  // section per 32 k
	const uint8_t *w;      // levels or floats
} tm_panel;

// tm_sections holds the byte offsets of a panel's sections and its size.
typedef struct {
	size_t scale, w, bytes;
} tm_sections;

tm_sections tm_format_sections(int format, int k);
int tm_dtype_format(int dtype, int k);
tm_panel tm_panel_at(int format, int k, const uint8_t *base);
tm_panel tm_mat_panel(const tm_mat *m, int panel);

// TM_BYTE_FORMATS calls F with each packed format of levels of at most 8 bits.
#define TM_BYTE_FORMATS(F) F(W4_0) F(W4_1) F(W4_K) F(W8) F(W8_1) F(W8_K) F(W8_S)

static inline int tm_is_w4(int format) { return format <= FMT_W4_K; }
static inline int tm_is_quantised(int format) { return format < FMT_F32; }
static inline int tm_is_bytes(int format) { return format < FMT_W12; }  // or fewer bits, as packed
static inline int tm_has_min(int format)
{
	return format == FMT_W4_1 || format == FMT_W4_K || format == FMT_W8_1 || format == FMT_W8_K ||
	       format == FMT_W16_M || format == FMT_B8_M;
}
static inline int tm_has_halves(int format)
{
	return format == FMT_W8_S || format == FMT_W16_S || format == FMT_B8_S;
}
static inline int tm_widened(int format)
{
	return tm_has_min(format) ? FMT_W16_M : tm_has_halves(format) ? FMT_W16_S : FMT_W16;
}

// The bytes of a group's levels.
static inline size_t tm_level_bytes(int format)
{
	return tm_is_w4(format) ? 256 : format == FMT_W12 ? 768 : format >= FMT_W16 && format <= FMT_W16_S ? 1024 : 512;
}

// The bytes of a group's scales, with its part of those of 256 k.
static inline size_t tm_scale_bytes(int format)
{
	switch (format) {
	case FMT_W4_1: case FMT_W8_1: return 64;
	case FMT_W4_K: case FMT_W8_K: return 40;
	case FMT_W8_S: return 36;
	case FMT_W12: return 16;
	}
	return 32;
}

// Scales of W12 are powers of two, kept as the exponent of a float: 0 is zero, and
// TM_NO_NUMBER an infinity, which makes no number of a group whose levels are zero.
enum { TM_NO_NUMBER = 255 };

// tm_w4_level returns the nibble of column c at k.
static inline int tm_w4_level(const uint8_t *w, size_t k, int c)
{
	return w[k / 8 * 64 + c * 4 + k % 2 * 2 + k % 8 / 4] >> (k / 2 % 2 * 4) & 15;
}

// tm_w8_level does so for signed bytes.
static inline int tm_w8_level(const uint8_t *w, size_t k, int c)
{
	return (int8_t)w[k / 8 * 128 + k / 2 % 2 * 64 + c * 4 + k % 2 * 2 + k % 8 / 4];
}

// tm_w12_level returns the level of column c at k.
static inline int tm_w12_level(const uint8_t *w, size_t k, int c)
{
	const uint8_t *at = w + k / 8 * 192 + c * 4 + k % 2 * 2;
	uint16_t v[3];
	for (int i = 0; i < 3; i++)
		memcpy(&v[i], at + i * 64, 2);
	const int n = (int)(k / 2 % 4);
	return (int16_t)(n < 3 ? v[n] : v[0] << 12 | (v[1] & 15) << 8 | (v[2] & 15) << 4) >> 4;
}

// Rows are cut into even tiles: one up to TM_TILE rows, else tiles of at most
// TM_TILE_MANY, for which kernels have registers for several panels.
enum { TM_TILE_MANY = 6 };
static inline int tm_tiles(int rows)
{
	return rows <= TM_TILE ? 1 : (rows + TM_TILE_MANY - 1) / TM_TILE_MANY;
}
static inline int tm_tile_row(int rows, int tile)
{
	int n = tm_tiles(rows);
	return rows / n * tile + (tile < rows % n ? tile : rows % n);
}

// A quantised tile of R rows is a float scale [R], then one record per group of
// k: int16 levels [16 pairs][R][2], their sum as float [R], and -8 times their
// sum as int32 [R], what a dot with unsigned W4_0 nibbles starts from.
enum {
	TM_PAIRS = TM_GROUP / 2,
	TM_WORDS = TM_PAIRS + 2,  // 4-byte words of a record per row
	TM_LEVEL_MAX = 32639,     // so that any sum of a group fits 21 bits
};

static inline size_t tm_q16_row_bytes(int k) { return ((size_t)(k / TM_GROUP) * TM_WORDS + 1) * 4; }

// A tile of TM_ACT_Q8 is a record per group only: 4 int8 levels in each of 8 quads
// [8][R][4], float scale [R], that scale times their sum as float [R], and int32 [R]
// of -8 times their sum and of -128 times that of the first half, and of the second.
enum {
	TM_QUADS = TM_GROUP / 4,
	TM_SCALE8 = TM_QUADS,  // words of a record per row
	TM_ASUM8,
	TM_BELOW8,
	TM_HALF8,
	TM_WORDS8 = TM_HALF8 + 2,
	TM_LEVEL8_MAX = 127,
};

// TM_QUAD is the k, of a group, of byte b of quad q: in the order of W4's nibbles, so
// that a vector of these becomes two of bytes by a mask and a shift. Even bytes of a quad
// are pair TM_QUAD_PAIR, odd ones the second after that.
#define TM_QUAD(q, b) ((q) / 2 * 8 + (q) % 2 * 2 + (b) % 2 * 4 + (b) / 2)
#define TM_QUAD_PAIR(q) ((q) / 2 * 4 + (q) % 2)

// Activations whose magnitude is more than TM_OUTLIER times the mean of their row would
// round the rest of their group by their size. They are zeros in the records, and
// listed behind these, a list a row, to be multiplied as floats. A row has fewer than k / TM_OUTLIER.
enum { TM_OUTLIER = 8 };

typedef struct {
	int32_t quad;      // of the row
	int32_t byte;      // bits below its byte of the quad, for levels of 8 bits
	int32_t nibble;    // bits below its nibble of the vector quad / 2, for levels of 4
	float x;
} tm_outlier;

typedef struct {
	int32_t n;
	tm_outlier at[];
} tm_outliers;

static inline size_t tm_outliers_bytes(int k) { return sizeof(tm_outliers) + (size_t)(k / TM_OUTLIER) * sizeof(tm_outlier); }

// tm_outliers_row returns the list of row `lane`, given the first.
static inline tm_outliers *tm_outliers_row(const void *first, int k, int lane)
{
	return (tm_outliers *)((uint8_t *)first + tm_outliers_bytes(k) * (size_t)lane);
}

static inline size_t tm_q8_record(int width) { return (size_t)width * TM_WORDS8 * 4; }
static inline size_t tm_q8_row_bytes(int k) { return (size_t)(k / TM_GROUP) * tm_q8_record(1) + tm_outliers_bytes(k); }

// tm_q8_lists returns the first list of a tile of `width` rows.
static inline void *tm_q8_lists(const uint8_t *tile, int width, int k)
{
	return (uint8_t *)tile + tm_q8_record(width) * (size_t)(k / TM_GROUP);
}

// Float tiles are [k][R], k rounded up to even (BF16 weights come in pairs).
static inline size_t tm_f32_row_bytes(int k) { return ((size_t)k + 1) / 2 * 2 * sizeof(float); }

// Rows whose greatest value is below this count as zero: LEVEL_MAX divided by it
// would not be finite.
#define TM_TINY 1e-30f

// TM_RUN is how many panels a kernel may take at once: more independent sums,
// fewer loads for each.
enum { TM_RUN = 4 };

// tm_kernels is what an instruction set level implements. run_* say how many
// panels its kernels take at once (else one), all of one format.
typedef struct {
	int run_wide, run_float;
	// quant writes row `lane` of a tile of `width` rows.
	void (*quant)(uint8_t *tile, int width, int lane, const float *x, int k);
	// widen expands a panel to its W16 form.
	void (*widen)(const tm_panel *src, uint8_t *dst);
	// dot multiplies num quantised panels with a tile: out[num][width][16]. num
	// is 1, or run_wide for W16 forms.
	void (*dot)(const tm_panel *p, int num, const uint8_t *tile, int width, float *out);
	// fdot does so for 1 or run_float float panels.
	void (*fdot)(const tm_panel *p, int num, const float *tile, int width, float *out);
} tm_kernels;

extern const tm_kernels tm_kernels_portable;

// tm_kernels8 is the same for activations of 8 bits and panels of at most as many.
typedef struct {
	int run_wide;  // panels at once when widened
	int wide;      // first of the widened formats, FMT_W16 or FMT_B8; 0: panels stay as they are
	void (*quant)(uint8_t *tile, int width, int lane, const float *x, int k);
	void (*widen)(const tm_panel *src, uint8_t *dst);
	void (*dot)(const tm_panel *p, int num, const uint8_t *tile, int width, float *out);
	// outliers adds to out[num][width][16] what the lists of as many rows say.
	void (*outliers)(const tm_panel *p, int num, const tm_outliers *first, int width, float *out);
} tm_kernels8;

extern const tm_kernels8 tm_kernels8_portable;
#if defined(__x86_64__)
extern const tm_kernels tm_kernels_avx2;
extern const tm_kernels tm_kernels_avx512;
extern const tm_kernels8 tm_kernels8_avx2;
extern const tm_kernels8 tm_kernels8_avx512;
#endif

static inline uint16_t tm_load16(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, 2);
	return v;
}

static inline float tm_bits_float(uint32_t u)
{
	float f;
	memcpy(&f, &u, 4);
	return f;
}

// tm_store_scale writes the scale of row `lane` of a quantised tile, top being the
// bits of its greatest magnitude, and returns what its values are multiplied with to
// become levels: 0 for a row that counts as zero, or has a value that is no number.
static inline float tm_store_scale(uint8_t *tile, int lane, uint32_t top)
{
	float max = tm_bits_float(top), scale = 0, inv = 0;
	if (top >= 0x7f800000) {
		scale = NAN;
	} else if (max >= TM_TINY) {
		scale = max / (float)TM_LEVEL_MAX;
		inv = (float)TM_LEVEL_MAX / max;
	}
	memcpy(tile + lane * 4, &scale, 4);
	return inv;
}

// tm_scale8 does so for a group of activations of 8 bits, whose scale it sets.
static inline float tm_scale8(uint32_t top, float *scale)
{
	const float max = tm_bits_float(top);
	*scale = top >= 0x7f800000 ? NAN : 0;
	if (top >= 0x7f800000 || max < TM_TINY)
		return 0;
	*scale = max / (float)TM_LEVEL8_MAX;
	return (float)TM_LEVEL8_MAX / max;
}

// tm_outlier_bound returns the magnitude beyond which values are outliers, sum being
// that of the magnitudes of the row. Nothing is beyond what is no number or infinite.
static inline float tm_outlier_bound(float sum, int k) { return sum * ((float)TM_OUTLIER / (float)k); }

// tm_list_outliers appends those of the group x, at k0 of a row of k, whose bits a mask
// has. It returns the mask of what is listed: none if that is more than the list has room for.
static inline uint32_t tm_list_outliers(tm_outliers *o, int k, int k0, uint32_t mask, const float *x)
{
	if (o->n + __builtin_popcount(mask) > k / TM_OUTLIER)
		return 0;
	for (uint32_t left = mask; left; left &= left - 1) {
		const int i = __builtin_ctz(left), byte = (i % 2 * 2 + i % 8 / 4) * 8;
		o->at[o->n++] = (tm_outlier){(k0 + i) / 8 * 2 + i / 2 % 2, byte, byte + i / 2 % 2 * 4, x[i]};
	}
	return mask;
}

// tm_store8 writes the group of row `lane` to its record: levels in the order of
// quads, and what follows from them and from the sums of both halves.
static inline void tm_store8(uint8_t *rec, int width, int lane, const int32_t quads[TM_QUADS], float scale,
                             int32_t low, int32_t high)
{
	const float asum = scale * (float)(low + high);
	int32_t *to = (int32_t *)rec + lane;
	for (int i = 0; i < TM_QUADS; i++)
		to[i * width] = quads[i];
	memcpy(&to[TM_SCALE8 * width], &scale, 4);
	memcpy(&to[TM_ASUM8 * width], &asum, 4);
	to[TM_BELOW8 * width] = -8 * (low + high);
	to[TM_HALF8 * width] = -128 * low;
	to[(TM_HALF8 + 1) * width] = -128 * high;
}

static inline float tm_load_f32(const uint8_t *p)
{
	float f;
	memcpy(&f, p, 4);
	return f;
}

static inline float tm_bf16(uint16_t h) { return tm_bits_float((uint32_t)h << 16); }

static inline float tm_half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
	if (exp == 31)
		return tm_bits_float(sign | 0x7f800000 | man << 13);
	if (exp)
		return tm_bits_float(sign | (exp + 112) << 23 | man << 13);
	float tiny = (float)man * 0x1p-24f;
	return sign ? -tiny : tiny;
}

#endif
