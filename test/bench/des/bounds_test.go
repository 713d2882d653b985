package des

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// brief are chats that are over soon.
func brief(seed uint64, live int) Config {
	cfg := chats(seed, live)
	cfg.Warmup, cfg.Measure = 300*time.Millisecond, 1200*time.Millisecond
	return cfg
}

// What a report calls the bound of a run is where it was made: by few slots on
// gen, by slow prefill, by a slow link, or by one slow rank.
func TestBoundsNameWhatIsShort(t *testing.T) {
	longest := func(r *Result) string {
		best := Stage{}
		for _, s := range r.Stages() {
			if s.Mean > best.Mean {
				best = s
			}
		}
		return best.Name
	}
	for want, set := range map[string]func(*Config){
		"room on gen": func(c *Config) { c.Gen.Core.MaxBatch, c.Gen.Core.MaxConcurrentRecv = 1, 1 },
		"prefill":     func(c *Config) { c.Ctx.Cost.CtxToken = 2e-4 },
		"hand-over":   func(c *Config) { c.Net.Bandwidth = 5e6 },
		"decoding":    func(c *Config) { c.Gen.Cost.Iteration = 0.1 },
	} {
		cfg := brief(1, 30)
		set(&cfg)
		_, r := run(t, cfg)
		if got := longest(r); got != want {
			t.Errorf("short of %s: %+v", want, r.Stages())
		}
		var text bytes.Buffer
		if err := r.PrintBounds(&text); err != nil || !strings.Contains(text.String(), want) || !strings.Contains(text.String(), "gen ranks: busy") {
			t.Errorf("%v: %s", err, text.String())
		}
	}
}

// The stages of a request sum to its latency, and ranks that wait for a slow one
// are in passes without being busy.
func TestStagesSumAndWaitingShows(t *testing.T) {
	cfg := brief(2, 30)
	cfg.Faults = []Fault{{Kind: SlowRank, Rank: 1, At: 0, Factor: 20}}
	_, r := run(t, cfg)
	sum, e2e := 0.0, 0.0
	for _, s := range r.Stages() {
		sum += s.Mean
	}
	for _, rec := range r.Good() {
		e2e += rec.E2E().Seconds() / float64(len(r.Good()))
	}
	if hops := 4 * cfg.Net.Hop.Seconds(); math.Abs(sum-e2e) > hops {
		t.Errorf("stages of %.4f s, latency %.4f s", sum, e2e)
	}
	if u := r.Usage(false); u.Busy <= 0 || u.Passing < 1.5*u.Busy || u.Passing > 1 || u.Pool <= 0 || u.Pool > 1 {
		t.Errorf("%+v", u)
	}
	cfg = brief(2, 20)
	cfg.Ctx, cfg.Gen = small(executor.Mixed, 1, 1), Group{}
	if _, r := run(t, cfg); r.Usage(true) != (Usage{}) || len(r.Stages()) != 3 {
		t.Errorf("%+v %+v", r.Usage(true), r.Stages())
	}
}

// What a hand-over says is heard while devices compute, by a rank alone and by ranks in lockstep: blocks of a
// prompt of 4096 tokens are gone long before the pass ends that began when they were there.
func TestHandOversAreHeardInPasses(t *testing.T) {
	for _, ranks := range []int{1, 4} {
		w := &workload.Workload{Name: "behind a long pass", Seed: 1, Requests: []workload.Request{
			{ID: "handed over", Arrival: time.Millisecond, Input: 4096, Output: 3},
			{ID: "long", Arrival: 100 * time.Millisecond, Input: 12000, Output: 3},
			{ID: "new", Arrival: 700 * time.Millisecond, Input: 64, Output: 3},
		}}
		cfg := brief(3, 0)
		cfg.Workload, cfg.Load, cfg.Warmup, cfg.Measure = w, schedule.Options{Mode: schedule.Fixed}, 0, 4*time.Second
		cfg.Ctx, cfg.Gen = small(executor.Ctx, 1, ranks), small(executor.Gen, 1, 1)
		for _, g := range []*Group{&cfg.Ctx, &cfg.Gen} {
			g.Core.MaxSeqLen, g.Core.MaxNumTokens = 16384, 16384
		}
		cfg.Ctx.Cost.CtxToken = 1e-4 // 0.41 s for the first prompt, then 1.2 s for the second
		s, r := run(t, cfg)
		if len(r.Good()) != 3 || r.Leaked > 0 {
			t.Fatalf("%d ranks: %+v, %d blocks lost", ranks, r.Records, r.Leaked)
		}
		of := map[string]Record{}
		for _, rec := range r.Good() {
			of[rec.ID] = rec
		}
		first := of["handed over"]
		if wait := first.Second - first.First; wait > 50*time.Millisecond || of["long"].First < first.Second+time.Second {
			t.Errorf("%d ranks: second token %v after the first, at %v; the long pass ends at %v", ranks, wait, first.Second, of["long"].First)
		}
		if of["new"].First < of["long"].First {
			t.Errorf("%d ranks: what came during a pass is answered within it: %+v", ranks, of["new"])
		}
		for _, k := range s.ctx[0].ranks {
			if err := k.core.Check(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Ranks that end while they hear lose nothing.
func TestHearingInPassesLosesNothing(t *testing.T) {
	cfg := brief(3, 20)
	cfg.Ctx.Cost.CtxToken = 1e-4
	cfg.Faults = []Fault{{Kind: Kill, Instance: 1, At: 700 * time.Millisecond, For: 100 * time.Millisecond}}
	if _, r := run(t, cfg); r.Leaked > 0 || len(r.Good()) < 50 {
		t.Errorf("%d requests, %d blocks lost", len(r.Good()), r.Leaked)
	}
}

// A run ends when it is told, between two seconds of its own time; asking changes nothing.
func TestUntil(t *testing.T) {
	stop := errors.New("enough")
	asked := 0
	for name, end := range map[string]func() error{"told": func() error { asked++; return stop }, "asked": func() error { return nil }, "alone": nil} {
		s, err := New(chats(2, 1))
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.Until(end)
		switch {
		case name == "told" && (!errors.Is(err, stop) || asked != 1):
			t.Errorf("it went on after %d times: %v", asked, err)
		case name != "told" && (err != nil || len(res.Good()) == 0):
			t.Errorf("%s: %v", name, err)
		}
	}
}
