// Bodies of the attention kernels, written over the v16 of the level that
// includes this file. Scores of 16 tokens stand in one v16, so a dot product
// needs no horizontal sum: it is one chain of fused multiply-adds over the
// head's dimensions, whatever the register tiling around it. Values accumulate
// over tokens in ascending order the same way. Both read each cached byte once
// per group of query heads.

#define TM_UNROLL _Pragma("GCC unroll 32")

// The cached bytes of a split: where each tile of 16 tokens has its keys and
// values. Tiles of blocks of 8 tokens have two parts, in two blocks, others one.
// The key pointers go on for TM_AHEAD tiles more, for prefetching, and next has the
// parts of the keys of the split that comes next, which may be more or fewer.
#define TM_AHEAD 4
typedef struct {
	const char *k[TM_SPLIT / 8 + 2 * TM_AHEAD]; // of each part
	const char *v[TM_SPLIT / 8];
	const char *next[TM_SPLIT / 8];
	const uint16_t *k_scale[TM_SPLIT / 16], *v_scale[TM_SPLIT / 16]; // of bytes
	uint16_t joined[2][TM_SPLIT];                                    // scales of tiles in two parts
	size_t line, next_line; // bytes between lines of a key tile, and between 64 bytes of it in next
	int tiles, parts, tokens, nexts;
} split_kv;

// Tiles of a pool are far apart, which defeats the processor's own prefetching:
// while keys are multiplied, the next keys and these tokens' values are fetched,
// a tile after the other, `tiles` lines at a time; of two parts in turn. While
// values are multiplied, the keys of the next split are: memory is never idle.
typedef struct {
	int tile, at;
} fetcher;

TM_FN void fetch_ahead(const int tiles, const int parts, const split_kv *x, int lines, fetcher *f)
{
	if (parts == 2) {
		TM_UNROLL
		for (int i = 0; i < tiles; i++) {
			const int part = (f->at + i) % 2, at = (f->at + i) / 2 * 64;
			__builtin_prefetch(x->k[2 * (f->tile + tiles) + part] + at, 0, 3);
			__builtin_prefetch(x->v[2 * f->tile + part] + at, 0, 2);
		}
	} else {
		const char *k = x->k[f->tile + tiles] + (size_t)f->at * x->line, *v = x->v[f->tile] + (size_t)f->at * 64;
		TM_UNROLL
		for (int i = 0; i < tiles; i++) {
			__builtin_prefetch(k + (size_t)i * x->line, 0, 3);
			__builtin_prefetch(v + i * 64, 0, 2);
		}
	}
	f->at += tiles;
	if (f->at < lines) return;
	f->at = 0;
	f->tile++;
}

// Adds one dimension, of which kv has the keys, to the scores.
TM_FN void qk_add(const int rows, const int tiles, const float *q, int hd, const v16 *kv, v16 *acc)
{
	TM_UNROLL
	for (int r = 0; r < rows; r++) {
		v16 b = v_set1(q[r * hd]);
		TM_UNROLL
		for (int t = 0; t < tiles; t++) acc[r * tiles + t] = v_fma(b, kv[t], acc[r * tiles + t]);
	}
}

// Loads keys of 16 tokens that begin at `at` of a tile's only part, or of both.
TM_FN v16 keys_f32(const int parts, const char *const *k, size_t at)
{
	const float *p = (const float *)(const void *)(k[0] + at);
	return parts == 1 ? v_load(p) : v_load_two(p, (const float *)(const void *)(k[1] + at));
}
TM_FN v16 keys_lo(const int parts, const char *const *k, size_t at)
{
	const uint16_t *p = (const uint16_t *)(const void *)(k[0] + at);
	return parts == 1 ? v_bf16_lo(p) : v_bf16_lo_two(p, (const uint16_t *)(const void *)(k[1] + at));
}
TM_FN v16 keys_hi(const int parts, const char *const *k, size_t at)
{
	const uint16_t *p = (const uint16_t *)(const void *)(k[0] + at);
	return parts == 1 ? v_bf16_hi(p) : v_bf16_hi_two(p, (const uint16_t *)(const void *)(k[1] + at));
}
TM_FN v16 keys_i8(const int parts, const char *const *k, size_t at)
{
	const int8_t *p = (const int8_t *)k[0] + at;
	return parts == 1 ? v_i8(p) : v_i8_two(p, (const int8_t *)k[1] + at);
}

