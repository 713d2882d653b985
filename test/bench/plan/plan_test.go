package plan

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/transfer"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/profile"
	"tandem/test/bench/workload"
)

func spec(role executor.Role, gpus int) Spec {
	core := executor.DefaultConfig()
	core.Role, core.Namespace, core.Vocab, core.EventBuffer, core.Blocks, core.MaxSeqLen = role, "m", des.Vocab, 0, 4000, 4096
	core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 64, DType: "F16", BlockTokens: core.BlockTokens}
	return Spec{GPUs: gpus, Group: des.Group{
		Instances: 1, Ranks: 1, Core: core, ADP: adprouter.DefaultSettings(), Router: router.Config{Type: router.KindLoad},
		Cost: profile.Coefficients{Iteration: 0.005, CtxToken: 0.0002, GenRequest: 0.0002},
	}}
}

// A ctx instance of 0.2 ms a token takes less than five prompts of a thousand
// tokens a second; a gen instance with more in flight does more, each slower; what
// whole instances give is no more than what parts of them would.
func TestMake(t *testing.T) {
	q := Question{
		Input: workload.Spread(1000, 0.2), Output: workload.Spread(60, 0.2), TTFT: time.Second, Ladder: []int{2, 16}, Budget: 12,
		Net: des.Net{Hop: time.Millisecond, Setup: time.Millisecond, Bandwidth: 1e10, RankBand: 1e10}, Seed: 1, Measure: 8 * time.Second,
	}
	ctx, gen := spec(executor.Ctx, 1), spec(executor.Gen, 2)
	a, err := Make(q, ctx, gen)
	if err != nil {
		t.Fatal(err)
	}
	if a.CtxRate < 2 || a.CtxRate > 5 || a.CtxOpen < 1 {
		t.Errorf("%+v", a)
	}
	few, many := a.Points[0], a.Points[1]
	if few.UserTPS < 150 || few.UserTPS > 200 || many.UserTPS >= few.UserTPS || many.GenRate <= few.GenRate {
		t.Errorf("%+v", a.Points)
	}
	for _, p := range a.Points {
		if p.Ctx < 1 || p.Gen < 1 || p.Ctx+2*p.Gen > q.Budget || p.Whole > p.Ideal*1.0001 {
			t.Errorf("%+v", p)
		}
		m, err := Check(q, ctx, gen, a, p, p.Keeps)
		if err != nil || m.TPSPerGPU <= 0 || m.TPSPerGPU > 1.1*p.Whole || m.UserTPS > 1.2*p.UserTPS || !p.Keeps(&m) || m.TTFTp95 > q.TTFT.Seconds() {
			t.Errorf("%+v of %+v, %v", m, p, err)
		}
	}
	if m, err := Check(q, ctx, gen, a, few, func(*Measured) bool { return false }); err != nil || m.UserTPS <= 0 {
		t.Errorf("what nothing keeps: %+v, %v", m, err)
	}
	if m, err := Mixed(q, spec(executor.Mixed, 2), 1, 4); err != nil || m.UserTPS <= 0 || m.UserTPS > few.UserTPS {
		t.Errorf("%+v, %v", m, err)
	}
	told, enough := 0, errors.New("enough")
	q.Progress = func(string) { told++ }
	q.Stop = func() error {
		if told > 1 {
			return enough
		}
		return nil
	}
	if _, err := Make(q, ctx, gen); !errors.Is(err, enough) || told != 2 {
		t.Errorf("it goes on after %d measurements: %v", told, err)
	}
	q.Stop = nil
	long := q
	long.Output = workload.Fixed(100_000)
	if _, err := Make(long, ctx, gen); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("answers that take longer than is measured: %v", err)
	}
	q.TTFT = time.Millisecond
	if _, err := Make(q, ctx, gen); !errors.Is(err, ErrNoRate) {
		t.Errorf("a limit that nothing keeps: %v", err)
	}
}

// The numbers found are the best of all that fit.
func TestWholeNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget, c, g := rapid.IntRange(1, 24).Draw(t, "budget"), rapid.IntRange(1, 8).Draw(t, "ctx"), rapid.IntRange(1, 8).Draw(t, "gen")
		ctxRate, genRate := rapid.Float64Range(0.1, 10).Draw(t, "ctx rate"), rapid.Float64Range(0.1, 10).Draw(t, "gen rate")
		x, y, best := whole(budget, c, g, ctxRate, genRate, 100)
		if c+g > budget {
			if x != 0 || best != 0 {
				t.Fatalf("%d and %d in %d", x, y, budget)
			}
			return
		}
		if x*c+y*g > budget {
			t.Fatalf("%d and %d are more than %d", x, y, budget)
		}
		for i := 1; i*c+g <= budget; i++ {
			for k := 1; i*c+k*g <= budget; k++ {
				if each := min(float64(i)*ctxRate, float64(k)*genRate) * 100 / float64(i*c+k*g); each > best*1.002 {
					t.Fatalf("%d and %d give %v, %d and %d only %v", i, k, each, x, y, best)
				}
			}
		}
	})
}

func TestCapacity(t *testing.T) {
	for _, limit := range []float64{0.01, 0.7, 1, 3.3, 900} {
		got, err := Capacity(1, func(rate float64) (bool, error) { return rate <= limit, nil })
		if err != nil || got > limit || got < limit/1.05 {
			t.Errorf("%v: %v, %v", limit, got, err)
		}
	}
	if _, err := Capacity(1, func(float64) (bool, error) { return false, nil }); !errors.Is(err, ErrNoRate) {
		t.Error(err)
	}
	broken := errors.New("broken")
	if _, err := Capacity(1, func(float64) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}
