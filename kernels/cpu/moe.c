// The phases of a mixture of experts. The router picks experts for every row;
// rows are sorted by expert, so that each expert's weights are read once for all
// its rows and those of unused experts not at all; each row then sums what its
// experts made of it.
//
// A product's row does not depend on the rows beside it, and the sum of a row is
// a tree over the ids of its experts, so bits depend on the row only.
#include "program_impl.h"

// Picks the experts of a row, largest logit first and of equal ones the lowest
// id, and leaves them in ascending order of id. A NaN counts as the smallest.
static void choose(const tm_moe *m, const float *logit, int experts, int32_t *expert, float *weight)
{
	float best[TM_MOE_USED];
	int n = 0;
	for (int e = 0; e < experts; e++) {
		const float x = logit[e] == logit[e] ? logit[e] : -INFINITY;
		if (n == m->used && !(x > best[n - 1])) continue;
		int i = n < m->used ? n++ : n - 1;
		for (; i > 0 && x > best[i - 1]; i--) {
			best[i] = best[i - 1];
			expert[i] = expert[i - 1];
		}
		best[i] = x;
		expert[i] = e;
	}
	double sum = 0;
	if (m->renorm)
		for (int i = 0; i < n; i++) sum += exp((double)best[i] - (double)best[0]);
	else
		for (int e = 0; e < experts; e++) sum += exp((double)logit[e] - (double)best[0]);
	for (int i = 0; i < n; i++) {
		const int32_t id = expert[i];
		const float w = (float)(exp((double)best[i] - (double)best[0]) / sum);
		int j = i;
		for (; j > 0 && id < expert[j - 1]; j--) {
			expert[j] = expert[j - 1];
			weight[j] = weight[j - 1];
		}
		expert[j] = id;
		weight[j] = w;
	}
}

// Sorts rows [row0, row1) into slots and cuts those into runs.
static void sort_slots(moe_plan *plan, const tm_moe *m, int row0, int row1)
{
	const size_t from = (size_t)row0 * (size_t)m->used, to = (size_t)row1 * (size_t)m->used;
	memset(plan->next, 0, (size_t)m->count * sizeof *plan->next);
	for (size_t i = from; i < to; i++) {
		const int e = plan->expert[i] - m->first;
		if (e >= 0 && e < m->count) plan->next[e]++;
	}
	int slot = 0;
	plan->num_runs = 0;
	for (int e = 0; e < m->count; e++) {
		const int end = slot + plan->next[e];
		plan->next[e] = slot;
		for (; slot < end; slot += plan->runs[plan->num_runs++].rows)
			plan->runs[plan->num_runs] =
				(moe_run){.expert = e, .slot0 = slot, .rows = end - slot < MOE_ROWS ? end - slot : MOE_ROWS};
	}
	for (size_t i = from; i < to; i++) {
		const int e = plan->expert[i] - m->first;
		plan->slot[i] = e >= 0 && e < m->count ? plan->next[e]++ : -1;
		if (plan->slot[i] < 0) continue;
		plan->slot_row[plan->slot[i]] = (int32_t)(i / (size_t)m->used);
		plan->slot_weight[plan->slot[i]] = plan->weight[i];
	}
}

// The items of a phase: for each run, its panels in chunks. A worker converts a
// run's rows when it claims one of its chunks and has not just done so.
typedef struct {
	tm_claim claim;
	int chunk, chunks, panels;
	int run; // converted, -1 at first
	tm_act act;
} walk;

// step is the panels that belong together, most the steps of a chunk.
static walk walk_all(const tm_program *p, const moe_plan *plan, int panels, int step, int most, int worker)
{
	walk w = {.panels = panels, .run = -1};
	const int64_t steps = (int64_t)plan->num_runs * (panels / step);
	int chunk = (int)(steps / (p->threads * 8));
	chunk = chunk > most ? most : chunk < 1 ? 1 : chunk;
	w.chunk = chunk * step;
	w.chunks = (panels + w.chunk - 1) / w.chunk;
	w.claim = tm_claim_all(worker, plan->num_runs * w.chunks);
	return w;
}

// Returns the run of the next item, or null. *fresh tells that act must be
// filled.
static const moe_run *walk_next(tm_program *p, walk *w, const moe_plan *plan, int *fresh, int *panel0, int *panel1)
{
	const int i = tm_claim_next(p->pool, &w->claim);
	if (i < 0) return NULL;
	*fresh = w->run != i / w->chunks;
	w->run = i / w->chunks;
	*panel0 = i % w->chunks * w->chunk;
	*panel1 = *panel0 + w->chunk < w->panels ? *panel0 + w->chunk : w->panels;
	return &plan->runs[w->run];
}

static acts run_acts(const tm_program *p, const tm_mat *w, const moe_run *r, int worker)
{
	return (acts){.rows = r->rows, .k = w->k, .acts = tm_mat_acts(w, p->bits), .block_rows = MOE_ROWS,
		.mem = p->work[worker].expert};
}

