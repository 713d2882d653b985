// Matrix products of float32 activation rows with weights that stay quantised.
//
// out[r][c] = sum over k of x[r][k] * W[c][k]
//
// A matrix is packed once into panels of TM_PANEL output columns. Activations
// are converted once per phase into a tm_act, which any number of threads then
// multiply with disjoint panel ranges. Nothing here allocates or keeps state.
//
// The bits of an output row depend on the row, the weights and the instruction
// set only: not on how many rows there are, which panels a call covers, or
// which kernel runs. For quantised weights activations become 16-bit integers
// with one scale per row. F16 and BF16 weights become levels of 12
// bits, see pack.c, since products of integers are twice as fast as those of
// floats, and levels a quarter shorter. The definition, per column and per group
// of 32 k in ascending order, with exact integer sums:
//
//   acc = fma(min[g], (float)asum[g], acc)     (formats with a min)
//   acc = fma(scale[g], (float)dot[g], acc)    (Q6_K: per 16 k)
//
// and out = acc * ascale at the end. For weights that stay floats it is
// acc = fma(w[k], x[k], acc) in ascending k.
//
// On demand activations become 8-bit integers with a scale per row and group
// (tm_mat_acts), for weights of at most 8 bits: processors multiply twice as many of
// these. A value of more than TM_OUTLIER times the mean magnitude of its row, of which
// models have half a percent, would take the others of its group their precision; it is
// left out of the group and multiplied as it is, by the weight in float32 (compare Dettmers
// et al., LLM.int8(), 2022, who part whole columns). asum being the rounded product of
// ascale[g] and the sum of the integers, and outliers in ascending k:
//
//   acc = fma(min[g], asum[g], acc)
//   acc = fma(scale[g] * ascale[g], (float)dot[g], acc)    (Q6_K: per 16 k)
//   acc = fma(w[k], x[k], acc)                             (outliers, after all groups)
//
// with scale[g] * ascale[g] rounded, w[k] = scale * level or fma(scale, level, min), and
// out = acc.
#ifndef TANDEM_MATMUL_H
#define TANDEM_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "isa.h"

enum {
	TM_PANEL = 16,    // output columns of a panel
	TM_GROUP = 32,    // k values of one exact integer sum
	TM_TILE = 8,      // most rows that one kernel keeps in registers
	TM_SEGMENTS = 4,  // most stacked parts of a matrix
};

// Element types of weights as the model file stores them. The values are those
// of the Go type tensor.DType.
enum {
	TM_F32 = 1,
	TM_F16,
	TM_BF16,
	TM_Q4_0,
	TM_Q4_1,
	TM_Q5_0,
	TM_Q5_1,
	TM_Q8_0,
	TM_Q4_K,
	TM_Q5_K,
	TM_Q6_K,
	// TM_F16 and TM_BF16 to be multiplied as they are, in float32. So are those when k
	// is no whole number of groups.
	TM_F16_FLOAT = 64,
	TM_BF16_FLOAT,
};

// Forms of activations. A matrix whose parts differ may need both.
enum {
	TM_ACT_Q16 = 1,    // int16 with a float scale per row, for levels
	TM_ACT_F32 = 2,    // as they are, for weights that stay floats
	TM_ACT_PLAIN = 4,  // with TM_ACT_Q16: not for the tile registers, whose levels are bytes
	TM_ACT_Q8 = 8,     // int8 with a float scale per row and group, and outliers, for levels of at most 8 bits
};

// tm_seg is one stacked part of a matrix, packed in its own format.
typedef struct {
	int dtype;           // TM_F32 .. TM_BF16_FLOAT, as the caller says
	int format;          // packed form, private to the kernels
	int n;               // output columns (rows in the file)
	int panels;          // n / TM_PANEL rounded up
	int col;             // first output column in the matrix
	size_t offset;       // of its first panel in tm_mat.data
	size_t panel_bytes;  // a multiple of 64
} tm_seg;

