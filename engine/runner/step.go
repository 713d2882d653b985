package runner

import (
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/sampler"
)

// sampling keeps the sampler state of every request that has sampled here.
type sampling struct {
	vocab int
	of    map[request.ID]*sampleState
	out   []executor.Sampled // one per row of the running batch, reused
}

// sampleState is one request's sampler and the output it has seen.
type sampleState struct {
	state  *sampler.State
	output []int32
}

func (s *sampling) init(vocab int) {
	s.vocab = vocab
	s.of = make(map[request.ID]*sampleState)
}

func (s *sampling) drop(id request.ID) { delete(s.of, id) }

// get returns the state of r, made when first asked for. Tokens that a ctx
// worker sampled count as output.
func (s *sampling) get(r *request.Request) *sampleState {
	if st, ok := s.of[r.ID]; ok {
		return st
	}
	st := &sampleState{state: sampler.New(&r.Sampling, r.Prompt)}
	for _, t := range r.FirstTokens {
		st.output = append(st.output, t.ID)
	}
	s.of[r.ID] = st
	return st
}

// sample draws a token for each row that wants one; logits holds those rows in
// order. The result is valid until the next call.
func (s *sampling) sample(rows []executor.Row, logits []float32) []executor.Sampled {
	s.out = s.out[:0]
	for i := range rows {
		r := &rows[i]
		if !r.Sample {
			s.out = append(s.out, executor.Sampled{})
			continue
		}
		st := s.get(r.Request)
		tok, err := st.state.Sample(logits[:s.vocab], r.Index, st.output)
		logits = logits[s.vocab:]
		if err == nil {
			st.output = append(st.output, tok.ID)
		}
		s.out = append(s.out, executor.Sampled{Token: tok, Err: err})
	}
	return s.out
}
