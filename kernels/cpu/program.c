#include "program.h"

#include <stdlib.h>

#include "mem.h"
#include "program_impl.h"

tm_program *tm_program_new(tm_pool *pool, int isa, const tm_kv *kv, int max_rows, int max_shared_rows)
{
	tm_program *p = calloc(1, sizeof *p);
	if (!p) return NULL;
	p->pool = pool;
	p->isa = isa;
	p->vec = tm_vec_for(isa);
	p->kv = *kv;
	p->max_rows = max_rows;
	p->max_shared = max_shared_rows;
	p->threads = tm_pool_threads(pool);
	p->bits = 16;
	return p;
}

void tm_program_bits(tm_program *p, int bits) { p->bits = bits; }

// grow makes room for one more element and returns the array, or null.
static void *grow(void *array, int count, size_t size) { return realloc(array, (size_t)(count + 1) * size); }

int tm_program_buffer(tm_program *p, int width, int shared)
{
	buffer *b = grow(p->buffers, p->num_buffers, sizeof *b);
	if (!b) return -1;
	p->buffers = b;
	b[p->num_buffers] =
		(buffer){.width = width, .root = p->num_buffers, .shared = shared, .stride = (size_t)width};
	return p->num_buffers++;
}

int tm_program_view(tm_program *p, int of, int first, int width)
{
	const int i = tm_program_buffer(p, width, p->buffers[of].shared);
	if (i < 0) return -1;
	const buffer *from = &p->buffers[of];
	buffer *b = &p->buffers[i];
	b->root = from->root;
	b->first = from->first + first;
	b->stride = from->stride;
	return i;
}

int tm_program_cuts(tm_program *p, int ranks, int own, const int32_t *cuts)
{
	column_cuts *all = grow(p->cuts, p->num_cuts, sizeof *all);
	if (!all) return -1;
	p->cuts = all;
	const size_t bytes = (size_t)(ranks + 1) * sizeof *cuts;
	int32_t *at = malloc(bytes);
	if (!at) return -1;
	memcpy(at, cuts, bytes);
	all[p->num_cuts] = (column_cuts){ranks, own, at};
	return p->num_cuts++;
}

int tm_program_rope(tm_program *p, int dims, int adjacent, float scale, const float *inv_freq)
{
	const size_t bytes = (size_t)(dims / 2) * sizeof *inv_freq;
	for (int i = 0; i < p->num_ropes; i++) {
		const rope_table *r = &p->ropes[i];
		if (r->dims == dims && r->adjacent == adjacent && r->scale == scale &&
			!memcmp(r->inv_freq, inv_freq, bytes))
			return i;
	}
	rope_table *r = grow(p->ropes, p->num_ropes, sizeof *r);
	if (!r) return -1;
	p->ropes = r;
	float *copy = malloc(bytes + 1);
	if (!copy) return -1;
	memcpy(copy, inv_freq, bytes);
	r[p->num_ropes] = (rope_table){.dims = dims, .adjacent = adjacent, .scale = scale, .inv_freq = copy};
	return p->num_ropes++;
}

int tm_program_moe(tm_program *p, const tm_moe *m)
{
	tm_moe *all = grow(p->moes, p->num_moes, sizeof *all);
	if (!all) return -1;
	p->moes = all;
	const tm_mat **list = malloc(2 * (size_t)m->count * sizeof *list);
	if (!list) return -1;
	memcpy(list, m->gate_up, (size_t)m->count * sizeof *list);
	memcpy(list + m->count, m->down, (size_t)m->count * sizeof *list);
	tm_moe *to = &all[p->num_moes];
	*to = *m;
	to->gate_up = list;
	to->down = list + m->count;
	return p->num_moes++;
}

int tm_program_op(tm_program *p, const tm_op *op)
{
	tm_op *ops = grow(p->ops, p->num_ops, sizeof *ops);
	if (!ops) return -1;
	p->ops = ops;
	ops[p->num_ops] = *op;
	return p->num_ops++;
}

void tm_program_free(tm_program *p)
{
	if (!p) return;
	tm_unmap(p->mem, p->mem_bytes);
	tm_unmap(p->logits, p->logits_bytes);
	tm_unmap(p->stage, p->stage_bytes);
	tm_unmap(p->pick, p->pick_bytes);
	for (int i = 0; i < p->num_ropes; i++) free(p->ropes[i].inv_freq);
	for (int i = 0; i < p->num_moes; i++) free((void *)p->moes[i].gate_up);
	for (int i = 0; i < p->num_cuts; i++) free(p->cuts[i].at);
	free(p->cuts);
	free(p->moes);
	free(p->buffers);
	free(p->ropes);
	free(p->ops);
	free(p->work);
	free(p);
}

