// The phases of each op. Every worker runs the same code; items are claimed,
// and a phase ends with a barrier.
#include "program_impl.h"

int tm_block_rows(int k)
{
	const int rows = BLOCK_VALUES / k / TM_TILE * TM_TILE;
	return rows < BLOCK_MIN ? BLOCK_MIN : rows > BLOCK_MAX ? BLOCK_MAX : rows;
}

int tm_small(int rows, int k) { return rows <= TM_TILE && (int64_t)rows * k <= SMALL_VALUES; }

tm_act tm_act_block(const tm_program *p, const acts *a, int block)
{
	const int left = a->rows - block * a->block_rows;
	tm_act act;
	tm_act_init(&act, p->isa, a->acts, left < a->block_rows ? left : a->block_rows, a->k,
		a->mem + (size_t)block * a->block_bytes);
	return act;
}

void tm_fill(const tm_program *p, const acts *a, const source *src, int r0, int r1, int worker)
{
	const int block = r0 / a->block_rows, base = block * a->block_rows;
	const tm_act act = tm_act_block(p, a, block);
	if (!src->norm && !src->index) {
		tm_act_fill(&act, tm_row(p, src->buffer, r0), p->buffers[src->buffer].stride, r0 - base,
			r1 - base);
		return;
	}
	float *rows = p->work[worker].rows;
	for (int r = r0; r < r1; r++) {
		const float *x = tm_row(p, src->buffer, src->index ? src->index[r] : r);
		float *to = rows + (size_t)(r - r0) * (size_t)a->k;
		if (src->norm)
			p->vec->rmsnorm(to, x, src->norm, a->k, src->eps);
		else
			memcpy(to, x, (size_t)a->k * 4);
	}
	tm_act_fill(&act, rows, (size_t)a->k, r0 - base, r1 - base);
}

acts tm_prepare(tm_program *p, const tm_mat *w, const source *src, int rows, int worker)
{
	acts a = {.rows = rows, .k = w->k, .acts = tm_mat_acts(w, p->bits)};
	if (tm_small(rows, w->k)) {
		a.block_rows = TM_TILE;
		a.mem = p->work[worker].small;
		tm_fill(p, &a, src, 0, rows, worker);
		return a;
	}
	a.block_rows = tm_block_rows(w->k);
	a.mem = p->act;
	a.block_bytes = tm_act_bytes(a.acts, a.block_rows, w->k);
	tm_claim c = tm_claim_all(worker, (rows + TM_TILE - 1) / TM_TILE);
	for (int i; (i = tm_claim_next(p->pool, &c)) >= 0;)
		tm_fill(p, &a, src, i * TM_TILE, (i + 1) * TM_TILE < rows ? (i + 1) * TM_TILE : rows, worker);
	tm_pool_barrier(p->pool, worker);
	return a;
}

// The items of a product: runs of panels, and for each all blocks of rows, so
// that the panels stay in a core's cache.
typedef struct {
	tm_claim claim;
	int blocks, chunk, panels;
} product;

static product product_all(const tm_program *p, const tm_mat *w, const acts *a, int worker)
{
	product m = {.blocks = acts_blocks(a), .panels = w->panels};
	const int most = a->rows > BLOCK_MIN && w->interleaved ? CHUNK_MANY_ROWS : CHUNK_MAX;
	m.chunk = w->panels / (p->threads * (a->rows > TM_TILE ? 8 : 5));
	if (m.chunk > most) m.chunk = most;
	if (w->interleaved) m.chunk -= m.chunk % 2;
	if (m.chunk < 1 + w->interleaved) m.chunk = 1 + w->interleaved;
	m.claim = tm_claim_all(worker, m.blocks * ((w->panels + m.chunk - 1) / m.chunk));
	return m;
}

static int product_next(const tm_program *p, product *m, int *block, int *panel0, int *panel1)
{
	const int i = tm_claim_next(p->pool, &m->claim);
	if (i < 0) return 0;
	*block = i % m->blocks;
	*panel0 = i / m->blocks * m->chunk;
	*panel1 = *panel0 + m->chunk < m->panels ? *panel0 + m->chunk : m->panels;
	return 1;
}

void tm_multiply(tm_program *p, const tm_mat *w, const acts *a, float *out, size_t ldo, const float *bias,
	int accumulate, int worker)
{
	product m = product_all(p, w, a, worker);
	for (int block, p0, p1; product_next(p, &m, &block, &p0, &p1);) {
		const tm_act act = tm_act_block(p, a, block);
		int width;
		const int col = tm_mat_col(w, p0, &width);
		float *to = out + (size_t)(block * a->block_rows) * ldo + (size_t)col;
		tm_count(p, w, p0, p1, worker);
		tm_matmul(w, &act, p0, p1, to, ldo, accumulate, p->work[worker].matmul);
		if (!bias) continue;
		const int end = tm_mat_col(w, p1 - 1, &width) + width;
		for (int r = 0; r < act.rows; r++) p->vec->add(to + (size_t)r * ldo, bias + col, end - col);
	}
}