// tm_mat is a packed matrix [n, k].
typedef struct {
	int k;            // columns of the file's rows
	int n;            // output columns, padding of interleaved parts included
	int panels;       // of all segments
	int segs;         // parts in use
	int interleaved;  // two equal parts; panel 2i of the first, 2i+1 of the second
	int acts;         // TM_ACT_* forms its parts need, or'ed, with 16 bits
	size_t bytes;     // what data must hold
	uint8_t *data;    // 64-byte aligned, owned by the caller
	tm_seg seg[TM_SEGMENTS];
} tm_mat;

// tm_mat_layout fills all of *m but data for `parts` stacked weights of k
// columns: part i has ns[i] rows of type dtypes[i]. With interleaved there must
// be two parts of equal rows; their output columns then alternate by panel.
// Returns 0, or -1 when k is no whole number of a type's groups, a size is not
// positive or too large, or there are too many parts.
int tm_mat_layout(tm_mat *m, int parts, const int *dtypes, const int *ns, int k, int interleaved);

// tm_mat_acts returns the TM_ACT_* forms that a matrix needs when levels of at most
// 8 bits are multiplied with activations of `bits`, 16 or 8.
int tm_mat_acts(const tm_mat *m, int bits);

// tm_row_bytes returns the file bytes of one row of k values, 0 if impossible.
size_t tm_row_bytes(int dtype, int k);

// tm_mat_pack packs panels [panel0, panel1) of part seg (0 <= panels of that
// part) from src, the file's bytes of that whole part. Threads may pack disjoint
// ranges at the same time.
void tm_mat_pack(const tm_mat *m, int seg, const uint8_t *src, int panel0, int panel1);

// tm_mat_col returns the output column of a panel's first column, and stores in
// *width how many of its TM_PANEL columns exist.
int tm_mat_col(const tm_mat *m, int panel, int *width);

// tm_mat_span returns the bytes of panels [panel0, panel1).
size_t tm_mat_span(const tm_mat *m, int panel0, int panel1);

// tm_mat_row sets dst[0..k) to the weights of output column col, as products take them.
void tm_mat_row(const tm_mat *m, int col, float *dst);

// tm_act is a block of activation rows in the forms that products read.
typedef struct {
	int isa;      // level whose kernels fill and multiply it
	int rows;
	int k;
	int acts;     // TM_ACT_* forms held
	int tiled;    // q16 or q8 is for the tile registers, see amx.h
	uint8_t *q16;  // tiles of records, see matmul_impl.h
	uint8_t *q8;   // the same for TM_ACT_Q8
	float *f32;    // tiles of [k][rows of tile]
} tm_act;

// tm_act_bytes returns the memory that a tm_act of that many rows needs.
size_t tm_act_bytes(int acts, int rows, int k);

// tm_act_init lays a tm_act out over mem (64-byte aligned, tm_act_bytes long).
// isa is a level of isa.h that the machine has, usually tm_isa_best().
void tm_act_init(tm_act *a, int isa, int acts, int rows, int k, void *mem);

// tm_act_fill converts rows [row0, row1); x points at row row0, rows are ldx
// floats apart. Threads may fill disjoint row ranges at the same time. Not a
// number and infinity come out as not a number in every product of that row.
void tm_act_fill(const tm_act *a, const float *x, size_t ldx, int row0, int row1);

// tm_matmul_scratch returns the bytes of scratch one call of tm_matmul needs
// for the matrix, whatever the rows; 64-byte aligned, one per thread.
size_t tm_matmul_scratch(const tm_mat *m);

// tm_matmul multiplies all rows of a with panels [panel0, panel1). out points
// at row 0 of the first column of panel0; rows are ldo floats apart and column c
// of the matrix goes to out[row*ldo + c - tm_mat_col(panel0)]. Only columns that
// exist are written. With accumulate the product is added to out.
void tm_matmul(const tm_mat *m, const tm_act *a, int panel0, int panel1,
               float *out, size_t ldo, int accumulate, void *scratch);

#endif
