// The attention tasks of a step. A task is up to TM_ATT_ROWS query rows of one
// sequence and KV head. The splits of a short one (a decode row) become pieces
// of their own, so that one long sequence keeps all workers busy; which way a
// task goes does not change its bits.
#include "program_impl.h"

static int at_least_one(int n) { return n > 0 ? n : 1; }

// Cuts a task into its splits if there is more than one and room for results.
static int cut(tm_program *p, task t, size_t *floats)
{
	const int splits = t.split1;
	const size_t piece = tm_partial_floats(t.queries * t.heads, p->kv.head_dim);
	if (splits < 2 || *floats + piece * (size_t)splits > PARTIAL_FLOATS || (size_t)p->num_groups == p->max_groups)
		return 0;
	t.group = p->num_groups++;
	group *g = &p->groups[t.group];
	g->splits = splits;
	g->partial = *floats;
	atomic_store_explicit(&g->left, splits, memory_order_relaxed);
	for (int s = 0; s < splits; s++) {
		t.split0 = s;
		t.split1 = s + 1;
		t.partial = *floats;
		*floats += piece;
		p->tasks[p->num_tasks++] = t;
	}
	return 1;
}

// Lists the tasks of one sequence, the last queries first: they take longest.
static void plan_seq(tm_program *p, int seq, int head_span, size_t *floats)
{
	const tm_batch *b = p->batch;
	const int rows = b->row_start[seq + 1] - b->row_start[seq], group_heads = p->heads / p->kv.kv_heads;
	const int span = at_least_one(TM_ATT_ROWS / head_span);
	for (int q = (rows - 1) / span * span; q >= 0; q -= span) {
		for (int h = 0, heads; h < p->heads; h += heads) {
			const int kv_head = h / group_heads, left = (kv_head + 1) * group_heads - h;
			heads = left < head_span ? left : head_span;
			task t = {.seq = seq,
				.kv_head = kv_head,
				.head0 = h,
				.heads = heads,
				.group = -1,
				.row = b->row_start[seq] + q};
			t.queries = rows - q < span ? rows - q : span;
			t.pos = b->pos_start[seq] + q;
			t.split1 = (t.pos + t.queries + TM_SPLIT - 1) / TM_SPLIT;
			if (rows > span || !cut(p, t, floats)) p->tasks[p->num_tasks++] = t;
		}
	}
}

// How many query heads go together: all that share a KV head, unless that would
// leave workers without a task.
static int choose_head_span(const tm_program *p)
{
	const tm_batch *b = p->batch;
	const int group_heads = p->heads / p->kv.kv_heads, wanted = 2 * p->threads;
	const int most = group_heads < TM_ATT_ROWS ? group_heads : TM_ATT_ROWS;
	int tasks = 0;
	for (int s = 0; s < b->seqs && tasks < wanted; s++) {
		const int rows = b->row_start[s + 1] - b->row_start[s];
		const int tiles = (rows * most + TM_ATT_ROWS - 1) / TM_ATT_ROWS;
		const int splits = (b->pos_start[s] + rows + TM_SPLIT - 1) / TM_SPLIT;
		tasks += (tiles > 1 ? tiles : splits) * p->kv.kv_heads;
	}
	if (tasks >= wanted || p->threads == 1) return most;
	return at_least_one(most / ((wanted + tasks - 1) / at_least_one(tasks)));
}

void tm_plan(tm_program *p)
{
	const tm_batch *b = p->batch;
	p->num_tasks = p->num_groups = 0;
	for (int s = 0; s < b->seqs; s++) {
		for (int r = b->row_start[s]; r < b->row_start[s + 1]; r++) {
			p->row_seq[r] = s;
			p->row_pos[r] = b->pos_start[s] + r - b->row_start[s];
		}
	}
	if (p->heads == 0) return;
	const int head_span = choose_head_span(p);
	size_t floats = 0;
	for (int s = 0; s < b->seqs; s++) plan_seq(p, s, head_span, &floats);
}
