// Names shared by every instruction-set level of the vector kernels: the
// register tiling limits and the inlining attribute. A level is one file,
// vec_<level>.c, which includes its vec_<level>.h (sixteen-lane operations
// under the names v_*) and then the kernel bodies vec_*_impl.h.
#ifndef TM_VEC_H
#define TM_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// tm_bf16 rounds to bfloat16, to nearest with ties to even; a NaN stays a NaN.
static inline uint16_t tm_bf16(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
	return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Tokens of a softmax split: splits stand at absolute multiples of it, so a
// row's bits do not depend on where a chunk or a thread's share begins.
#define TM_SPLIT 256

// Most (query, head) rows that one attention call works on.
#define TM_ATT_ROWS 24

// Logits whose largest one, and running sum of weights, is kept.
#define TM_PICK_CHUNK 256

// 2^(i/64).
extern const double tm_pick_exp2[64];

// Sums that a tree of leaves has open at most.
#define TM_TREE_DEPTH 16

// Elements of the cache. Bytes are signed and have a bfloat16 scale for each token and
// head: behind the bytes of a tile stand those of its tokens, [block_tokens].
enum { TM_KV_BF16, TM_KV_F32, TM_KV_I8 };

// tm_attn is one attention task: consecutive queries of one sequence against
// one KV head. The row r of the task is query r/heads and head head0+r%heads.
typedef struct tm_attn {
	const float *q;       // first query's row of the q buffer
	float *out;           // its row of the output buffer
	size_t ldq;           // floats between rows of q
	size_t ldo;           // floats between rows of out
	int head_dim;         // a multiple of 16
	int head0, heads;     // query heads of the task, all sharing the KV head
	int queries;          // queries * heads <= TM_ATT_ROWS
	int pos0;             // position of the first query
	int window;           // positions that a query sees, its own the last
	float scale;          // multiplies q.k
	int kv_type;          // of TM_KV_*
	int block_tokens;     // tokens of a block: 8, or a multiple of 16
	const char *k;        // keys of the layer and head in block 0
	size_t v_offset;      // bytes from a block's keys to its values
	size_t block_bytes;   // bytes from block to block
	const int32_t *pages; // block ids of the sequence
	int split0, split1;   // splits to do; all of them unless partial is set
	float *partial;       // null, or room for split1-split0 partial results
	float *scratch;       // tm_attn_scratch floats, 64-byte aligned
	// What the caller is likely to do next, or null: its first keys are fetched.
	const struct tm_attn *next;
} tm_attn;

// tm_attn_scratch returns the scratch floats of one attention call.
static inline size_t tm_attn_scratch(int head_dim)
{ return (size_t)TM_ATT_ROWS * (size_t)(3 * head_dim + TM_SPLIT + 4); }

// tm_partial_floats returns the floats of one split's partial result: rows of
// head_dim sums, then per row the largest score and the sum of weights.
static inline size_t tm_partial_floats(int rows, int head_dim) { return (size_t)rows * (size_t)(head_dim + 2); }

// tm_vec is the set of vector kernels of one instruction-set level.
typedef struct {
	// out[i] = x[i] * w[i] / sqrt(mean(x^2) + eps); out may be x.
	void (*rmsnorm)(float *out, const float *x, const float *w, int n, float eps);
	// x[i] += y[i]
	void (*add)(float *x, const float *y, int n);
	// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
	void (*silu_mul)(float *out, const float *gate, const float *up, int n);
	// The same with gelu, in its form with tanh.
	void (*gelu_mul)(float *out, const float *gate, const float *up, int n);
	// x[i] *= s
	void (*scale)(float *x, float s, int n);
	// out[i] = sum over the leaves, added to it with accumulate. Leaves are pushed
	// in order; joins[j] times behind leaf j, the last two sums become one. One
	// sum is left at the end, and there are never more than TM_TREE_DEPTH.
	void (*tree_sum)(float *out, const float *const *leaf, const uint8_t *joins, int leaves, int n, int accumulate);
	// Rotates the first dims values of a head by the angles given as cos and sin.
	void (*rope)(float *x, const float *cosv, const float *sinv, int dims, int adjacent);
	// Write one token's key or value of one head into its block; token is the
	// offset in the block.
	void (*store_k)(void *block, const float *x, int head_dim, int block_tokens, int token, int kv_type);
	void (*store_v)(void *block, const float *x, int head_dim, int block_tokens, int token, int kv_type);
	// Does a task: its output rows, or its partial results.
	void (*attend)(const tm_attn *a);
	// Merges the partial results of all splits of a task in ascending order.
	void (*merge)(const tm_attn *a, int splits);
	// Passes over a row of logits, for pick.c. Sets tops[c] to the largest of chunk
	// c, as an integer of the same order (zeros are equal), and returns the bits of
	// the greatest magnitude, not a number being more than infinity.
	int32_t (*largest)(const float *x, int n, int32_t *tops);
	// w[i] = exp((x[i] - top) * inv), nothing below exp(-708).
	void (*weigh)(double *w, const float *x, int n, double top, double inv);
	// The sum of w[i], in 8 sums of every 8th, added pairwise, halves first.
	double (*sum_weights)(const double *w, int n);
	// The sum of the w[i] >= least, in any order, and how many they are.
	double (*mass)(const double *w, int n, double least, int *count);
	// How many are more than own, or equal and before id.
	int (*count_before)(const float *x, int n, float own, int id);
} tm_vec;

// tm_vec_for returns the kernels of a level of isa.h; levels that this build
// lacks give the portable ones.
const tm_vec *tm_vec_for(int isa);

extern const tm_vec tm_vec_portable;
#if defined(__x86_64__)
extern const tm_vec tm_vec_avx2, tm_vec_avx512;
#endif

#endif