float *tm_program_logits(const tm_program *p) { return p->logits; }

float *tm_program_data(const tm_program *p, int buffer) { return p->buffers[buffer].data; }

float *tm_program_stage(const tm_program *p) { return p->stage; }

size_t tm_program_bytes(const tm_program *p) { return p->mem_bytes; }

static void rope_row(const rope_table *r, int row, int pos)
{
	const int half = r->dims / 2;
	float *c = r->cosv + (size_t)row * (size_t)half, *s = r->sinv + (size_t)row * (size_t)half;
	for (int i = 0; i < half; i++) {
		const double angle = (double)pos * (double)r->inv_freq[i];
		c[i] = (float)cos(angle) * r->scale;
		s[i] = (float)sin(angle) * r->scale;
	}
}

static void rotations(tm_program *p, int worker)
{
	const int span = 8, rows = p->batch->rows;
	tm_claim c = tm_claim_all(worker, (rows + span - 1) / span);
	for (int i; (i = tm_claim_next(p->pool, &c)) >= 0;)
		for (int row = i * span; row < rows && row < (i + 1) * span; row++)
			for (int r = 0; r < p->num_ropes; r++) rope_row(&p->ropes[r], row, p->row_pos[row]);
	tm_pool_barrier(p->pool, worker);
}

static void run_worker(void *ctx, int worker)
{
	tm_program *p = ctx;
	if (p->op0 == 0) rotations(p, worker);
	for (int i = p->op0; i < p->op1; i++) {
		tm_op_run(p, &p->ops[i], worker);
		if (worker == 0) atomic_fetch_add_explicit(&p->progress, 1, memory_order_relaxed);
	}
}

uint64_t tm_program_progress(const tm_program *p)
{
	return atomic_load_explicit(&((tm_program *)p)->progress, memory_order_relaxed);
}

uint64_t tm_program_read(const tm_program *p)
{
	uint64_t bytes = 0;
	for (int i = 0; p->work && i < p->threads; i++) bytes += p->work[i].read;
	return bytes;
}

void tm_program_run(tm_program *p, const tm_batch *b, int op0, int op1)
{
	p->batch = b;
	p->op0 = op0;
	p->op1 = op1;
	if (op0 == 0) tm_plan(p);
	tm_pool_run(p->pool, run_worker, p);
	p->batch = NULL;
}

typedef struct {
	const tm_program *p;
	const tm_pick_rule *rules;
	tm_picked *out;
	int n;
} pick_job;

static void pick_worker(void *ctx, int worker)
{
	const pick_job *j = ctx;
	const tm_program *p = j->p;
	const size_t vocab = (size_t)p->vocab;
	void *scratch = p->pick + (size_t)worker * tm_pick_bytes(p->vocab);
	tm_claim c = tm_claim_all(worker, j->n);
	for (int i; (i = tm_claim_next(p->pool, &c)) >= 0;)
		if (!j->rules[i].host)
			tm_pick(p->vec, p->logits + (size_t)i * vocab, p->vocab, &j->rules[i], &j->out[i], scratch);
}

void tm_program_pick(tm_program *p, const tm_pick_rule *rules, tm_picked *out, int n)
{
	pick_job j = {p, rules, out, n};
	if (n > 1)
		tm_pool_run(p->pool, pick_worker, &j);
	else if (n == 1 && !rules->host) // not worth waking anybody
		tm_pick(p->vec, p->logits, p->vocab, rules, out, p->pick);
}

typedef struct {
	tm_pool *pool;
	const tm_mat *m;
	const uint8_t *src;
	int seg, panel0, panel1;
} pack_job;

static void pack_worker(void *ctx, int worker)
{
	const pack_job *j = ctx;
	const int span = 8;
	tm_claim c = tm_claim_all(worker, (j->panel1 - j->panel0 + span - 1) / span);
	for (int i; (i = tm_claim_next(j->pool, &c)) >= 0;) {
		const int from = j->panel0 + i * span;
		tm_mat_pack(j->m, j->seg, j->src, from, from + span < j->panel1 ? from + span : j->panel1);
	}
}

void tm_pack(tm_pool *pool, const tm_mat *m, int seg, const uint8_t *src, int panel0, int panel1)
{
	pack_job j = {pool, m, src, seg, panel0, panel1};
	tm_pool_run(pool, pack_worker, &j);
}
