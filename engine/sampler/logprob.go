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
	r := row{x: logits, top: float64(top), inv: 1}
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

// Score tells the log-probability of a token that is known already, with top
// alternatives, by logits as the model gave them: no rule of a request applies to
// its prompt. What cannot be said in a number is at least -9999.
func Score(logits []float32, token int32, top int) request.Token {
	_, peak := argmax(logits)
	norm := logNorm(logits, peak)
	said := func(l float32) float64 {
		if lp := float64(l) - norm; lp > -9999 {
			return lp
		}
		return -9999 // also of a NaN
	}
	tok := request.Token{ID: token, Logprob: said(logits[token]), Rank: 1 + countBefore(logits, order(logits[token], int(token)))}
	if top == 0 {
		return tok
	}
	keys := largest(nil, logits, top)
	slices.Sort(keys)
	for _, key := range keys {
		l, id := unorder(key)
		tok.Top = append(tok.Top, request.TopLogprob{ID: int32(id), Logprob: said(l)})
	}
	return tok
}