static void gate_up(tm_program *p, const tm_op *op, const tm_moe *m, const moe_plan *plan, int worker)
{
	walk k = walk_all(p, plan, m->gate_up[0]->panels, 2, MOE_CHUNK, worker);
	float *tile = p->work[worker].tile;
	const moe_run *r;
	for (int fresh, p0, p1; (r = walk_next(p, &k, plan, &fresh, &p0, &p1));) {
		const tm_mat *w = m->gate_up[r->expert];
		if (fresh) {
			const acts a = run_acts(p, w, r, worker);
			const source src = {
				.buffer = op->in, .index = plan->slot_row + r->slot0, .norm = op->norm, .eps = op->eps};
			for (int i = 0; i < r->rows; i += TM_TILE)
				tm_fill(p, &a, &src, i, i + TM_TILE < r->rows ? i + TM_TILE : r->rows, worker);
			k.act = tm_act_block(p, &a, 0);
		}
		const size_t ld = (size_t)(p1 - p0) * TM_PANEL, inter = (size_t)m->down[0]->k;
		tm_count(p, w, p0, p1, worker);
		tm_matmul(w, &k.act, p0, p1, tile, ld, 0, p->work[worker].matmul);
		for (int panel = p0; panel < p1; panel += 2) {
			int width;
			tm_mat_col(w, panel, &width);
			const float *gate = tile + (size_t)(panel - p0) * TM_PANEL;
			for (int i = 0; i < r->rows; i++, gate += ld) {
				float *out = p->moe_gated + (size_t)(r->slot0 + i) * inter + panel / 2 * TM_PANEL;
				p->vec->silu_mul(out, gate, gate + TM_PANEL, width);
				p->vec->scale(out, plan->slot_weight[r->slot0 + i], width);
			}
		}
	}
	tm_pool_barrier(p->pool, worker);
}

static void down(tm_program *p, const tm_moe *m, const moe_plan *plan, int worker)
{
	walk k = walk_all(p, plan, m->down[0]->panels, 1, CHUNK_MAX, worker);
	const moe_run *r;
	for (int fresh, p0, p1; (r = walk_next(p, &k, plan, &fresh, &p0, &p1));) {
		const tm_mat *w = m->down[r->expert];
		if (fresh) {
			const acts a = run_acts(p, w, r, worker);
			k.act = tm_act_block(p, &a, 0);
			tm_act_fill(&k.act, p->moe_gated + (size_t)r->slot0 * (size_t)w->k, (size_t)w->k, 0, r->rows);
		}
		int width;
		float *out = p->moe_out + (size_t)r->slot0 * (size_t)w->n + (size_t)tm_mat_col(w, p0, &width);
		tm_count(p, w, p0, p1, worker);
		tm_matmul(w, &k.act, p0, p1, out, (size_t)w->n, 0, p->work[worker].matmul);
	}
	tm_pool_barrier(p->pool, worker);
}

// The depth at which halving the ids [0, n) parts a from b > a.
static int part_depth(int a, int b, int n)
{
	for (int lo = 0, hi = n, depth = 0;; depth++) {
		const int mid = (lo + hi) / 2;
		if (b < mid)
			hi = mid;
		else if (a >= mid)
			lo = mid;
		else
			return depth;
	}
}

// Adds up the outputs of a row's experts.
static void combine(tm_program *p, const tm_op *op, const tm_moe *m, const moe_plan *plan, int row)
{
	const float *leaf[TM_MOE_USED];
	uint8_t joins[TM_MOE_USED], open[TM_MOE_USED]; // depths of sums not joined yet
	int n = 0, top = 0, last = 0;
	const size_t hidden = (size_t)m->down[0]->n;
	for (int i = 0; i < m->used; i++) {
		const size_t at = (size_t)row * (size_t)m->used + (size_t)i;
		if (plan->slot[at] < 0) continue;
		if (n > 0) {
			const int depth = part_depth(last, plan->expert[at], op->w->n);
			for (joins[n - 1] = 0; top > 0 && open[top - 1] > depth; top--) joins[n - 1]++;
			open[top++] = (uint8_t)depth;
		}
		last = plan->expert[at];
		leaf[n++] = p->moe_out + (size_t)plan->slot[at] * hidden;
	}
	if (n > 0) joins[n - 1] = (uint8_t)top;
	float *out = tm_row(p, op->out, row);
	p->vec->tree_sum(out, leaf, joins, n, (int)hidden, op->in == op->out);
}

void tm_run_moe(tm_program *p, const tm_op *op, int worker)
{
	const tm_moe *m = &p->moes[op->moe];
	const int rows = tm_op_rows(p, op), experts = op->w->n, few = rows <= TM_TILE;
	const source src = {.buffer = op->in, .norm = op->norm, .eps = op->eps};
	const acts a = tm_prepare(p, op->w, &src, rows, worker);
	tm_multiply(p, op->w, &a, p->moe_logits, (size_t)experts, NULL, 0, worker);
	tm_pool_barrier(p->pool, worker);
	// Few rows are planned by every worker for itself, which saves barriers.
	moe_plan *plan = few ? &p->work[worker].moe : &p->moe;
	tm_claim c = tm_claim_all(worker, rows);
	for (int r = 0; few ? r < rows : (r = tm_claim_next(p->pool, &c)) >= 0; r++) {
		const size_t at = (size_t)r * (size_t)m->used;
		choose(m, p->moe_logits + (size_t)r * (size_t)experts, experts, plan->expert + at, plan->weight + at);
	}
	if (!few) tm_pool_barrier(p->pool, worker);
	for (int row0 = 0, row1; row0 < rows; row0 = row1) {
		row1 = rows - row0 < p->moe_wave ? rows : row0 + p->moe_wave;
		if (few || worker == 0) sort_slots(plan, m, row0, row1);
		if (!few) tm_pool_barrier(p->pool, worker);
		gate_up(p, op, m, plan, worker);
		down(p, m, plan, worker);
		tm_claim rest = tm_claim_all(worker, row1 - row0);
		for (int r; (r = tm_claim_next(p->pool, &rest)) >= 0;) combine(p, op, m, plan, row0 + r);
		tm_pool_barrier(p->pool, worker);
	}
}
