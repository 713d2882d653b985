// The tile kernel with tile registers modelled in C: what the processor does, also
// that it refuses operands whose shapes do not fit.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#include <immintrin.h>

#include "amx.h"
#include "matmul_avx512.h"

#define TILES_CONFIG(c) model_config(c)
#define TILES_DONE() (model.configured = 0)
#define TILE_ZERO(t) memset(model_tile(t)->data, 0, sizeof model.tile[t].data)
#define TILE_LOAD(t, base, stride) model_load(model_tile(t), base, stride)
#define TILE_STORE(t, base, stride) model_store(model_tile(t), base, stride)
#define TILE_DOT_SS(c, a, b) model_dot(model_tile(c), model_tile(a), model_tile(b), 0)
#define TILE_DOT_US(c, a, b) model_dot(model_tile(c), model_tile(a), model_tile(b), 1)

typedef struct {
	int rows, colsb;
	uint8_t data[16][64];
} tile;

static _Thread_local struct {
	int configured;
	tile tile[8];
} model;

// must stops where the processor would raise a fault.
static void must(int ok)
{
	if (!ok)
		__builtin_trap();
}

static void model_config(const void *operand)
{
	const uint8_t *c = operand;
	must(c[0] == 1 && c[1] == 0);
	for (int t = 0; t < 8; t++) {
		const int rows = c[48 + t], colsb = c[16 + 2 * t] | c[17 + 2 * t] << 8;
		must(rows <= 16 && colsb <= 64 && (rows == 0) == (colsb == 0));
		model.tile[t] = (tile){.rows = rows, .colsb = colsb};
	}
	model.configured = 1;
}

static tile *model_tile(int t)
{
	must(model.configured && model.tile[t].rows > 0);
	return &model.tile[t];
}

// What a load does not reach becomes zero.
static void model_load(tile *t, const void *base, size_t stride)
{
	memset(t->data, 0, sizeof t->data);
	for (int r = 0; r < t->rows; r++)
		memcpy(t->data[r], (const uint8_t *)base + stride * (size_t)r, (size_t)t->colsb);
}

static void model_store(const tile *t, void *base, size_t stride)
{
	for (int r = 0; r < t->rows; r++)
		memcpy((uint8_t *)base + stride * (size_t)r, t->data[r], (size_t)t->colsb);
}

static void model_dot(tile *c, const tile *a, const tile *b, int a_unsigned)
{
	must(c != a && c != b && a != b && a->rows == c->rows && b->colsb == c->colsb && a->colsb == 4 * b->rows &&
	     c->colsb % 4 == 0);
	for (int m = 0; m < c->rows; m++)
		for (int n = 0; n < c->colsb / 4; n++) {
			int32_t sum;
			memcpy(&sum, c->data[m] + 4 * n, 4);
			for (int k = 0; k < a->colsb; k++) {
				const uint8_t x = a->data[m][k];
				sum += (a_unsigned ? x : (int8_t)x) * (int8_t)b->data[k / 4][4 * n + k % 4];
			}
			memcpy(c->data[m] + 4 * n, &sum, 4);
		}
}

#define TM_AMX_TABLE tm_amx_model
#include "amx_impl.h"
#endif