// Scores of rows x tiles (16 tokens each): s[r][16*t..] = q[r] . k. A tile's
// line holds 16 tokens of a dimension pair (bfloat16), of a dimension (float32) or of
// four dimensions, one after another (bytes).
TM_FN void qk_tile(const int rows, const int tiles, const int type, const int parts, const float *q, int hd,
	const split_kv *x, int t0, float *s)
{
	const char *const *k = x->k + parts * t0;
	const size_t line = x->line;
	fetcher next = {.tile = t0};
	v16 acc[24];
	TM_UNROLL
	for (int i = 0; i < rows * tiles; i++) acc[i] = v_zero();
	if (type == TM_KV_I8) {
		for (int d = 0; d < hd; d++) {
			if (d % 4 == 0) fetch_ahead(tiles, parts, x, hd / 4, &next);
			v16 kv[4];
			TM_UNROLL
			for (int t = 0; t < tiles; t++) kv[t] = keys_i8(parts, k + parts * t, (size_t)(d * (16 / parts)));
			qk_add(rows, tiles, q + d, hd, kv, acc);
		}
		for (int t = 0; t < tiles; t++) {
			const v16 scale = v_bf16(x->k_scale[t0 + t]);
			TM_UNROLL
			for (int r = 0; r < rows; r++) acc[r * tiles + t] = v_mul(acc[r * tiles + t], scale);
		}
	} else if (type == TM_KV_F32) {
		for (int d = 0; d < hd; d++) {
			fetch_ahead(tiles, parts, x, hd, &next);
			v16 kv[4];
			TM_UNROLL
			for (int t = 0; t < tiles; t++) kv[t] = keys_f32(parts, k + parts * t, (size_t)d * line);
			qk_add(rows, tiles, q + d, hd, kv, acc);
		}
	} else {
		for (int d = 0; d < hd; d += 2) {
			const size_t at = (size_t)(d / 2) * line;
			fetch_ahead(tiles, parts, x, hd / 2, &next);
			v16 kv[4];
			TM_UNROLL
			for (int t = 0; t < tiles; t++) kv[t] = keys_lo(parts, k + parts * t, at);
			qk_add(rows, tiles, q + d, hd, kv, acc);
			TM_UNROLL
			for (int t = 0; t < tiles; t++) kv[t] = keys_hi(parts, k + parts * t, at);
			qk_add(rows, tiles, q + d + 1, hd, kv, acc);
		}
	}
	TM_UNROLL
	for (int r = 0; r < rows; r++) {
		TM_UNROLL
		for (int t = 0; t < tiles; t++) v_store(s + r * TM_SPLIT + 16 * t, acc[r * tiles + t]);
	}
}

TM_FN void qk_rows(
	const int rows, const int type, const int parts, const float *q, int hd, const split_kv *x, float *s)
{
	int t = 0;
	for (; t + TM_TILES(rows) <= x->tiles; t += TM_TILES(rows))
		qk_tile(rows, TM_TILES(rows), type, parts, q, hd, x, t, s + 16 * t);
	for (; t < x->tiles; t++) qk_tile(rows, 1, type, parts, q, hd, x, t, s + 16 * t);
}

// Fetches n lines into the second-level cache.
TM_FN void fetch_lines(const char *at, size_t line, int n)
{
	for (int i = 0; i < n; i++) __builtin_prefetch(at + (size_t)i * line, 0, 2);
}

TM_FN void pv_add(const int rows, const int cols, const float *p, const v16 *v, v16 *acc)
{
	TM_UNROLL
	for (int r = 0; r < rows; r++) {
		v16 b = v_set1(p[r * TM_SPLIT]);
		TM_UNROLL
		for (int c = 0; c < cols; c++) acc[r * cols + c] = v_fma(b, v[c], acc[r * cols + c]);
	}
}

