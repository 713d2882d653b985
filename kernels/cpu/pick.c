#include "pick.h"

#include <float.h>
#include <math.h>
#include <string.h>

// Every filter keeps a prefix of one order, logit descending and then id ascending.
// A key packs both so that ascending keys are that order.
static uint64_t key_of(float logit, int id)
{
	const float plain = logit + 0.0f; // -0 becomes +0: they are equal logits
	uint32_t b;
	memcpy(&b, &plain, 4);
	if (!(b >> 31)) b = ~b & 0x7fffffffu;
	return (uint64_t)b << 32 | (uint32_t)id;
}

static float key_logit(uint64_t key)
{
	uint32_t b = (uint32_t)(key >> 32);
	if (!(b >> 31)) b = ~b & 0x7fffffffu;
	float f;
	memcpy(&f, &b, 4);
	return f;
}

// The kept tokens, in ascending order of their ids.
typedef struct {
	const tm_vec *vec;
	const float *x;     // their logits
	const int32_t *ids; // null: token i is at i
	int n;
	double top, inv; // largest logit, and one over the temperature
	const int32_t *tops; // of the row's chunks, while ids is null
	uint64_t *keys, *spare;
	double *w, *sums;
	float *own_x;
	int32_t *own_ids;
} kept;

static int id_at(const kept *s, int i) { return s->ids ? s->ids[i] : i; }

static int chunks_of(int n) { return (n + TM_PICK_CHUNK - 1) / TM_PICK_CHUNK; }

// The order of k_largest.
static int32_t ordered(float f)
{
	int32_t b;
	f += 0.0f;
	memcpy(&b, &f, 4);
	return b ^ (b >> 31 & 0x7fffffff);
}

static float from_ordered(int32_t o)
{
	o ^= o >> 31 & 0x7fffffff;
	float f;
	memcpy(&f, &o, 4);
	return f;
}

// Calls do for the tokens i with a logit of at least bound, chunks without one
// left out.
#define EACH_FROM(s, bound, do)                                                       \
	for (int c_ = 0; c_ < chunks_of((s)->n); c_++) {                              \
		if ((s)->tops && (s)->tops[c_] < ordered(bound)) continue;            \
		const int end_ = (c_ + 1) * TM_PICK_CHUNK;                            \
		for (int i = c_ * TM_PICK_CHUNK; i < (s)->n && i < end_; i++)         \
			if ((s)->x[i] >= (bound)) do;                                 \
	}

// Keeps the tokens up to and including key, with their weights if they have some.
static void cut(kept *s, uint64_t key, int weighed)
{
	const float floor = key_logit(key);
	const int last = (int)(uint32_t)key;
	int n = 0;
	EACH_FROM(s, floor, {
		const int id = id_at(s, i);
		if (s->x[i] == floor && id > last) continue;
		s->own_x[n] = s->x[i];
		if (weighed) s->w[n] = s->w[i];
		s->own_ids[n++] = id;
	})
	s->x = s->own_x;
	s->ids = s->own_ids;
	s->tops = NULL;
	s->n = n;
}

static int collect(const kept *s, float bound)
{
	int n = 0;
	EACH_FROM(s, bound, s->keys[n++] = key_of(s->x[i], id_at(s, i)))
	return n;
}

static uint64_t median(uint64_t a, uint64_t b, uint64_t c)
{
	const uint64_t lo = a < b ? a : b, hi = a < b ? b : a;
	return c < lo ? lo : c > hi ? hi : c;
}

// Puts the k smallest of n keys first, in any order. Keys are distinct.
static void select_keys(uint64_t *keys, int n, int k)
{
	for (int lo = 0, hi = n; k > lo && k < hi;) {
		const uint64_t pivot = median(keys[lo], keys[lo + (hi - lo) / 2], keys[hi - 1]);
		int i = lo, j = hi - 1;
		while (i <= j) {
			while (keys[i] < pivot) i++;
			while (keys[j] > pivot) j--;
			if (i > j) break;
			const uint64_t t = keys[i];
			keys[i++] = keys[j];
			keys[j--] = t;
		}
		if (k <= j + 1)
			hi = j + 1;
		else if (k >= i)
			lo = i;
		else
			return;
	}
}

