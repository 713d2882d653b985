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
	int root;      // the buffer itself, or the one that a view is of
	int first;     // its first column there
	int shared;    // has the rows of all ranks
	size_t stride; // floats from row to row
	float *data;   // [max_rows or max_shared][stride]
} buffer;

// Which columns each rank has.
typedef struct {
	int ranks, own;
	int32_t *at; // [ranks+1]
} column_cuts;

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

// Slots of one expert that are multiplied together.
typedef struct {
	int expert; // of those held
	int slot0, rows;
} moe_run;

// Which experts the rows of a step get, and the order in which the experts run.
// A slot is a row at one of its experts that is held; slots go by expert, then
// by row.
typedef struct {
	int32_t *expert; // [rows][used], ascending ids
	float *weight;   // [rows][used]
	int32_t *slot;   // [rows][used], -1 for an expert that is not held
	int32_t *slot_row;
	float *slot_weight;
	int32_t *next; // [held], for sorting
	moe_run *runs;
	int num_runs;
} moe_plan;

// Rows of a run, most pairs of panels of one claim of gate and up, and floats of
// expert outputs kept at a time.
enum { MOE_ROWS = 64, MOE_CHUNK = 10, MOE_FLOATS = 16 << 20 };

// What a worker owns.
typedef struct {
	void *matmul;   // tm_matmul_scratch
	uint8_t *small; // activations of a small step
	float *rows;    // [TM_TILE][widest k], normalised rows
	float *tile;    // gate and up of a claim
	float *attn;    // tm_attn_scratch
	uint8_t *expert; // activations of a run
	moe_plan moe;    // of a step of at most TM_TILE rows
	_Alignas(64) uint64_t read; // bytes of weights multiplied, since the start
} worker_mem;

struct tm_program {
	_Atomic uint64_t progress; // ops done, counted by worker 0
	tm_pool *pool;
	const tm_vec *vec;
	int isa, max_rows, max_shared, threads;
	int bits; // of activations that levels are multiplied with, see tm_mat_acts
	tm_kv kv;
	buffer *buffers;
	rope_table *ropes;
	tm_op *ops;
	tm_moe *moes;
	column_cuts *cuts;
	int num_buffers, num_ropes, num_ops, num_moes, num_cuts;
	// Allocated by the seal.
	void *mem;
	size_t mem_bytes;
	float *logits;
	size_t logits_bytes;
	float *stage; // columns before and after a collective
	size_t stage_bytes;
	char *pick; // tm_pick_bytes for each thread
	size_t pick_bytes;
	int vocab, heads, qkv_width;
	float *qkv;       // [max_rows][qkv_width]
	uint8_t *act;     // activations of a phase, in blocks
	worker_mem *work; // [threads]
	int32_t *row_seq, *row_pos;
	task *tasks;
	group *groups;
	size_t max_tasks, max_groups;
	float *partial;
	moe_plan moe;      // of a step of more rows
	float *moe_logits; // [rows of a step][experts]
	float *moe_gated;  // [slots][inter], times the row's weight
	float *moe_out;    // [slots][hidden]
	int moe_wave;      // rows whose slots these have room for
	// Of the current step.
	const tm_batch *batch;
	int op0, op1; // to run
	int num_tasks, num_groups;
};

// Activation rows of a phase: shared blocks, or the worker's own small one.
typedef struct {
	int rows, k, acts;
	int block_rows;
	uint8_t *mem;
	size_t block_bytes;
} acts;

// Input rows of a product: buffer rows, normalised unless norm is null. index
// picks rows; null takes them in order.
typedef struct {
	int buffer;
	const int32_t *index;
	const float *norm;
	float eps;
} source;

static inline int acts_blocks(const acts *a) { return (a->rows + a->block_rows - 1) / a->block_rows; }

// tm_op_rows is how many rows an op but the logits has in the current step.
static inline int tm_op_rows(const tm_program *p, const tm_op *op)
{ return p->buffers[op->out].shared ? p->batch->shared_rows : p->batch->rows; }

static inline float *tm_row(const tm_program *p, int b, int row)
{ return p->buffers[b].data + (size_t)row * p->buffers[b].stride; }

// tm_plan lists the attention tasks of the current batch.
void tm_plan(tm_program *p);

// tm_op_run executes one op on a worker, ending with a barrier.
void tm_op_run(tm_program *p, const tm_op *op, int worker);

// tm_fill converts rows [r0, r1) of a phase, r1-r0 <= TM_TILE, in one block.
void tm_fill(const tm_program *p, const acts *a, const source *src, int r0, int r1, int worker);

// tm_act_block returns a block of activation rows.
tm_act tm_act_block(const tm_program *p, const acts *a, int block);

// tm_prepare converts the inputs of a product with w: by every worker for itself
// when they are few, else together, with a barrier behind.
acts tm_prepare(tm_program *p, const tm_mat *w, const source *src, int rows, int worker);

// tm_multiply sets out[row][column] to w times the prepared rows, or adds that
// with accumulate; then the bias is added. No barrier follows.
void tm_multiply(tm_program *p, const tm_mat *w, const acts *a, float *out, size_t ldo, const float *bias,
	int accumulate, int worker);

// tm_count counts panels that a worker is about to multiply.
static inline void tm_count(tm_program *p, const tm_mat *w, int panel0, int panel1, int worker)
{ p->work[worker].read += tm_mat_span(w, panel0, panel1); }

// tm_run_moe executes a TM_MOE op.
void tm_run_moe(tm_program *p, const tm_op *op, int worker);

// These execute the ops beside collectives.
void tm_run_pack(tm_program *p, const tm_op *op, int worker);
void tm_run_unpack(tm_program *p, const tm_op *op, int worker);
void tm_run_own_rows(tm_program *p, const tm_op *op, int worker);

int tm_block_rows(int k);
int tm_small(int rows, int k);

#endif
