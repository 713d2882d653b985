// The ops on this rank's side of a collective: what a group moves must be
// contiguous, columns of a buffer are not.
#include "program_impl.h"

// Columns of rows: a buffer, or the logits.
typedef struct {
	float *data;
	size_t stride;
	int rows;
} table;

static table op_table(const tm_program *p, const tm_op *op)
{
	if (op->in < 0) return (table){p->logits, (size_t)p->vocab, p->batch->logit_rows};
	const buffer *b = &p->buffers[op->in];
	return (table){b->data, b->stride, b->shared ? p->batch->shared_rows : p->batch->rows};
}

static void copy_columns(float *to, size_t to_stride, const float *from, size_t from_stride, int rows, int width)
{
	for (int r = 0; r < rows; r++, to += to_stride, from += from_stride) memcpy(to, from, (size_t)width * 4);
}

// Rows of one claim.
enum { COPY_ROWS = 4 };

void tm_run_pack(tm_program *p, const tm_op *op, int worker)
{
	const table t = op_table(p, op);
	const column_cuts *c = &p->cuts[op->cuts];
	if (t.rows < 2) return;
	const size_t first = (size_t)c->at[c->own], width = (size_t)c->at[c->own + 1] - first;
	float *stage = p->stage + (size_t)t.rows * first;
	tm_claim claim = tm_claim_all(worker, (t.rows + COPY_ROWS - 1) / COPY_ROWS);
	for (int i; (i = tm_claim_next(p->pool, &claim)) >= 0;) {
		const int row = i * COPY_ROWS, left = t.rows - row;
		copy_columns(stage + (size_t)row * width, width, t.data + (size_t)row * t.stride + first, t.stride,
			left < COPY_ROWS ? left : COPY_ROWS, (int)width);
	}
	tm_pool_barrier(p->pool, worker);
}

void tm_run_unpack(tm_program *p, const tm_op *op, int worker)
{
	const table t = op_table(p, op);
	const column_cuts *c = &p->cuts[op->cuts];
	if (t.rows < 2) return;
	tm_claim claim = tm_claim_all(worker, (t.rows + COPY_ROWS - 1) / COPY_ROWS);
	for (int i; (i = tm_claim_next(p->pool, &claim)) >= 0;) {
		const int row = i * COPY_ROWS, left = t.rows - row;
		for (int r = 0; r < c->ranks; r++) {
			if (r == c->own) continue;
			const size_t first = (size_t)c->at[r], width = (size_t)c->at[r + 1] - first;
			copy_columns(t.data + (size_t)row * t.stride + first, t.stride,
				p->stage + (size_t)t.rows * first + (size_t)row * width, width,
				left < COPY_ROWS ? left : COPY_ROWS, (int)width);
		}
	}
	tm_pool_barrier(p->pool, worker);
}

void tm_run_own_rows(tm_program *p, const tm_op *op, int worker)
{
	tm_claim claim = tm_claim_all(worker, p->batch->rows);
	const int width = p->buffers[op->out].width, first = p->buffers[op->in].shared ? p->batch->first_row : 0;
	for (int r; (r = tm_claim_next(p->pool, &claim)) >= 0;) {
		const float *from = tm_row(p, op->in, first + r);
		float *to = tm_row(p, op->out, r);
		if (op->kind == TM_ADD_ROWS)
			p->vec->add(to, from, width);
		else
			memcpy(to, from, (size_t)width * 4);
	}
	tm_pool_barrier(p->pool, worker);
}
