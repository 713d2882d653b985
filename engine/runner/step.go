package runner

import (
	"sync"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/sampler"
	"tandem/engine/tensor"
)

// sampling keeps the sampler state of every request that has sampled here.
type sampling struct {
	vocab int
	mu    sync.Mutex                    // of is dropped from while another goroutine samples
	of    map[request.ID][]*sampleState // by stream; nil = has not sampled
	out   []executor.Sampled            // one per row of the running batch, reused
	same  []float32                     // logits that several choices draw from
	rules []tensor.Pick                 // of the running batch, where the device picks
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

func (s *sampling) drop(id request.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, id)
}

// get returns the state of the choice r, made when first asked for. Tokens that a ctx
// worker sampled count as output.
func (s *sampling) get(r *request.Request) *sampleState {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, at := s.of[r.ID], int(r.Sampling.Stream)
	if at < len(all) && all[at] != nil {
		return all[at]
	}
	st := &sampleState{state: sampler.New(&r.Sampling, r.Prompt)}
	if r.Guide != nil {
		st.state.Guide(r.Guide)
	}
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
		s.out = append(s.out, s.drawAll(r, logits[:s.vocab]))
		logits = logits[s.vocab:]
	}
	return s.out
}

// drawAll picks the next token of every choice of a row.
func (s *sampling) drawAll(r *executor.Row, logits []float32) executor.Sampled {
	var forks []executor.Sampled
	for _, q := range r.Forks { // the sampler changes what it draws from
		s.same = append(s.same[:0], logits...)
		forks = append(forks, s.draw(q, s.same, r.Index))
	}
	one := s.draw(r.Request, logits, r.Index)
	one.Forks = forks
	return one
}

// pickable tells whether a device can choose the row's token: nothing but the rules
// of tensor.Pick applies, and one choice is drawn.
func pickable(row *executor.Row) bool {
	p := &row.Request.Sampling
	return len(row.Forks) == 0 && row.Request.Guide == nil && p.RepetitionPenalty == 1 && p.PresencePenalty == 0 && p.FrequencyPenalty == 0 &&
		len(p.LogitBias) == 0 && len(p.BadWords) == 0 && p.Allowed == nil && row.Index >= p.MinTokens
}

// picks are the rules of the rows that want a token. ok is false if the host draws
// them all.
func (s *sampling) picks(rows []executor.Row) (_ []tensor.Pick, ok bool) {
	s.rules = s.rules[:0]
	for i := range rows {
		row := &rows[i]
		if !row.Sample {
			continue
		}
		p := &row.Request.Sampling
		rule := tensor.Pick{
			Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: p.TopK, Seed: p.Seed, Index: uint64(row.Index), Stream: p.Stream,
			Logprobs: p.Logprobs,
		}
		if rule.Host = !pickable(row); !rule.Host {
			ok = true
		}
		s.rules = append(s.rules, rule)
	}
	return s.rules, ok
}

// take makes tokens of what the device picked, and draws the others from logits,
// which has their rows in order. The result is valid until the next call.
func (s *sampling) take(rows []executor.Row, picked []tensor.Picked, logits []float32) []executor.Sampled {
	s.out = s.out[:0]
	next := 0 // of picked
	for i := range rows {
		row := &rows[i]
		switch {
		case !row.Sample:
			s.out = append(s.out, executor.Sampled{})
			continue
		case s.rules[next].Host:
			s.out = append(s.out, s.drawAll(row, logits[:s.vocab]))
			logits = logits[s.vocab:]
		default:
			s.out = append(s.out, s.chosen(row, &picked[next]))
		}
		next++
	}
	return s.out
}

// chosen is a token that the device picked.
func (s *sampling) chosen(row *executor.Row, p *tensor.Picked) executor.Sampled {
	if p.State != tensor.PickedOne {
		return executor.Sampled{Err: sampler.BadLogits(p.State == tensor.PickedEmpty, row.Index)}
	}
	tok := request.Token{ID: p.Token, Logprob: p.Logprob, Rank: int(p.Rank)}
	if row.Request.Sampling.Logprobs > 0 {
		tok.Top = make([]request.TopLogprob, len(p.Top))
	}
	for i, t := range p.Top {
		tok.Top[i] = request.TopLogprob{ID: t.Token, Logprob: t.Logprob}
	}
	st := s.get(row.Request)
	st.output = append(st.output, tok.ID)
	return executor.Sampled{Token: tok}
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
