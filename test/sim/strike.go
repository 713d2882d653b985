package sim

import (
	"slices"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// The clients and the faults of a Storm.

// live is how many requests have no end yet.
func (s *Storm) live() (n int) {
	for _, w := range s.Cluster.workers() {
		st := w.Core.Stats()
		n += st.Running + st.Waiting + st.Receiving
	}
	for _, x := range s.open {
		if !x.NoGen {
			n++
		}
	}
	return n
}

// send makes one request.
func (s *Storm) send() {
	rng := s.rng
	s.Log.Requests++
	s.next++
	p := s.prompt()
	g := 1 + rng.IntN(longest-len(p))
	g = min(g, 40)
	salt := oneOf(rng, "", "", "a")
	choices := min(oneOf(rng, 0, 0, 0, 1, 1, 2, 4), s.Ctx.cfg.MaxBatch, s.Gen.cfg.MaxBatch)
	if s.Ctx == s.Gen && rng.IntN(2) == 0 || rng.IntN(4) == 0 {
		r := &request.Request{
			ID: s.next, Prompt: p, MaxTokens: g, Sampling: request.DefaultSampling(), CacheSalt: salt, Choices: choices,
			Priority: float64(rng.IntN(3)) / 2,
		}
		if rng.IntN(6) == 0 {
			r.Deadline = s.Now + s.between(0, 2*time.Second)
		}
		s.plain = append(s.plain, s.Gen.Submit(s.Now, r, nil))
		return
	}
	x := &Session{
		ID: s.next, Prompt: p, MaxTokens: g, Salt: salt, N: choices, Sampling: request.DefaultSampling(),
		Emitted: rng.IntN(2) == 0, NoGen: rng.Float64() < s.Faults.Gone,
	}
	if x.GenFirst = rng.IntN(3) == 0; x.GenFirst {
		x.Emitted, x.NoGen, x.N, x.Alone = false, false, 1, rng.IntN(5) == 0
	}
	s.Start(x)
}

// prompt is a new one, or the answer to an earlier one goes on.
func (s *Storm) prompt() []int32 {
	rng := s.rng
	var out []int32
	if n := len(s.Sessions); n > 0 && rng.IntN(2) == 0 {
		x := s.Sessions[rng.IntN(n)]
		out = append(slices.Clone(x.Prompt), x.Tokens(0)...)
		out = out[:min(len(out), 60)]
	}
	for range 1 + rng.IntN(70-len(out)) {
		out = append(out, int32(rng.IntN(2)))
	}
	return out
}

// strike draws what happens beside the requests in this tick.
func (s *Storm) strike() error {
	f, rng := &s.Faults, s.rng
	hit := func(p float64, n *int) bool {
		if rng.Float64() >= p {
			return false
		}
		*n++
		return true
	}
	if hit(f.Cancel, &s.Log.Cancels) {
		s.cancelOne()
	}
	if hit(f.Abort, &s.Log.Aborts) {
		w := oneOf(rng, s.Ctx, s.Gen)
		w.Core.Abort(s.Now, transfer.ID(max(1, int(s.next)+2-rng.IntN(20))))
		w.flush()
	}
	if hit(f.Jump, &s.Log.Jumps) {
		s.Now += s.between(0, 4*time.Second)
	}
	if hit(f.Cut, &s.Log.Cuts) {
		s.Cut()
	}
	s.spell(hit(f.Slow, &s.Log.Slows))
	if hit(f.Disk, &s.Log.Stuck) {
		s.Net.Stuck = s.Now + s.between(time.Second, 15*time.Second)
		s.calm.Stuck = s.Net.Stuck
		s.at(s.Net.Stuck, func() {})
	}
	if hit(f.Reset, &s.Log.Resets) {
		w := oneOf(rng, s.Ctx, s.Gen) // whose step may run
		w.Core.ResetCache()
		w.flush()
	}
	if rng.Float64() < f.Kill {
		return s.kill(oneOf(rng, s.Ctx, s.Gen))
	}
	return nil
}

func (s *Storm) cancelOne() {
	recent := func(n int) int { return max(0, n-1-s.rng.IntN(min(n, 24))) }
	if n := len(s.plain); n > 0 && s.rng.IntN(3) == 0 {
		s.Gen.Core.Cancel(s.Now, s.plain[recent(n)].Req.ID)
		s.Gen.flush()
	} else if n := len(s.Sessions); n > 0 {
		s.Cancel(s.Sessions[recent(n)])
	}
}

// spell makes the network and the devices slow for a while.
func (s *Storm) spell(begins bool) {
	if begins {
		s.slow = 1 + s.rng.IntN(30)
		s.Net.MaxDelay, s.Net.BlockTime = 5*s.calm.MaxDelay, 20*s.calm.BlockTime
		s.Step = 200 * time.Millisecond
	} else if s.slow--; s.slow == 0 {
		s.Net, s.Step = s.calm, 10*time.Millisecond
	}
}

// kill ends a worker. Some clients whose gen leg breaks go on at the new one with
// what they have.
func (s *Storm) kill(w *Worker) error {
	s.Log.Kills++
	s.sum(w)
	var broken []*Session
	for _, x := range s.Sessions {
		if w == s.Gen && x.Gen != nil && x.Gen.Finish == request.Running && x.N <= 1 && !x.cancelled && s.rng.IntN(2) == 0 {
			broken = append(broken, x)
		}
	}
	if err := s.Kill(w); err != nil {
		return err
	}
	for _, x := range broken {
		if x.Before = x.Tokens(0); len(x.Before) == 0 || len(x.Before) == x.MaxTokens {
			x.Before = nil
			continue
		}
		s.Log.Resumed++
		s.next++
		r := *x.Gen.Req
		r.ID, r.Kind, r.TransferID, r.GenFirst, r.FirstEmitted, r.FirstTokens = genID(s.next), request.Full, 0, false, true, nil
		for _, t := range x.Before {
			r.FirstTokens = append(r.FirstTokens, request.Token{ID: t})
		}
		x.Gen = s.Gen.Submit(s.Now, &r, nil)
	}
	return nil
}
