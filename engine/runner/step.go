package runner

import (
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/sampler"
)

// sampling keeps the sampler state of every request that has sampled here.
type sampling struct {
	vocab int
	of    map[request.ID][]*sampleState // by stream; nil = has not sampled
	out   []executor.Sampled            // one per row of the running batch, reused
	same  []float32                     // logits that several choices draw from
}

// sampleState is one request's sampler and the output it has seen.
type sampleState struct {
	state  *sampler.State
	output []int32
}

func (s *sampling) init(vocab int) {
	s.vocab = vocab
	s.of = make(map[request.ID][]*sampleState)
}

func (s *sampling) drop(id request.ID) { delete(s.of, id) }

// get returns the state of the choice r, made when first asked for. Tokens that a ctx
// worker sampled count as output.
func (s *sampling) get(r *request.Request) *sampleState {
	all, at := s.of[r.ID], int(r.Sampling.Stream)
	if at < len(all) && all[at] != nil {
		return all[at]
	}
	st := &sampleState{state: sampler.New(&r.Sampling, r.Prompt)}
	for _, t := range r.FirstTokens {
		st.output = append(st.output, t.ID)
	}
	for len(all) <= at {
		all = append(all, nil)
	}
	all[at] = st
	s.of[r.ID] = all
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
		var forks []executor.Sampled
		for _, q := range r.Forks { // the sampler changes what it draws from
			s.same = append(s.same[:0], logits[:s.vocab]...)
			forks = append(forks, s.draw(q, s.same, r.Index))
		}
		one := s.draw(r.Request, logits[:s.vocab], r.Index)
		one.Forks = forks
		s.out = append(s.out, one)
		logits = logits[s.vocab:]
	}
	return s.out
}

// draw picks the next token of one choice.
func (s *sampling) draw(r *request.Request, logits []float32, index int) executor.Sampled {
	st := s.get(r)
	tok, err := st.state.Sample(logits, index, st.output)
	if err == nil {
		st.output = append(st.output, tok.ID)
	}
	return executor.Sampled{Token: tok, Err: err}
}
