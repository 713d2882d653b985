// Sizes and places the memory of a program.
#include <stdlib.h>

#include "mem.h"
#include "program_impl.h"

// What the ops need at most.
typedef struct {
	size_t act, small, matmul, expert;
	int k, tile;
	int experts, held, used, inter, hidden, moe_rows; // of mixtures of experts
	size_t stage;                                     // floats
} needs;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static int larger_int(int a, int b) { return a > b ? a : b; }

static int most_rows(const tm_program *p, const tm_op *op)
{ return op->kind != TM_LOGITS && op->in >= 0 && p->buffers[op->out].shared ? p->max_shared : p->max_rows; }

static void need_matrix(const tm_program *p, const tm_mat *w, int max_rows, needs *n)
{
	const int forms = tm_mat_acts(w, p->bits), rows = tm_block_rows(w->k);
	const size_t blocks = (size_t)((max_rows + rows - 1) / rows);
	n->act = larger(n->act, blocks * tm_act_bytes(forms, rows, w->k));
	n->matmul = larger(n->matmul, tm_matmul_scratch(w));
	if (w->k > n->k) n->k = w->k;
	if (tm_small(1, w->k)) {
		const int most = SMALL_VALUES / w->k < TM_TILE ? SMALL_VALUES / w->k : TM_TILE;
		n->small = larger(n->small, tm_act_bytes(forms, most, w->k));
	}
	if (w->interleaved)
		n->tile = larger_int(n->tile, larger_int(BLOCK_MAX * CHUNK_MANY_ROWS, BLOCK_MIN * CHUNK_MAX) * TM_PANEL);
}

static void need_moe(const tm_program *p, const tm_op *op, const tm_moe *m, int max_rows, needs *n)
{
	for (int i = 0; i < 2 * m->count; i++) {
		const tm_mat *w = i < m->count ? m->gate_up[i] : m->down[i - m->count];
		n->expert = larger(n->expert, tm_act_bytes(tm_mat_acts(w, p->bits), MOE_ROWS, w->k));
		n->matmul = larger(n->matmul, tm_matmul_scratch(w));
	}
	n->tile = larger_int(n->tile, MOE_ROWS * 2 * MOE_CHUNK * TM_PANEL);
	n->moe_rows = larger_int(n->moe_rows, max_rows);
	n->experts = larger_int(n->experts, op->w->n);
	n->held = larger_int(n->held, m->count);
	n->used = larger_int(n->used, m->used);
	n->inter = larger_int(n->inter, m->down[0]->k);
	n->hidden = larger_int(n->hidden, m->down[0]->n);
}

// The columns of all ranks.
static int all_columns(const tm_program *p, const tm_op *op)
{ return p->cuts[op->cuts].at[p->cuts[op->cuts].ranks]; }

static needs count_needs(tm_program *p)
{
	needs n = {0};
	for (int i = 0; i < p->num_ops; i++) {
		const tm_op *op = &p->ops[i];
		const int rows = most_rows(p, op);
		if (op->w && op->kind != TM_EMBED) need_matrix(p, op->w, rows, &n);
		if (op->kind == TM_ADD_NORM) n.k = larger_int(n.k, p->buffers[op->out].width);
		if (op->kind == TM_MOE) need_moe(p, op, &p->moes[op->moe], rows, &n);
		if (op->kind == TM_LOGITS) p->vocab = op->cuts < 0 ? op->w->n : all_columns(p, op);
		if (op->kind == TM_PACK) n.stage = larger(n.stage, (size_t)rows * (size_t)all_columns(p, op));
		if (op->kind == TM_ATTN_INPUT && op->w->n > p->qkv_width) p->qkv_width = op->w->n;
		if (op->heads > p->heads) p->heads = op->heads;
	}
	return n;
}

// Lays regions one after another on 64-byte boundaries. With a null base it
// only counts, so the same walk sizes and places.
typedef struct {
	char *base;
	size_t used;
} layout;

static void *take(layout *l, size_t bytes)
{
	void *at = l->base ? l->base + l->used : NULL;
	l->used += (bytes + 63) / 64 * 64;
	return at;
}