// Sorts keys that are in ascending order of their ids: only logits are compared.
// The result is in either of the arrays.
static uint64_t *sort_keys(uint64_t *keys, uint64_t *spare, int n)
{
	if (n <= 64) {
		for (int i = 1; i < n; i++) {
			const uint64_t key = keys[i];
			int j = i;
			for (; j > 0 && keys[j - 1] > key; j--) keys[j] = keys[j - 1];
			keys[j] = key;
		}
		return keys;
	}
	for (int shift = 32; shift < 64; shift += 8) {
		int at[257] = {0};
		for (int i = 0; i < n; i++) at[(keys[i] >> shift & 255) + 1]++;
		for (int i = 0; i < 256; i++) at[i + 1] += at[i];
		for (int i = 0; i < n; i++) spare[at[keys[i] >> shift & 255]++] = keys[i];
		uint64_t *t = keys;
		keys = spare;
		spare = t;
	}
	return keys;
}

// Collects the k best tokens, first in keys and in any order, and returns how many
// there are: those with no probability do not count. The k-th largest of the
// chunks' largest logits is a bound that k tokens reach.
static int best(kept *s, int k)
{
	float bound = -INFINITY;
	const int chunks = chunks_of(s->n);
	if (s->tops && k <= chunks) {
		for (int c = 0; c < chunks; c++) s->keys[c] = key_of(from_ordered(s->tops[c]), c);
		select_keys(s->keys, chunks, k);
		uint64_t last = 0;
		for (int c = 0; c < k; c++) last = s->keys[c] > last ? s->keys[c] : last;
		bound = key_logit(last);
	}
	if (!(bound >= -FLT_MAX)) bound = -FLT_MAX;
	const int n = collect(s, bound);
	if (k < n) select_keys(s->keys, n, k);
	return k < n ? k : n;
}

static void top_k(kept *s, int k)
{
	if (k >= s->n || best(s, k) < k) return;
	uint64_t last = 0;
	for (int i = 0; i < k; i++) last = s->keys[i] > last ? s->keys[i] : last;
	cut(s, last, 0);
}

static double weight(const kept *s, float x)
{
	double w;
	s->vec->weigh(&w, &x, 1, s->top, s->inv);
	return w;
}

static void min_p(kept *s, double p, double temperature)
{
	// Logits clearly below the bound need no exp.
	const float bound = nextafterf((float)(s->top + temperature * (log(p) - 1e-6)), -INFINITY);
	uint64_t last = 0;
	EACH_FROM(s, bound, {
		const uint64_t key = key_of(s->x[i], id_at(s, i));
		if (key > last && weight(s, s->x[i]) >= p) last = key;
	})
	cut(s, last, 0);
}

// Weighs the kept tokens, unless they are weighed, and returns the sum; sums gets the
// running one behind each chunk.
static double add_up(kept *s, int weighed)
{
	double sum = 0;
	for (int from = 0, c = 0; from < s->n; from += TM_PICK_CHUNK, c++) {
		const int n = s->n - from < TM_PICK_CHUNK ? s->n - from : TM_PICK_CHUNK;
		if (!weighed) s->vec->weigh(s->w + from, s->x + from, n, s->top, s->inv);
		s->sums[c] = sum += s->vec->sum_weights(s->w + from, n);
	}
	return sum;
}

// Looks for the shortest prefix among the tokens from bound on whose weights reach
// target, and keeps it. Returns whether there is one.
static int cut_prefix(kept *s, float bound, double target)
{
	const int n = collect(s, bound);
	const uint64_t *keys = sort_keys(s->keys, s->spare, n);
	double sum = 0;
	for (int i = 0; i < n; i++) {
		sum += weight(s, key_logit(keys[i]));
		if (sum < target) continue;
		cut(s, keys[i], 1);
		return 1;
	}
	return 0;
}

