package metamorphic

import (
	"reflect"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/test/tinymodel"
)

// TestScenario22Seeds asks the same with 32 seeds: alone, all in one batch, among
// 32 without a seed, paused twice each, and over two workers.
func TestScenario22Seeds(t *testing.T) {
	dir := t.TempDir()
	if err := tinymodel.WriteServable(dir, 22); err != nil {
		t.Fatal(err)
	}
	const n = 32
	l := load{requests: n, tokens: 160, prompt: 20, pool: 16384, tight: 256, vocab: 512}
	seeded := func() (out []*request.Request) {
		for i := range n {
			r := &request.Request{MaxTokens: l.tokens, Sampling: request.DefaultSampling(), DPRank: -1}
			for j := range l.prompt {
				r.Prompt = append(r.Prompt, int32(7*j+1))
			}
			p := &r.Sampling
			p.Temperature, p.Seeded, p.Seed, p.Logprobs, p.IgnoreEOS = 1, true, uint64(i), 1, true
			out = append(out, r)
		}
		return out
	}
	var want []answer
	for _, v := range []variant{
		{name: "alone", alone: true, ask: seeded},
		{name: "together", ask: seeded},
		{name: "among others", ask: func() []*request.Request {
			out := seeded()
			for _, r := range seeded() {
				r.Sampling.Seeded = false
				out = append(out, r)
			}
			return out
		}},
		{name: "paused", ask: seeded, change: squeeze, happened: func(st runner.Stats) bool { return st.Paused >= 2*n }},
		{name: "over two workers", ask: seeded, split: true},
	} {
		t.Run(v.name, func(t *testing.T) {
			var from *runner.Engine
			role := executor.Mixed
			if v.split {
				from, role = start(t, dir, executor.Ctx, &v, l), executor.Gen
			}
			to := start(t, dir, role, &v, l)
			for pass := 0; pass == 0 || pass < mostPasses && !v.shown(to); pass++ {
				got := v.run(t, from, to, l, int64(1+1000*pass))
				if want == nil {
					want = got
				}
				for i := range want {
					if !reflect.DeepEqual(got[i], want[i]) {
						t.Fatalf("seed %d: %+v\n\talone %+v", i, got[i], want[i])
					}
				}
			}
			if !v.shown(to) {
				t.Errorf("only %d pauses", to.Stats(time.Minute).Paused)
			}
		})
	}
	for i := range n {
		for j := range i {
			if reflect.DeepEqual(want[i], want[j]) {
				t.Errorf("the seeds %d and %d say the same", i, j)
			}
		}
	}
}