static void place_plan(moe_plan *m, layout *l, const needs *n, size_t rows)
{
	const size_t slots = rows * (size_t)n->used;
	m->expert = take(l, slots * sizeof *m->expert);
	m->weight = take(l, slots * sizeof *m->weight);
	m->slot = take(l, slots * sizeof *m->slot);
	m->slot_row = take(l, slots * sizeof *m->slot_row);
	m->slot_weight = take(l, slots * sizeof *m->slot_weight);
	m->next = take(l, (size_t)n->held * sizeof *m->next);
	m->runs = take(l, ((size_t)n->held + slots / MOE_ROWS) * sizeof *m->runs);
}

static void place_moe(tm_program *p, layout *l, const needs *n)
{
	const size_t width = (size_t)n->used * (size_t)n->hidden;
	size_t wave = MOE_FLOATS / width;
	if (wave < TM_TILE) wave = TM_TILE;
	if (wave > (size_t)n->moe_rows) wave = (size_t)n->moe_rows;
	p->moe_wave = (int)wave;
	place_plan(&p->moe, l, n, (size_t)n->moe_rows);
	p->moe_logits = take(l, (size_t)n->moe_rows * (size_t)n->experts * 4);
	p->moe_gated = take(l, wave * (size_t)n->used * (size_t)n->inter * 4);
	p->moe_out = take(l, wave * width * 4);
}

static void place_workers(tm_program *p, layout *l, const needs *n)
{
	for (int i = 0; i < p->threads; i++) {
		worker_mem *w = &p->work[i];
		w->matmul = take(l, n->matmul);
		w->small = take(l, n->small);
		w->rows = take(l, (size_t)TM_TILE * (size_t)n->k * 4);
		w->tile = take(l, (size_t)n->tile * 4);
		w->attn = take(l, tm_attn_scratch(p->kv.head_dim) * 4);
		w->expert = take(l, n->expert);
		if (n->used) place_plan(&w->moe, l, n, TM_TILE);
	}
}

static void place_buffers(tm_program *p, layout *l)
{
	for (int i = 0; i < p->num_buffers; i++) {
		buffer *b = &p->buffers[i];
		const size_t rows = (size_t)(b->shared ? p->max_shared : p->max_rows);
		if (b->root == i)
			b->data = take(l, rows * b->stride * 4);
		else if (l->base) // a view stands behind what it is of
			b->data = p->buffers[b->root].data + b->first;
	}
}

static void place(tm_program *p, layout *l, const needs *n)
{
	const size_t rows = (size_t)p->max_rows;
	place_workers(p, l, n);
	if (n->used) place_moe(p, l, n);
	place_buffers(p, l);
	for (int i = 0; i < p->num_ropes; i++) {
		rope_table *r = &p->ropes[i];
		r->cosv = take(l, rows * (size_t)(r->dims / 2) * 4);
		r->sinv = take(l, rows * (size_t)(r->dims / 2) * 4);
	}
	p->qkv = take(l, rows * (size_t)p->qkv_width * 4);
	p->act = take(l, n->act);
	p->row_seq = take(l, rows * 4);
	p->row_pos = take(l, rows * 4);
	p->max_groups = PARTIAL_FLOATS / tm_partial_floats(1, p->kv.head_dim);
	p->max_tasks = rows * (size_t)p->heads + p->max_groups;
	p->tasks = take(l, p->max_tasks * sizeof *p->tasks);
	p->groups = take(l, p->max_groups * sizeof *p->groups);
	p->partial = take(l, (size_t)PARTIAL_FLOATS * 4);
}

int tm_program_seal(tm_program *p)
{
	needs n = count_needs(p);
	p->work = aligned_alloc(64, (size_t)p->threads * sizeof *p->work);
	if (!p->work) return -1;
	memset(p->work, 0, (size_t)p->threads * sizeof *p->work);
	layout l = {0};
	place(p, &l, &n);
	p->mem_bytes = l.used;
	p->mem = tm_map(l.used, 1);
	if (!p->mem) return -1;
	l = (layout){.base = p->mem};
	place(p, &l, &n);
	p->stage_bytes = n.stage * 4;
	if (p->stage_bytes && !(p->stage = tm_map(p->stage_bytes, 0))) return -1;
	if (p->vocab == 0) return 0;
	// Most steps want few logit rows: the rest of this mapping stays untouched.
	p->logits_bytes = (size_t)p->max_rows * (size_t)p->vocab * 4;
	p->logits = tm_map(p->logits_bytes, 0);
	p->pick_bytes = (size_t)p->threads * tm_pick_bytes(p->vocab);
	p->pick = tm_map(p->pick_bytes, 0);
	return p->logits && p->pick ? 0 : -1;
}