static void run_embed(tm_program *p, const tm_op *op, int worker)
{
	tm_claim c = tm_claim_all(worker, p->batch->rows);
	for (int r; (r = tm_claim_next(p->pool, &c)) >= 0;)
		tm_mat_row(op->w, p->batch->tokens[r], tm_row(p, op->out, r));
	tm_pool_barrier(p->pool, worker);
}

static char *kv_tile(const tm_program *p, int layer, int row, int value, int head)
{
	const tm_batch *b = p->batch;
	const int seq = p->row_seq[row];
	const int32_t block = b->pages[b->page_start[seq] + p->row_pos[row] / p->kv.block_tokens];
	const int tile = (layer * 2 + value) * p->kv.kv_heads + head;
	return p->kv.data + (size_t)block * p->kv.block_bytes + (size_t)tile * p->kv.tile_bytes;
}

// Norm, rotation and cache write of head h of q|k|v in one row.
static void finish_head(tm_program *p, const tm_op *op, int row, int h)
{
	const int hd = p->kv.head_dim, kvh = p->kv.kv_heads, token = p->row_pos[row] % p->kv.block_tokens;
	float *x = p->qkv + (size_t)row * (size_t)p->qkv_width + (size_t)h * (size_t)hd;
	if (h >= op->heads + kvh) {
		p->vec->store_v(kv_tile(p, op->layer, row, 1, h - op->heads - kvh), x, hd, p->kv.block_tokens, token,
			p->kv.type);
		return;
	}
	const float *norm = h < op->heads ? op->q_norm : op->k_norm;
	const rope_table *r = &p->ropes[op->rope];
	const size_t at = (size_t)row * (size_t)(r->dims / 2);
	if (norm) p->vec->rmsnorm(x, x, norm, hd, op->eps);
	p->vec->rope(x, r->cosv + at, r->sinv + at, r->dims, r->adjacent);
	if (h < op->heads)
		memcpy(tm_row(p, op->out, row) + h * hd, x, (size_t)hd * 4);
	else
		p->vec->store_k(
			kv_tile(p, op->layer, row, 0, h - op->heads), x, hd, p->kv.block_tokens, token, p->kv.type);
}

static void run_attn_input(tm_program *p, const tm_op *op, int worker)
{
	const source src = {.buffer = op->in, .norm = op->norm, .eps = op->eps};
	const acts a = tm_prepare(p, op->w, &src, p->batch->rows, worker);
	tm_multiply(p, op->w, &a, p->qkv, (size_t)p->qkv_width, op->bias, 0, worker);
	tm_pool_barrier(p->pool, worker);
	const int heads = op->heads + 2 * p->kv.kv_heads, span = 8;
	tm_claim c = tm_claim_all(worker, (a.rows + span - 1) / span * heads);
	for (int i; (i = tm_claim_next(p->pool, &c)) >= 0;)
		for (int row = i / heads * span; row < a.rows && row < (i / heads + 1) * span; row++)
			finish_head(p, op, row, i % heads);
	tm_pool_barrier(p->pool, worker);
}

static tm_attn attn_of(const tm_program *p, const tm_op *op, const task *t, int worker)
{
	return (tm_attn){
		.q = tm_row(p, op->in, t->row),
		.out = tm_row(p, op->out, t->row),
		.ldq = p->buffers[op->in].stride,
		.ldo = p->buffers[op->out].stride,
		.head_dim = p->kv.head_dim,
		.head0 = t->head0,
		.heads = t->heads,
		.queries = t->queries,
		.pos0 = t->pos,
		.window = op->window ? op->window : INT32_MAX,
		.scale = op->scale,
		.kv_type = p->kv.type,
		.block_tokens = p->kv.block_tokens,
		.k = p->kv.data + (size_t)(op->layer * 2 * p->kv.kv_heads + t->kv_head) * p->kv.tile_bytes,
		.v_offset = (size_t)p->kv.kv_heads * p->kv.tile_bytes,
		.block_bytes = p->kv.block_bytes,
		.pages = p->batch->pages + p->batch->page_start[t->seq],
		.split0 = t->split0,
		.split1 = t->split1,
		.partial = t->group < 0 ? NULL : p->partial + t->partial,
		.scratch = p->work[worker].attn,
	};
}

static void run_attention(tm_program *p, const tm_op *op, int worker)
{
	tm_claim c = tm_claim_all(worker, p->num_tasks);
	for (int i; (i = tm_claim_next(p->pool, &c)) >= 0;) {
		const task *t = &p->tasks[i];
		tm_attn a = attn_of(p, op, t, worker), next;
		// Shares are claimed in order: a guess that is mostly right.
		if (i + 1 < p->num_tasks) {
			next = attn_of(p, op, t + 1, worker);
			a.next = &next;
		}
		p->vec->attend(&a);
		if (t->group < 0) continue;
		// Whoever finishes the last piece merges all, and resets for the next layer.
		group *g = &p->groups[t->group];
		if (atomic_fetch_sub_explicit(&g->left, 1, memory_order_acq_rel) != 1) continue;
		atomic_store_explicit(&g->left, g->splits, memory_order_relaxed);
		a.partial = p->partial + g->partial;
		p->vec->merge(&a, g->splits);
	}
	tm_pool_barrier(p->pool, worker);
}

