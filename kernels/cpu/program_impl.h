// What the files of the program interpreter share.
#ifndef TM_PROGRAM_IMPL_H
#define TM_PROGRAM_IMPL_H

#include <stdatomic.h>

#include "program.h"
#include "vec.h"

// A step of few rows converts them on every worker by itself, which is cheaper
// than a barrier: at most TM_TILE rows and this many values.
enum { SMALL_VALUES = 16384 };

// Rows of one block of activations: as many as keep it near this many values,
// so that it stays in a core's second-level cache, within these bounds.
enum { BLOCK_VALUES = 1 << 20, BLOCK_MIN = 4 * TM_TILE, BLOCK_MAX = 40 * TM_TILE };

// Floats kept for partial attention results, and most panels of one claim.
enum { PARTIAL_FLOATS = 2 << 20, CHUNK_MAX = 32, CHUNK_MANY_ROWS = 4 };

typedef struct {
	int dims, adjacent;
	float scale;
	float *inv_freq; // [dims/2]
	float *cosv;     // [max_rows][dims/2]
	float *sinv;
} rope_table;

typedef struct {
	int width;
	float *data; // [max_rows][width]
} buffer;

// One attention task of a step; the plan is the same for every layer.
typedef struct {
	int seq, kv_head, head0, heads;
	int row, queries, pos;
	int split0, split1;
	int group;      // of partial results that are merged together, or -1
	size_t partial; // first float of this task's results
} task;

// A group is the splits of one task cut in pieces.
typedef struct {
	atomic_int left; // pieces of the current layer not done
	int splits;
	size_t partial;
} group;

// What a worker owns.
typedef struct {
	void *matmul;   // tm_matmul_scratch
	uint8_t *small; // activations of a small step
	float *rows;    // [TM_TILE][widest k], normalised rows
	float *tile;    // gate and up of a claim
	float *attn;    // tm_attn_scratch
} worker_mem;

struct tm_program {
	_Atomic uint64_t progress; // ops done, counted by worker 0
	tm_pool *pool;
	const tm_vec *vec;
	int isa, max_rows, threads;
	tm_kv kv;
	buffer *buffers;
	rope_table *ropes;
	tm_op *ops;
	int num_buffers, num_ropes, num_ops;
	// Allocated by the seal.
	void *mem;
	size_t mem_bytes;
	float *logits;
	size_t logits_bytes;
	int vocab, heads, qkv_width;
	float *qkv;       // [max_rows][qkv_width]
	uint8_t *act;     // activations of a phase, in blocks
	worker_mem *work; // [threads]
	int32_t *row_seq, *row_pos;
	task *tasks;
	group *groups;
	size_t max_tasks, max_groups;
	float *partial;
	// Of the current step.
	const tm_batch *batch;
	int num_tasks, num_groups;
};

// Activation rows of a phase: shared blocks, or the worker's own small one.
typedef struct {
	int rows, k, acts;
	int block_rows;
	uint8_t *mem;
	size_t block_bytes;
} acts;

static inline int acts_blocks(const acts *a) { return (a->rows + a->block_rows - 1) / a->block_rows; }

// tm_plan lists the attention tasks of the current batch.
void tm_plan(tm_program *p);

// tm_op_run executes one op on a worker, ending with a barrier.
void tm_op_run(tm_program *p, const tm_op *op, int worker);

int tm_block_rows(int k);
int tm_small(int rows, int k);

#endif