// Weighted sums of rows x cols chunks of 16 dimensions over the first `tokens`
// tokens, of which each v has `part`: o[r][16*c..] = sum of p[r][j] * v[j]. Of next,
// it fetches the lines that stand where the values do.
TM_FN void pv_tile(const int rows, const int cols, const int type, const float *p, int hd, const char *const *v,
	const char *const *next, size_t line, int part, int tokens, float *o)
{
	const int per = type == TM_KV_F32 ? 16 : 32; // values of a line
	v16 acc[24];
	TM_UNROLL
	for (int i = 0; i < rows * cols; i++) acc[i] = v_zero();
	for (int j0 = 0; j0 < tokens; j0 += part, v++, next++) {
		const char *tile = *v;
		const int end = tokens - j0 < part ? tokens - j0 : part;
		if (type == TM_KV_I8) {
			for (int j = 0; j < end; j++) {
				v16 vv[4];
				fetch_lines(*next + (size_t)j * (size_t)hd, line, 1);
				TM_UNROLL
				for (int c = 0; c < cols; c++)
					vv[c] = v_i8((const int8_t *)tile + (size_t)j * (size_t)hd + 16 * c);
				pv_add(rows, cols, p + j0 + j, vv, acc);
			}
			continue;
		}
		for (int j = 0; j < end; j += 2) {
			v16 vv[4];
			fetch_lines(*next + (size_t)(j * hd / per) * line, line, cols);
			const float *wide = (const float *)(const void *)tile + (size_t)j * (size_t)hd;
			const uint16_t *pair = (const uint16_t *)(const void *)tile + (size_t)j * (size_t)hd;
			TM_UNROLL
			for (int c = 0; c < cols; c++) vv[c] = type == TM_KV_F32 ? v_load(wide + 16 * c) : v_bf16_lo(pair + 32 * c);
			pv_add(rows, cols, p + j0 + j, vv, acc);
			if (j + 1 == end) break;
			if (type == TM_KV_F32) fetch_lines(*next + (size_t)((j + 1) * hd / per) * line, line, cols);
			TM_UNROLL
			for (int c = 0; c < cols; c++)
				vv[c] = type == TM_KV_F32 ? v_load(wide + hd + 16 * c) : v_bf16_hi(pair + 32 * c);
			pv_add(rows, cols, p + j0 + j + 1, vv, acc);
		}
	}
	TM_UNROLL
	for (int r = 0; r < rows; r++) {
		TM_UNROLL
		for (int c = 0; c < cols; c++) v_store(o + r * hd + 16 * c, acc[r * cols + c]);
	}
}

// The 16-dimension chunk c of a tile starts 16*c lanes further on: of a byte, else of
// 4 bytes (a bfloat16 line interleaves two tokens).
TM_FN void pv_rows(const int rows, const int type, const float *p, int hd, const split_kv *x, float *o)
{
	const int wide = TM_TILES(rows), tokens = x->tokens, part = 16 / x->parts;
	const char *at[TM_SPLIT / 8], *next[TM_SPLIT / 8];
	for (int d = 0; d < hd;) {
		const int step = d + 16 * wide <= hd ? 16 * wide : 16;
		for (int i = 0; i < x->tiles * x->parts; i++) {
			at[i] = x->v[i] + (size_t)d * (type == TM_KV_I8 ? 1 : 4);
			next[i] = x->next[i] + (type == TM_KV_I8 ? (size_t)d : (size_t)(d / 16) * x->next_line);
		}
		if (step == 16)
			pv_tile(rows, 1, type, p, hd, at, next, x->next_line, part, tokens, o + d);
		else
			pv_tile(rows, TM_TILES(rows), type, p, hd, at, next, x->next_line, part, tokens, o + d);
		d += step;
	}
}

// Runs call(rows) over n rows in the largest register tilings that fit.
#define TM_BY_ROWS(n, call)                             \
	for (int r = 0; r < (n);) {                     \
		const int left = (n) - r;               \
		if (TM_ROWS >= 12 && left >= 12) {      \
			call(12);                       \
			r += 12;                        \
		} else if (TM_ROWS >= 6 && left >= 6) { \
			call(6);                        \
			r += 6;                         \
		} else if (TM_ROWS >= 4 && left >= 4) { \
			call(4);                        \
			r += 4;                         \
		} else if (left >= 3) {                 \
			call(3);                        \
			r += 3;                         \
		} else if (left >= 2) {                 \
			call(2);                        \
			r += 2;                         \
		} else {                                \
			call(1);                        \
			r += 1;                         \
		}                                       \
	}

#define TM_QK(R) qk_rows(R, type, parts, q + r * hd, hd, x, s + r * TM_SPLIT)
#define TM_PV(R) pv_rows(R, type, p + r * TM_SPLIT, hd, x, o + r * hd)

TM_FN void qk_all(const int type, const int parts, int n, const float *q, int hd, const split_kv *x, float *s)
{TM_BY_ROWS(n, TM_QK)}
TM_FN void pv_all(const int type, int n, const float *p, int hd, const split_kv *x, float *o){TM_BY_ROWS(n, TM_PV)}

