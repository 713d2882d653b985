// Products of many rows in the tile registers of AMX, for quantised weights. A tile
// kernel computes the definition of matmul.h to the bit: an activation of 16 bits is
// two bytes, 256*h + l with h signed and l not, so the sum of a group is
// 256*(h.w) + l.w: two tile products of bytes, both below 2^21. One of 8 bits is a byte
// already. Float work is AVX-512, in the order of the other levels.
//
// The kernel is compiled twice from amx_impl.h: with the processor's instructions
// (amx_tiles.c), and with tile registers modelled in C (amx_model.c), which is slow
// and lets tests run on machines without AMX.
#ifndef TANDEM_AMX_H
#define TANDEM_AMX_H

#include "matmul_impl.h"

enum {
	TM_AMX_ROWS = 16,  // of a tile register
	// From so many rows on products use tiles. A full one is the least for which
	// spreading a panel in tile order is sure to pay: fewer rows wait for memory, not
	// for arithmetic. BenchmarkTiles measures both ways on a machine with AMX.
	TM_AMX_LEAST = TM_AMX_ROWS,
};

// Tiled activations are cut in tiles of TM_AMX_ROWS rows, the last one of what is
// left. A tile of R rows is a float scale [R], then one record per group of k: bytes
// h [R][32], bytes l [R][32], and the sum of levels as float [R].
static inline size_t tm_amx_record(int width) { return (size_t)width * (2 * TM_GROUP + 4); }
static inline size_t tm_amx_row_bytes(int k) { return (size_t)(k / TM_GROUP) * tm_amx_record(1) + 4; }

// With 8 bits it is records, bytes [R][32], float scale [R], and that scale times
// the sum of levels as float [R], and a list of outliers a row.
static inline size_t tm_amx_record8(int width) { return (size_t)width * (TM_GROUP + 8); }
static inline size_t tm_amx_row_bytes8(int k) { return (size_t)(k / TM_GROUP) * tm_amx_record8(1) + tm_outliers_bytes(k); }
static inline void *tm_amx_lists(const uint8_t *tile, int width, int k)
{
	return (uint8_t *)tile + tm_amx_record8(width) * (size_t)(k / TM_GROUP);
}

// tm_amx_width returns the rows of the tile that begins at row0 of `rows`.
static inline int tm_amx_width(int rows, int row0) { return rows - row0 < TM_AMX_ROWS ? rows - row0 : TM_AMX_ROWS; }

// tm_amx_job is a panel times the rows [row0, row1), row0 being a tile's first and
// row1 one's end.
typedef struct {
	tm_panel panel;   // expanded
	tm_panel packed;
	int cols;         // of it that exist
	const uint8_t *q16, *q8;  // one of them, the other is null
	int row0, row1;
	float *out;       // row 0, first column of the panel
	size_t ldo;
	int accumulate;
	int config;       // what tiles are configured for, 0 = nothing
} tm_amx_job;

// tm_amx is how tiles are worked with: run does a job and leaves tiles configured
// for the next one, done gives them back.
typedef struct {
	void (*run)(tm_amx_job *j);
	void (*done)(void);
} tm_amx;

#if defined(__x86_64__)
extern const tm_amx tm_amx_tiles, tm_amx_model;

// tm_amx_quant writes row `lane` of a tile of `width` rows.
void tm_amx_quant(uint8_t *tile, int width, int lane, const float *x, int k);
void tm_amx_quant8(uint8_t *tile, int width, int lane, const float *x, int k);

// tm_amx_matmul is tm_matmul for the quantised panels of m and tiled activations.
void tm_amx_matmul(const tm_mat *m, const tm_act *a, int panel0, int panel1,
                   float *out, size_t ldo, int accumulate, void *scratch);
#endif

#endif