// Keeps the shortest prefix whose weights reach p of the total. Bisection finds a
// bound that few more tokens than these reach; only they are sorted.
static void top_p(kept *s, double p, double total, double temperature)
{
	enum { FEW = 64, STEPS = 24 };
	const double target = p * total, enough = target * (1 + 1e-9);
	const float all = -FLT_MAX;
	// The tokens below weigh less than 1-p together, and the total is at least 1.
	double lo = s->top + temperature * (log((1 - p) / s->n) - 0.01), hi = s->top;
	if (!(lo > all)) lo = all;
	int below = s->n, above = 0;
	for (int i = 0; i < STEPS && below - above > FEW + above / 8; i++) {
		const double mid = lo + (hi - lo) / 2;
		int count;
		if (s->vec->mass(s->w, s->n, weight(s, (float)mid), &count) >= enough) {
			lo = mid;
			below = count;
		} else {
			hi = mid;
			above = count;
		}
	}
	if (!cut_prefix(s, nextafterf((float)lo, -INFINITY), target)) cut_prefix(s, all, target);
}

// The first token whose running sum exceeds target, or the last one with any weight
// if rounding leaves none.
static int draw(const kept *s, double target)
{
	const int chunks = chunks_of(s->n);
	int c = 0, end = s->n;
	while (c < chunks && !(s->sums[c] > target)) c++;
	if (c < chunks) {
		double sum = c > 0 ? s->sums[c - 1] : 0;
		if (end > (c + 1) * TM_PICK_CHUNK) end = (c + 1) * TM_PICK_CHUNK;
		for (int i = c * TM_PICK_CHUNK; i < end; i++)
			if ((sum += s->w[i]) > target) return i;
	}
	for (int i = end - 1; i > 0; i--)
		if (s->w[i] > 0) return i;
	return 0;
}

// Philox4x32-10.
static double uniform(uint64_t seed, uint64_t n, uint32_t stream)
{
	uint32_t c[4] = {(uint32_t)n, (uint32_t)(n >> 32), stream, 0};
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int i = 0; i < 10; i++) {
		const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
		c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
		c[3] = (uint32_t)a;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	return (double)((uint64_t)(c[0] >> 5) << 26 | c[1] >> 6) / 9007199254740992.0;
}

static int sampled(kept s, const tm_pick_rule *rule)
{
	s.inv = 1 / rule->temperature;
	if (rule->top_k > 0) top_k(&s, rule->top_k);
	if (rule->min_p > 0) min_p(&s, rule->min_p, rule->temperature);
	double total = add_up(&s, 0);
	if (rule->top_p < 1) {
		top_p(&s, rule->top_p, total, rule->temperature);
		total = add_up(&s, 1);
	}
	return id_at(&s, draw(&s, uniform(rule->seed, rule->index, rule->stream) * total));
}

// What is said of the chosen token, from the row as it was.
static void describe(kept *s, const tm_pick_rule *rule, tm_picked *out)
{
	s->inv = 1;
	out->sum = add_up(s, 0);
	out->rank = 1 + s->vec->count_before(s->x, s->n, out->logit, out->token);
	if (rule->logprobs == 0) return;
	out->tops = best(s, rule->logprobs < TM_PICK_TOP ? rule->logprobs : TM_PICK_TOP);
	// Insertion sorts whole keys, of any order of ids.
	const uint64_t *keys = sort_keys(s->keys, s->spare, out->tops);
	for (int i = 0; i < out->tops; i++) {
		out->id[i] = (int32_t)(uint32_t)keys[i];
		out->logits[i] = key_logit(keys[i]);
	}
}

static char *take(char **at, size_t bytes)
{
	char *p = *at;
	*at += (bytes + 63) / 64 * 64;
	return p;
}

// Lays the scratch out and returns its end.
static char *place(kept *s, int32_t **tops, char *at, int vocab)
{
	const size_t n = (size_t)vocab, chunks = (size_t)chunks_of(vocab);
	s->keys = (uint64_t *)(void *)take(&at, n * 8);
	s->spare = (uint64_t *)(void *)take(&at, n * 8);
	s->w = (double *)(void *)take(&at, n * 8);
	s->sums = (double *)(void *)take(&at, chunks * 8);
	s->own_x = (float *)(void *)take(&at, n * 4);
	s->own_ids = (int32_t *)(void *)take(&at, n * 4);
	*tops = (int32_t *)(void *)take(&at, chunks * 4);
	return at;
}

