// A recorded forward pass and its replay over ragged batches.
//
// A program is built once: buffers, rope tables and ops are added, then it is
// sealed, which allocates all that a step needs. A run executes the ops in
// order on every worker of the pool, with no allocation. The caller checks the
// batch; a run trusts it.
#ifndef TM_PROGRAM_H
#define TM_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "matmul.h"
#include "pick.h"
#include "pool.h"

enum {
	TM_EMBED = 1,
	TM_ATTN_INPUT,
	TM_ATTENTION,
	TM_ADD_LINEAR,
	TM_GATED_MLP,
	TM_LOGITS,
	TM_MOE,
	// The rest stands beside the collectives of a group of ranks (group.c).
	TM_PACK,     // the rank's columns of in, or of the logits with in < 0, to the stage
	TM_UNPACK,   // the other ranks' columns from the stage
	TM_OWN_ROWS, // out = the rank's rows of in, which is shared
	TM_ADD_ROWS, // out += the rank's rows of in, which may be shared
	TM_SCALE,    // out *= scale
	TM_LINEAR,   // out = in times w
	TM_ADD_NORM, // out += the RMSNorm of in
	TM_GATED_GELU, // TM_GATED_MLP with gelu
};

// Most experts of a row, and of a layer: what fixed arrays and the depth of a
// sum have room for.
enum { TM_MOE_USED = 64, TM_MOE_EXPERTS = 1 << 12 };

// tm_op is one op; unused fields are zero, absent pointers null, and absent
// indices -1. Pointers are borrowed until the program is freed.
typedef struct {
	int kind;
	int in, out; // buffers; AddLinear reads in and adds to out
	int layer;
	int heads;
	int window; // positions that a query sees, 0 = all
	int rope; // index of tm_program_rope
	int moe;  // index of tm_program_moe; w is the router
	int cuts; // index of tm_program_cuts; of logits -1 if w has all rows
	float eps;
	float scale;
	const tm_mat *w;
	const float *norm;   // [k of w]
	const float *bias;   // [n of w]
	const float *q_norm; // [head_dim]
	const float *k_norm; // [head_dim]
} tm_op;

// tm_moe is a mixture of experts; tensor.MoE says what the fields mean. All
// experts have the same shape.
typedef struct {
	int used, renorm;
	int first, count;             // experts held
	const tm_mat *const *gate_up; // [count], interleaved, [2*inter, hidden]
	const tm_mat *const *down;    // [count], [hidden, inter]
} tm_moe;

// tm_kv is the paged cache: block b at data + b*block_bytes is
// [layer][keys, values][kv_head][tile]; vec_impl.h gives the order in a tile.
typedef struct {
	char *data;
	int layers, kv_heads, head_dim, block_tokens;
	int type;          // TM_KV_*, see vec.h
	size_t tile_bytes; // keys or values of one head of a block
	size_t block_bytes;
} tm_kv;

// tm_batch is tensor.Batch: see there for the fields. Shared buffers hold the
// rows of all ranks, this one's from first_row on.
typedef struct {
	int rows, seqs, logit_rows;
	int shared_rows, first_row;
	const int32_t *tokens, *row_start, *pos_start, *page_start, *pages, *logit_row;
} tm_batch;

typedef struct tm_program tm_program;

// The constructors return null or -1 when memory runs out.
tm_program *tm_program_new(tm_pool *pool, int isa, const tm_kv *kv, int max_rows, int max_shared_rows);
void tm_program_bits(tm_program *p, int bits); // of activations, 16 at first or 8
int tm_program_buffer(tm_program *p, int width, int shared);
int tm_program_view(tm_program *p, int of, int first, int width); // columns of a buffer
int tm_program_rope(tm_program *p, int dims, int adjacent, float scale, const float *inv_freq);
int tm_program_moe(tm_program *p, const tm_moe *m); // copies the lists
// tm_program_cuts declares that rank r of `ranks` has columns cuts[r] to
// cuts[r+1] (copied), this rank being `own`.
int tm_program_cuts(tm_program *p, int ranks, int own, const int32_t *cuts);
int tm_program_op(tm_program *p, const tm_op *op);
int tm_program_seal(tm_program *p);
void tm_program_free(tm_program *p);

// tm_program_logits returns where a run leaves logits: [logit_rows][vocab].
float *tm_program_logits(const tm_program *p);

// tm_program_data returns the first element of a buffer of a sealed program.
float *tm_program_data(const tm_program *p, int buffer);

// tm_program_stage returns where columns wait for a collective: those of rank r
// are at stage + rows*cuts[r], [rows][cuts[r+1]-cuts[r]]. A step of one row needs
// none, and packs nothing: its columns are contiguous where they are.
float *tm_program_stage(const tm_program *p);

// tm_program_bytes returns the activation memory of a sealed program.
size_t tm_program_bytes(const tm_program *p);

// tm_program_run runs ops [op0, op1) on a batch of at most max_rows rows, and
// max_shared_rows shared ones. A batch runs all ops in ascending order; ops
// without rows do nothing.
void tm_program_run(tm_program *p, const tm_batch *b, int op0, int op1);

// tm_program_pick chooses from the logits of the last run's first n rows, as
// rules[i] says, on all workers.
void tm_program_pick(tm_program *p, const tm_pick_rule *rules, tm_picked *out, int n);

// tm_program_progress counts ops done since the start. It may be read while a
// run is going on: a count that moves shows that a long step is not stuck.
uint64_t tm_program_progress(const tm_program *p);

// tm_program_read returns the bytes of weights that runs have multiplied since the
// start, those of a matrix once for each block of rows. No run may be going on.
uint64_t tm_program_read(const tm_program *p);

// tm_pack packs panels of src, the file's bytes of the whole part seg, on all
// workers of the pool.
void tm_pack(tm_pool *pool, const tm_mat *m, int seg, const uint8_t *src, int panel0, int panel1);

#endif
