// Bodies of the passes over a row of logits, for the level that includes this
// file. They are loops without a dependency between neighbours, which compilers
// turn into the level's vectors.

// PICK_ROUNDED keeps products and sums apart, as engine/sampler does.
#if defined(__clang__)
#define PICK_ROUNDED
#pragma STDC FP_CONTRACT OFF
#else
#define PICK_ROUNDED __attribute__((optimize("fp-contract=off")))
#endif

// Lanes of a sum of weights, see tm_vec.
#define PICK_LANES 8

TM_FN int32_t pick_bits(float f)
{
	int32_t i;
	memcpy(&i, &f, 4);
	return i;
}

TM_KERNEL int32_t k_largest(const float *x, int n, int32_t *tops)
{
	int32_t magnitude = 0;
	for (int from = 0; from < n; from += TM_PICK_CHUNK) {
		const int end = n - from < TM_PICK_CHUNK ? n - from : TM_PICK_CHUNK;
		int32_t top = INT32_MIN;
		for (int i = 0; i < end; i++) {
			const int32_t b = pick_bits(x[from + i] + 0.0f); // -0 becomes +0
			const int32_t ordered = b ^ (b >> 31 & 0x7fffffff);
			top = ordered > top ? ordered : top;
			const int32_t m = b & 0x7fffffff;
			magnitude = m > magnitude ? m : magnitude;
		}
		*tops++ = top;
	}
	return magnitude;
}

// exp of x <= 0 as engine/sampler has it: x = k*ln2/64 + r, a table of the powers
// of two between, and a polynomial in r.
TM_KERNEL PICK_ROUNDED void k_weigh(double *w, const float *x, int n, double top, double inv)
{
	for (int i = 0; i < n; i++) {
		const double v = ((double)x[i] - top) * inv, least = -708.0;
		const double c = v < least ? least : v;
		const double shifted = c * 0x1.71547652b82fep+6 + 0x1.8p52;
		uint64_t k, bits;
		memcpy(&k, &shifted, 8);
		k -= UINT64_C(0x4338000000000000);
		const double kf = shifted - 0x1.8p52;
		const double r = (c - kf * 0x1.62e42fefap-7) - kf * 0x1.cf79abc9e3b39p-46;
		const double r2 = r * r;
		const double p =
			r + r2 * (0.5 + r * (1.0 / 6 + r * (1.0 / 24 + r * (1.0 / 120))));
		const double t = tm_pick_exp2[k & 63], y = t + t * p;
		double e;
		memcpy(&bits, &y, 8);
		bits += (k & ~UINT64_C(63)) << 46;
		memcpy(&e, &bits, 8);
		w[i] = v < least ? 0.0 : e;
	}
}

TM_KERNEL double k_sum_weights(const double *w, int n)
{
	double s[PICK_LANES] = {0};
	int i = 0;
	for (; i + PICK_LANES <= n; i += PICK_LANES)
		for (int j = 0; j < PICK_LANES; j++) s[j] += w[i + j];
	for (int j = 0; i + j < n; j++) s[j] += w[i + j];
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

typedef double pick_f64 __attribute__((vector_size(64)));
typedef int64_t pick_i64 __attribute__((vector_size(64)));

TM_KERNEL double k_mass(const double *w, int n, double least, int *count)
{
	const pick_f64 bound = {least, least, least, least, least, least, least, least};
	pick_f64 sum = {0};
	pick_i64 kept = {0};
	int i = 0;
	for (; i + PICK_LANES <= n; i += PICK_LANES) {
		pick_f64 a;
		memcpy(&a, w + i, sizeof a);
		const pick_i64 in = a >= bound;
		kept -= in;
		sum += (pick_f64)((pick_i64)a & in);
	}
	int64_t all = 0;
	double total = 0;
	for (int j = 0; j < PICK_LANES; j++) {
		all += kept[j];
		total += sum[j];
	}
	for (; i < n; i++) {
		all += w[i] >= least;
		total += w[i] >= least ? w[i] : 0.0;
	}
	*count = (int)all;
	return total;
}

TM_KERNEL int k_count_before(const float *x, int n, float own, int id)
{
	int before = 0;
	for (int i = 0; i < n; i++) before += x[i] > own;
	for (int i = 0; i < id; i++) before += x[i] == own;
	return before;
}