typedef void attn_fn(int n, const float *in, int hd, const split_kv *x, float *out);

#define TM_QK_KERNEL(name, type, parts)                                             \
	TM_KERNEL void name(int n, const float *q, int hd, const split_kv *x, float *s) \
	{ qk_all(type, parts, n, q, hd, x, s); }
#define TM_PV_KERNEL(name, type)                                                    \
	TM_KERNEL void name(int n, const float *p, int hd, const split_kv *x, float *o) \
	{ pv_all(type, n, p, hd, x, o); }

TM_QK_KERNEL(qk_bf16, TM_KV_BF16, 1)
TM_QK_KERNEL(qk_f32, TM_KV_F32, 1)
TM_QK_KERNEL(qk_i8, TM_KV_I8, 1)
TM_QK_KERNEL(qk_bf16_two, TM_KV_BF16, 2)
TM_QK_KERNEL(qk_f32_two, TM_KV_F32, 2)
TM_QK_KERNEL(qk_i8_two, TM_KV_I8, 2)
TM_PV_KERNEL(pv_bf16, TM_KV_BF16)
TM_PV_KERNEL(pv_f32, TM_KV_F32)
TM_PV_KERNEL(pv_i8, TM_KV_I8)

// By type, and of keys by parts.
static attn_fn *const qk_kernels[][2] = {
	[TM_KV_BF16] = {qk_bf16, qk_bf16_two}, [TM_KV_F32] = {qk_f32, qk_f32_two}, [TM_KV_I8] = {qk_i8, qk_i8_two}};
static attn_fn *const pv_kernels[] = {[TM_KV_BF16] = pv_bf16, [TM_KV_F32] = pv_f32, [TM_KV_I8] = pv_i8};

// Turns the scores (in powers of two) of the tokens from `from` to `limit` of a row
// into weights and clears the others up to `tokens`. Sets the row's largest score
// and weight sum. Cleared ones add zeros, so that bits depend on the tokens seen.
TM_FN void softmax_row(float *s, int from, int limit, int tokens, float *top, float *sum)
{
	v16 m = v_set1(-INFINITY);
	const int begin = from & ~15;
	for (int i = 0; i < begin; i += 16) v_store(s + i, v_zero());
	for (int i = begin; i < from; i++) s[i] = -INFINITY;
	for (int i = begin; i < limit; i += 16) {
		v16 x = v_load(s + i);
		if (limit - i < 16) x = v_keep_n(x, limit - i, -INFINITY);
		m = v_max(m, x);
	}
	const float big = v_top(m);
	const v16 mb = v_set1(big);
	v16 total = v_zero();
	int i = begin;
	for (; i < limit; i += 16) {
		v16 p = v_exp2(v_sub(v_load(s + i), mb));
		if (limit - i < 16) p = v_keep_n(p, limit - i, 0.0f);
		total = v_add(total, p);
		v_store(s + i, p);
	}
	for (; i < tokens; i += 16) v_store(s + i, v_zero());
	*top = big;
	*sum = v_sum(total);
}

// Joins a split's result (o, m, l) to the state (acc, *tm, *tl) of the splits
// before it.
TM_FN void merge_row(float *acc, float *tm, float *tl, const float *o, float m, float l, int hd)
{
	const float top = *tm > m ? *tm : m;
	float w[16];
	v_store(w, v_exp2(v_keep_n(v_set1(*tm - top), 1, m - top)));
	const v16 a = v_set1(w[0]), b = v_set1(w[1]);
	*tl = v_fma1(*tl, w[0], l * w[1]);
	*tm = top;
	for (int d = 0; d < hd; d += 16) v_store(acc + d, v_fma(v_load(acc + d), a, v_mul(v_load(o + d), b)));
}

// The first position that the query of row r sees.
TM_FN int row_first(const tm_attn *a, int r)
{
	const int n = a->pos0 + r / a->heads + 1 - a->window;
	return n > 0 ? n : 0;
}

// How many tokens of the split that starts at t0 are not behind the query of row r.
TM_FN int row_limit(const tm_attn *a, int r, int t0)
{
	const int n = a->pos0 + r / a->heads + 1 - t0;
	return n < TM_SPLIT ? n : TM_SPLIT;
}

// Whether the query of row r sees anything of a split.
TM_FN int row_sees(const tm_attn *a, int r, int split)
{ return row_limit(a, r, split * TM_SPLIT) > 0 && row_first(a, r) < (split + 1) * TM_SPLIT; }

