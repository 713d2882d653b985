package sampler

import (
	"math"
	"slices"

	"tandem/engine/request"
)

// addLogprobs fills Logprob, Rank and Top of tok from the penalised, unscaled
// logits. Tokens that are banned have no place in Top, so it may be shorter
// than asked.
func (s *State) addLogprobs(tok *request.Token, logits []float32, top float32) {
	norm := logNorm(logits, top)
	own := order(logits[tok.ID], int(tok.ID))
	tok.Logprob = float64(logits[tok.ID]) - norm
	tok.Rank = 1 + countBefore(logits, own)
	if s.params.Logprobs == 0 {
		return
	}
	s.heap = largest(s.heap[:0], logits, s.params.Logprobs)
	slices.Sort(s.heap)
	tok.Top = make([]request.TopLogprob, len(s.heap))
	for i, key := range s.heap {
		l, id := unorder(key)
		tok.Top[i] = request.TopLogprob{ID: int32(id), Logprob: float64(l) - norm}
	}
}

// logNorm returns the logarithm of the sum of exp over a row.
func logNorm(logits []float32, top float32) float64 {
	r := row{logits: logits, top: float64(top), temp: 1, floor: -math.MaxFloat32, lastID: len(logits)}
	return float64(top) + math.Log(r.accumulate(nil))
}

// countBefore counts the logits that come before key.
func countBefore(logits []float32, key uint64) int {
	own, ownID := unorder(key)
	n := 0
	for id, l := range logits {
		if l > own || l == own && id < ownID {
			n++
		}
	}
	return n
}
