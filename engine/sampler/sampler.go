package sampler

import (
	"math"

	"tandem/engine/request"
)

// greedyBelow is the temperature under which a request is greedy.
const greedyBelow = 1e-5

// State is the sampling state of one request. It is owned by one goroutine at a
// time; different States may be used at once.
//
// Invariant: tracked penalties count exactly the prompt and the first seen
// tokens of the output.
type State struct {
	params *request.Sampling
	prompt []int32
	greedy bool
	counts counts
	sums   []float64 // running weight at the end of each chunk of a draw
	heap   []uint64  // scratch for small selections
	guide  guide
}

// New returns the state of a request that has no output yet. Both arguments are
// kept and must not change. params must have passed Validate.
func New(params *request.Sampling, prompt []int32) *State {
	s := &State{params: params, prompt: prompt, greedy: params.Temperature < greedyBelow}
	if params.RepetitionPenalty != 1 || params.PresencePenalty != 0 || params.FrequencyPenalty != 0 {
		s.counts.start(prompt)
	}
	return s
}

// Accept counts token as the next output token. Calling it is optional: Sample
// catches up with the output it is given.
func (s *State) Accept(token int32) { s.counts.add(token) }

// Sample picks output token number index (0-based) from logits, one per
// vocabulary entry. output holds the tokens before it. logits is changed in
// place up to the point where log-probabilities are taken. Errors are BadLogits,
// a NaN or +Inf or nothing left to choose from, and with a Guide GrammarDeadEnd,
// InvalidGrammar and Internal.
func (s *State) Sample(logits []float32, index int, output []int32) (request.Token, *request.Error) {
	s.counts.sync(s.prompt, output)
	if err := s.follow(logits, output); err != nil {
		return request.Token{}, err
	}
	s.ban(logits, index, output)
	s.shape(logits)

	id, top := argmax(logits)
	if !(top > float32(math.Inf(-1)) && top < float32(math.Inf(1))) {
		if s.guide.grammar != nil && math.IsInf(float64(top), -1) {
			return request.Token{}, deadEnd(index)
		}
		return request.Token{}, BadLogits(math.IsInf(float64(top), -1), index)
	}
	if !s.greedy {
		id = s.draw(logits, top, index)
	}
	tok := request.Token{ID: int32(id)}
	if s.params.Logprobs >= 0 {
		s.addLogprobs(&tok, logits, top)
	}
	return tok, nil
}

// BadLogits is the error of output token number index when there is nothing to
// choose from: every logit is -Inf, or else one is NaN or +Inf.
func BadLogits(empty bool, index int) *request.Error {
	what := "NaN or infinite logits"
	if empty {
		what = "no token is allowed: every logit is -Inf"
	}
	return request.Errorf(request.BadLogits, "output token %d: %s", index, what)
}

// argmax returns the lowest index of the largest logit, and the logit. A NaN
// anywhere makes the logit NaN; an empty row gives -Inf.
func argmax(logits []float32) (int, float32) {
	at, top := 0, float32(math.Inf(-1))
	for i, v := range logits {
		if v > top {
			at, top = i, v
		} else if v != v {
			return i, v
		}
	}
	return at, top
}