// Finds the tiles of a split, whose queries see nothing before `first`. Of a tile in
// two parts one may lie behind the last token or before all windows, and then be no
// block at all. It is taken to be the other: its scores count for nothing either way.
TM_FN void find_tiles(const tm_attn *a, int t0, int tokens, int first, split_kv *x)
{
	const size_t hd = (size_t)a->head_dim, block_tokens = (size_t)a->block_tokens;
	const size_t size = a->kv_type == TM_KV_F32 ? 4 : a->kv_type == TM_KV_I8 ? 1 : 2;
	const int part = a->block_tokens < 16 ? 8 : 16;
	x->tiles = (tokens + 15) / 16;
	x->parts = 16 / part;
	x->tokens = tokens;
	x->line = a->kv_type == TM_KV_I8 ? 64 : block_tokens * 4;
	const int all = x->tiles * x->parts;
	for (int i = 0; i < all; i++) {
		int t = t0 + part * i;
		if (part == 8 && t >= t0 + tokens) t -= 8;
		if (part == 8 && t + 8 <= first) t += 8;
		const size_t off = (size_t)(t % a->block_tokens);
		const char *block = a->k + (size_t)a->pages[t / a->block_tokens] * a->block_bytes;
		x->k[i] = block + off * (a->kv_type == TM_KV_I8 ? hd : 4);
		x->v[i] = block + a->v_offset + off * hd * size;
		if (a->kv_type != TM_KV_I8) continue;
		const char *scales = block + block_tokens * hd + off * 2;
		if (part == 16) {
			x->k_scale[i] = (const uint16_t *)(const void *)scales;
			x->v_scale[i] = (const uint16_t *)(const void *)(scales + a->v_offset);
			continue;
		}
		memcpy(x->joined[0] + 8 * i, scales, 16);
		memcpy(x->joined[1] + 8 * i, scales + a->v_offset, 16);
		x->k_scale[i / 2] = x->joined[0] + i / 2 * 16;
		x->v_scale[i / 2] = x->joined[1] + i / 2 * 16;
	}
	for (int i = 0; i < x->parts * TM_AHEAD; i++) x->k[all + i] = x->k[all - 1];
}

// Finds the keys of the split that comes next, of this task or the next one. Where it
// has fewer parts, the values of this one, which are there, stand for more.
TM_FN void find_next(const tm_attn *a, int split, split_kv *x)
{
	const int part = 16 / x->parts;
	x->next_line = x->parts == 2 ? 64 : x->line;
	x->nexts = 0;
	if (++split >= a->split1) {
		a = a->next;
		split = a ? a->split0 : 0;
	}
	if (a) {
		const int first = row_first(a, 0) & ~(part - 1), last = a->pos0 + a->queries;
		const size_t size = a->kv_type == TM_KV_I8 ? (size_t)a->head_dim : 4; // of a token in a line
		int t = split * TM_SPLIT > first ? split * TM_SPLIT : first;
		for (; t < last && t < (split + 1) * TM_SPLIT; t += part)
			x->next[x->nexts++] = a->k + (size_t)a->pages[t / a->block_tokens] * a->block_bytes +
					      (size_t)(t % a->block_tokens) * size;
	}
	for (int i = x->nexts; i < x->tiles * x->parts; i++) x->next[i] = x->v[i];
}

// Multiplies a row's weights with the scales of the values that they weigh.
TM_FN void scale_weights(float *p, const split_kv *x)
{
	for (int i = 0; i < x->tiles; i++) v_store(p + 16 * i, v_mul(v_load(p + 16 * i), v_bf16(x->v_scale[i])));
}