size_t tm_pick_bytes(int vocab)
{
	kept s;
	int32_t *tops;
	char base[64];
	return (size_t)(place(&s, &tops, base, vocab) - base);
}

void tm_pick(const tm_vec *vec, const float *logits, int vocab, const tm_pick_rule *rule, tm_picked *out, void *scratch)
{
	kept s = {.vec = vec, .x = logits, .n = vocab, .inv = 1};
	int32_t *tops;
	place(&s, &tops, scratch, vocab);
	memset(out, 0, sizeof *out);
	const int32_t magnitude = vec->largest(logits, vocab, tops);
	int top = 0;
	for (int c = 1; c < chunks_of(vocab); c++)
		if (tops[c] > tops[top]) top = c;
	out->top = from_ordered(tops[top]);
	if (magnitude > 0x7f800000 || out->top == INFINITY || out->top == -INFINITY) {
		out->state = magnitude <= 0x7f800000 && out->top == -INFINITY ? TM_PICK_EMPTY : TM_PICK_BAD;
		return;
	}
	s.top = (double)out->top;
	s.tops = tops;
	if (rule->temperature < 1e-5)
		for (out->token = top * TM_PICK_CHUNK; logits[out->token] != out->top;) out->token++;
	else
		out->token = sampled(s, rule);
	out->logit = logits[out->token];
	if (rule->logprobs >= 0) describe(&s, rule, out);
}

// Powers of two between 1 and 2, to the bit those of engine/sampler.
const double tm_pick_exp2[64] = {
	1.0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0, 0x1.0874518759bc8p+0,
	0x1.0b5586cf9890fp+0, 0x1.0e3ec32d3d1a2p+0, 0x1.11301d0125b51p+0, 0x1.1429aaea92de0p+0,
	0x1.172b83c7d517bp+0, 0x1.1a35beb6fcb75p+0, 0x1.1d4873168b9aap+0, 0x1.2063b88628cd6p+0,
	0x1.2387a6e756238p+0, 0x1.26b4565e27cddp+0, 0x1.29e9df51fdee1p+0, 0x1.2d285a6e4030bp+0,
	0x1.306fe0a31b715p+0, 0x1.33c08b26416ffp+0, 0x1.371a7373aa9cbp+0, 0x1.3a7db34e59ff7p+0,
	0x1.3dea64c123422p+0, 0x1.4160a21f72e2ap+0, 0x1.44e086061892dp+0, 0x1.486a2b5c13cd0p+0,
	0x1.4bfdad5362a27p+0, 0x1.4f9b2769d2ca7p+0, 0x1.5342b569d4f82p+0, 0x1.56f4736b527dap+0,
	0x1.5ab07dd485429p+0, 0x1.5e76f15ad2148p+0, 0x1.6247eb03a5584p+0, 0x1.6623882552224p+0,
	0x1.6a09e667f3bccp+0, 0x1.6dfb23c651a2fp+0, 0x1.71f75e8ec5f74p+0, 0x1.75feb564267c9p+0,
	0x1.7a11473eb0187p+0, 0x1.7e2f336cf4e62p+0, 0x1.82589994cce12p+0, 0x1.868d99b4492ecp+0,
	0x1.8ace5422aa0dcp+0, 0x1.8f1ae99157736p+0, 0x1.93737b0cdc5e5p+0, 0x1.97d829fde4e50p+0,
	0x1.9c49182a3f090p+0, 0x1.a0c667b5de565p+0, 0x1.a5503b23e255cp+0, 0x1.a9e6b5579fdbfp+0,
	0x1.ae89f995ad3aep+0, 0x1.b33a2b84f15fbp+0, 0x1.b7f76f2fb5e47p+0, 0x1.bcc1e904bc1d2p+0,
	0x1.c199bdd85529cp+0, 0x1.c67f12e57d14bp+0, 0x1.cb720dcef9069p+0, 0x1.d072d4a07897cp+0,
	0x1.d5818dcfba487p+0, 0x1.da9e603db3286p+0, 0x1.dfc97337b9b5fp+0, 0x1.e502ee78b3ff6p+0,
	0x1.ea4afa2a490dap+0, 0x1.efa1bee615a27p+0, 0x1.f50765b6e4540p+0, 0x1.fa7c1819e90d8p+0,
};
