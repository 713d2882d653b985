package executor

import (
	"slices"

	"tandem/engine/adprouter"
	"tandem/engine/request"
)

// Several choices of one request are one prefill and as many sequences. The
// first choice prefills or pulls for all; the others wait, in Fork, without
// blocks. When the prompt is computed they share its full blocks and copy the
// beginning of the next one before their first row, and from then on each is a
// sequence like any other: it is paused, fails and ends on its own.

// family joins the sequences of one request.
type family struct {
	req     *request.Request // as it was submitted
	members []*sequence      // by choice
	left    int              // not retired
}

// choices yields the sequences of a request to fn, given any of them.
func (s *sequence) choices(fn func(*sequence)) {
	if s.fam == nil {
		fn(s)
		return
	}
	for _, q := range s.fam.members {
		fn(q)
	}
}

// checkChoices refuses what a request of several choices cannot be.
func (c *Core) checkChoices(r *request.Request) *request.Error {
	n := r.Answers()
	if r.Choices < 0 {
		return request.Invalid("n", "%d choices are negative", r.Choices)
	}
	if n == 1 {
		return nil
	}
	switch {
	case r.GenFirst:
		return request.Invalid("n", "%d choices need the schedule_style context_first", n)
	case r.Kind == request.Full && len(r.FirstTokens) > 0:
		return request.Invalid("n", "a request that goes on with tokens of another worker has one choice, not %d", n)
	case r.Kind == request.GenerationOnly && len(r.FirstTokens) != n:
		return request.Invalid("disaggregated_params.first_gen_tokens", "%d first tokens for %d choices", len(r.FirstTokens), n)
	case r.Text != nil && len(r.ForkTexts) != n-1:
		return request.Errorf(request.Internal, "%d texts for the %d choices after the first", len(r.ForkTexts), n-1)
	}
	return adprouter.CheckWeight(n, c.cfg.MaxBatch)
}

// ofChoice returns the request as choice i alone sees it.
func ofChoice(r *request.Request, i int) *request.Request {
	q := *r
	q.Sampling.Stream += uint32(i)
	if i > 0 && r.Text != nil {
		q.Text = r.ForkTexts[i-1]
	}
	if r.Kind == request.GenerationOnly {
		q.FirstTokens = r.FirstTokens[i : i+1]
	}
	return &q
}

// addForks gives s, the first choice of r, the others.
func (c *Core) addForks(s *sequence, r *request.Request) {
	n := r.Answers()
	s.fam = &family{req: r, members: []*sequence{s}, left: n}
	for i := 1; i < n; i++ {
		q := c.sequenceOf(ofChoice(r, i))
		q.fam, q.choice, q.head = s.fam, i, s
		s.fam.members = append(s.fam.members, q)
		s.forks = append(s.forks, q)
		c.enter(q, request.Fork)
	}
	s.Forks, s.Complete = n-1, c.together(r, n)
}

// together returns the blocks that n choices of a request need until their end.
func (c *Core) together(r *request.Request, n int) int {
	one := c.completion(r)
	if r.Kind == request.ContextOnly {
		return one // the others are decoded elsewhere
	}
	full := len(r.Prompt) / c.cfg.BlockTokens
	return full + n*(one-full)
}

// needs returns the blocks without which a request could never end.
func (c *Core) needs(r *request.Request) int {
	if c.cfg.Policy.Pauses() {
		return c.completion(r) // its choices run one after the other if they have to
	}
	return c.together(r, r.Answers())
}

// forkRequests returns what the choices that wait for s draw by.
func (s *sequence) forkRequests() []*request.Request {
	if len(s.forks) == 0 || s.req.Kind == request.GenerationOnly {
		return nil // they have their first tokens
	}
	out := make([]*request.Request, len(s.forks))
	for i, q := range s.forks {
		out[i] = q.req
	}
	return out
}

// forkOff starts the choices that waited for the prompt of s. drawn are their
// first tokens, unless they came with the request.
func (c *Core) forkOff(s *sequence, drawn []Sampled) {
	forks := s.forks
	s.forks, s.Forks, s.Complete = nil, 0, c.completion(s.req)
	for i, q := range forks {
		if q.State != request.Fork {
			continue
		}
		q.times, q.cached, q.admitted = s.times, s.cached, true
		q.reserve()
		if s.req.Kind != request.GenerationOnly {
			c.sampled(q, drawn[i])
			continue
		}
		c.split(q, request.GenReady)
		c.inject(q)
	}
}

// split gives a choice its blocks and lets it run in state to. Without room, or
// if the blocks that it would share are gone, it waits as a request that was paused.
func (c *Core) split(q *sequence, to request.State) {
	s, b := q.head, c.cfg.BlockTokens
	q.head = nil
	full, part := q.prompt/b, q.prompt%b
	if s.State == request.Paused || part > 0 && c.kv.Free() == 0 {
		c.stats.Paused++
		c.enter(q, request.Paused)
		c.sch.Enqueue(&q.Seq)
		return
	}
	q.Table = append(q.Table, s.Table[:full]...)
	c.kv.Share(q.Table)
	if part > 0 {
		q.Table, _ = c.kv.Take(q.Table, 1)
		q.source, q.part = s.Table[full], part
		c.kv.BeginCopy(q.source)
	}
	q.hashes = append(q.hashes, s.hashes[:min(full, len(s.hashes))]...)
	q.settle(q.prompt)
	q.committed, q.private = full, s.private
	c.enter(q, to)
	c.sch.Received(&q.Seq)
}

// copied gives up the copy that s waits for.
func (c *Core) copied(s *sequence) {
	if s.part > 0 {
		c.kv.EndCopy(s.source)
		s.part = 0
	}
}

// leave settles the choices that still wait for the prompt when s, which was to
// compute it, has ended: they end with it, or the next one takes its place.
func (c *Core) leave(s *sequence, out *Output) {
	forks := s.forks
	s.forks, s.Forks = nil, 0
	for i, q := range forks {
		if q.State != request.Fork {
			continue
		}
		if out.Finish == request.FinishError || out.Finish == request.FinishCancelled {
			c.finish(q, Output{Finish: out.Finish, Err: out.Err})
			continue
		}
		q.head, q.forks = nil, slices.Clone(forks[i+1:])
		for _, k := range q.forks {
			k.head = q
		}
		q.Forks, q.Complete = len(q.forks), c.together(q.req, 1+len(q.forks))
		if c.enter(q, request.Waiting) {
			c.sch.Enqueue(&q.Seq)
			c.inject(q)
		}
		return
	}
}

// counts reports whether s is the one that stands for the request in counts: the
// first that is not retired.
func (f *family) counts(s *sequence) bool {
	for _, q := range f.members {
		if q.State != request.Retired {
			return q == s
		}
	}
	return false
}