// Computes one split for all rows: o [rows][head_dim], m and l [rows]. Rows that
// see nothing of it must be left out by the caller. What lies before the window of
// the first query, which is the earliest, is not read.
TM_FN void attend_split(const tm_attn *a, const float *q, int rows, int split, float *s, float *o, float *m, float *l)
{
	const int t0 = split * TM_SPLIT, hd = a->head_dim;
	const int last = a->pos0 + a->queries, first = row_first(a, 0);
	const int skip = first > t0 ? (first - t0) & ~15 : 0; // tokens, of whole tiles
	const int tokens = (last - t0 < TM_SPLIT ? last - t0 : TM_SPLIT) - skip;
	s += skip;
	split_kv x;
	find_tiles(a, t0 + skip, tokens, first, &x);
	find_next(a, split, &x);
	qk_kernels[a->kv_type][x.parts - 1](rows, q, hd, &x, s);
	for (int r = 0; r < rows; r++) {
		int from = row_first(a, r) - t0 - skip, limit = row_limit(a, r, t0) - skip;
		if (from >= limit) limit = 0;
		if (from < 0 || limit == 0) from = 0;
		softmax_row(s + r * TM_SPLIT, from, limit, tokens, &m[r], &l[r]);
	}
	for (int r = 0; r < rows && a->kv_type == TM_KV_I8; r++) scale_weights(s + r * TM_SPLIT, &x);
	pv_kernels[a->kv_type](rows, s, hd, &x, o);
	const int lines = hd / x.parts / (a->kv_type == TM_KV_F32 ? 1 : a->kv_type == TM_KV_I8 ? 4 : 2);
	for (int i = x.tiles * x.parts; i < x.nexts; i++) fetch_lines(x.next[i], x.next_line, lines);
}

TM_FN float *out_row(const tm_attn *a, int r)
{ return a->out + (size_t)(r / a->heads) * a->ldo + (size_t)(a->head0 + r % a->heads) * (size_t)a->head_dim; }

TM_FN void finish_row(const tm_attn *a, int r, const float *acc, float l)
{
	float *out = out_row(a, r);
	const v16 inv = v_set1(1.0f / l);
	for (int d = 0; d < a->head_dim; d += 16) v_store(out + d, v_mul(v_load(acc + d), inv));
}

TM_KERNEL void k_attend(const tm_attn *a)
{
	const int hd = a->head_dim, rows = a->queries * a->heads;
	float *q = a->scratch, *s = q + TM_ATT_ROWS * hd, *o = s + TM_ATT_ROWS * TM_SPLIT, *acc = o + TM_ATT_ROWS * hd;
	float *m = acc + TM_ATT_ROWS * hd, *l = m + TM_ATT_ROWS, *tm = l + TM_ATT_ROWS, *tl = tm + TM_ATT_ROWS;
	const v16 scale = v_set1(a->scale * 1.44269504f);
	const int begin = row_first(a, 0) / TM_SPLIT;
	if (a->split1 <= begin) return; // a piece that lies before the window
	for (int r = 0; r < rows; r++) {
		const float *src =
			a->q + (size_t)(r / a->heads) * a->ldq + (size_t)(a->head0 + r % a->heads) * (size_t)hd;
		for (int d = 0; d < hd; d += 16) v_store(q + r * hd + d, v_mul(v_load(src + d), scale));
	}
	for (int split = a->split0 > begin ? a->split0 : begin; split < a->split1; split++) {
		if (a->partial) {
			float *part = a->partial + (size_t)(split - a->split0) * tm_partial_floats(rows, hd);
			attend_split(a, q, rows, split, s, part, part + rows * hd, part + rows * (hd + 1));
		} else if (split == begin) {
			attend_split(a, q, rows, split, s, acc, tm, tl);
		} else {
			attend_split(a, q, rows, split, s, o, m, l);
			for (int r = 0; r < rows; r++) {
				if (!row_sees(a, r, split)) continue;
				if (split == row_first(a, r) / TM_SPLIT) {
					memcpy(acc + r * hd, o + r * hd, (size_t)hd * sizeof *o);
					tm[r] = m[r];
					tl[r] = l[r];
				} else {
					merge_row(acc + r * hd, &tm[r], &tl[r], o + r * hd, m[r], l[r], hd);
				}
			}
		}
	}
	if (a->partial) return;
	for (int r = 0; r < rows; r++) finish_row(a, r, acc + r * hd, tl[r]);
}

TM_KERNEL void k_merge(const tm_attn *a, int splits)
{
	const int hd = a->head_dim, rows = a->queries * a->heads;
	for (int r = 0; r < rows; r++) {
		const int begin = row_first(a, r) / TM_SPLIT;
		float *base = a->partial + (size_t)begin * tm_partial_floats(rows, hd);
		float *acc = base + r * hd, *tm = base + rows * hd + r, *tl = tm + rows;
		for (int split = begin + 1; split < splits; split++) {
			const float *part = a->partial + (size_t)split * tm_partial_floats(rows, hd);
			if (row_limit(a, r, split * TM_SPLIT) > 0)
				merge_row(
					acc, tm, tl, part + r * hd, part[rows * hd + r], part[rows * (hd + 1) + r], hd);
		}
		finish_row(a, r, acc, *tl);
	}
}