static void run_linear(tm_program *p, const tm_op *op, int accumulate, int worker)
{
	const source src = {.buffer = op->in};
	const acts a = tm_prepare(p, op->w, &src, tm_op_rows(p, op), worker);
	tm_multiply(p, op->w, &a, p->buffers[op->out].data, p->buffers[op->out].stride, op->bias, accumulate, worker);
	tm_pool_barrier(p->pool, worker);
}

// Runs one worker's share of an op that does one row after another.
static void run_rows(tm_program *p, const tm_op *op, int worker)
{
	const int width = p->buffers[op->out].width;
	float *normed = p->work[worker].rows;
	tm_claim c = tm_claim_all(worker, tm_op_rows(p, op));
	for (int r; (r = tm_claim_next(p->pool, &c)) >= 0;) {
		if (op->kind == TM_SCALE) {
			p->vec->scale(tm_row(p, op->out, r), op->scale, width);
			continue;
		}
		p->vec->rmsnorm(normed, tm_row(p, op->in, r), op->norm, width, op->eps);
		p->vec->add(tm_row(p, op->out, r), normed, width);
	}
	tm_pool_barrier(p->pool, worker);
}

static void run_gated_mlp(tm_program *p, const tm_op *op, int worker)
{
	void (*const gate_up)(float *, const float *, const float *, int) =
		op->kind == TM_GATED_GELU ? p->vec->gelu_mul : p->vec->silu_mul;
	const source src = {.buffer = op->in, .norm = op->norm, .eps = op->eps};
	const acts a = tm_prepare(p, op->w, &src, tm_op_rows(p, op), worker);
	product m = product_all(p, op->w, &a, worker);
	float *tile = p->work[worker].tile;
	for (int block, p0, p1; product_next(p, &m, &block, &p0, &p1);) {
		const tm_act act = tm_act_block(p, &a, block);
		const size_t ld = (size_t)(p1 - p0) * TM_PANEL;
		tm_count(p, op->w, p0, p1, worker);
		tm_matmul(op->w, &act, p0, p1, tile, ld, 0, p->work[worker].matmul);
		for (int panel = p0; panel < p1; panel += 2) {
			int width;
			tm_mat_col(op->w, panel, &width);
			const float *gate = tile + (size_t)(panel - p0) * TM_PANEL;
			float *out = tm_row(p, op->out, block * a.block_rows) + panel / 2 * TM_PANEL;
			for (int r = 0; r < act.rows; r++)
				gate_up(out + (size_t)r * p->buffers[op->out].stride,
					gate + (size_t)r * ld, gate + (size_t)r * ld + TM_PANEL, width);
		}
	}
	tm_pool_barrier(p->pool, worker);
}

static void run_logits(tm_program *p, const tm_op *op, int worker)
{
	if (p->batch->logit_rows == 0) return;
	const int first = op->cuts < 0 ? 0 : p->cuts[op->cuts].at[p->cuts[op->cuts].own];
	const source src = {.buffer = op->in, .index = p->batch->logit_row, .norm = op->norm, .eps = op->eps};
	const acts a = tm_prepare(p, op->w, &src, p->batch->logit_rows, worker);
	tm_multiply(p, op->w, &a, p->logits + first, (size_t)p->vocab, NULL, 0, worker);
	tm_pool_barrier(p->pool, worker);
}

void tm_op_run(tm_program *p, const tm_op *op, int worker)
{
	const int logits = op->kind == TM_LOGITS || op->in < 0;
	if (!logits && tm_op_rows(p, op) == 0) return;
	switch (op->kind) {
	case TM_EMBED: run_embed(p, op, worker); break;
	case TM_ATTN_INPUT: run_attn_input(p, op, worker); break;
	case TM_ATTENTION: run_attention(p, op, worker); break;
	case TM_ADD_LINEAR: run_linear(p, op, 1, worker); break;
	case TM_LINEAR: run_linear(p, op, 0, worker); break;
	case TM_SCALE:
	case TM_ADD_NORM: run_rows(p, op, worker); break;
	case TM_GATED_GELU:
	case TM_GATED_MLP: run_gated_mlp(p, op, worker); break;
	case TM_LOGITS: run_logits(p, op, worker); break;
	case TM_MOE: tm_run_moe(p, op, worker); break;
	case TM_PACK: tm_run_pack(p, op, worker); break;
	case TM_UNPACK: tm_run_unpack(p, op, worker); break;
	case TM_OWN_ROWS:
	case TM_ADD_ROWS: tm_run_own_rows(p, op, worker); break;
	}
}
