// Chooses tokens from logits by the rules of engine/sampler, with its arithmetic
// in its order, so that both choose the same token and say the same of it.
#ifndef TM_PICK_H
#define TM_PICK_H

#include <stddef.h>
#include <stdint.h>

#include "vec.h"

// Most alternatives of a pick.
enum { TM_PICK_TOP = 20 };

// tm_pick_rule is tensor.Pick: see there for the fields. A row of the host's is
// left alone.
typedef struct {
	double temperature, top_p, min_p;
	uint64_t seed, index;
	uint32_t stream;
	int32_t host, top_k, logprobs;
} tm_pick_rule;

enum { TM_PICKED, TM_PICK_BAD, TM_PICK_EMPTY };

// tm_picked is a choice. With rule.logprobs >= 0 sum is that of exp(logit - top)
// over the row, rank the token's place from 1 on, and the first tops of ids and
// logits are the most likely tokens, best first.
typedef struct {
	double sum;
	int32_t token, state, rank, tops;
	float top, logit; // the largest logit, and the token's
	int32_t id[TM_PICK_TOP];
	float logits[TM_PICK_TOP];
} tm_picked;

// tm_pick_bytes returns the scratch that a row of that many logits needs,
// 64-byte aligned.
size_t tm_pick_bytes(int vocab);

// tm_pick chooses from one row.
void tm_pick(const tm_vec *vec, const float *logits, int vocab, const tm_pick_rule *rule, tm_picked *out, void *scratch);

#endif
