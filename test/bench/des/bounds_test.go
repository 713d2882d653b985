package des

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
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

// Hand-overs whose messages are heard while devices compute take less, by what
// passes of ctx workers last, and lose nothing.
func TestMessagesHeardInPasses(t *testing.T) {
	handOver := func(heard bool) float64 {
		cfg := brief(3, 20)
		cfg.Ctx.Cost.CtxToken, cfg.HeardInPasses = 1e-4, heard
		cfg.Faults = []Fault{{Kind: Kill, Instance: 1, At: 700 * time.Millisecond, For: 100 * time.Millisecond}}
		_, r := run(t, cfg)
		if r.Leaked > 0 || len(r.Good()) < 50 {
			t.Errorf("heard %v: %d requests, %d blocks lost", heard, len(r.Good()), r.Leaked)
		}
		return r.Stages()[3].Mean
	}
	if between, within := handOver(false), handOver(true); within > between/2 {
		t.Errorf("hand-overs take %.4f s, heard at once %.4f s", between, within)
	}
}
