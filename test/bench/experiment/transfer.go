package experiment

import (
	"fmt"
	"time"

	"tandem/engine/executor"
	"tandem/test/bench/des"
	"tandem/test/bench/plan"
	"tandem/test/bench/profile"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// light is an instance with a model of 8 thousand million parameters.
func light(role executor.Role) des.Group {
	g := dense(role, 1, 8)
	g.Core.Layout.Layers, g.Core.MaxNumTokens = 32, 8192
	g.Cost = profile.Coefficients{Iteration: 0.005, CtxToken: 0.00003, GenRequest: 0.00002, GenContext: 1e-9}
	return g
}

func layered() *Experiment {
	lengths := []int{256, 1024, 4096, 8192}
	name := func(n int, on bool) string {
		if on {
			return fmt.Sprintf("%d by layers", n)
		}
		return fmt.Sprintf("%d at the end", n)
	}
	config := func(o Options, n int, on bool) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			cfg := des.Config{
				Seed: seed, Ctx: light(executor.Ctx), Gen: light(executor.Gen), Net: network(), Frontends: 1,
				Workload: workload.Random(workload.RandomOptions{Requests: 2000, Input: workload.Spread(float64(n), 0.05), Output: workload.Uniform(600, 1800), Seed: seed}),
				Load:     schedule.Options{Mode: schedule.Concurrency, Concurrency: 32, Seed: seed, Recycle: true, Duration: time.Hour},
				Warmup:   o.time(20 * time.Second), Measure: o.time(90 * time.Second),
			}
			cfg.Net.Bandwidth, cfg.Net.Setup = 5e9, 2*time.Millisecond // 50 Gbit/s
			if on {
				cfg.Net.Layers, cfg.Net.LayerSetup = 32, 300*time.Microsecond
			}
			return cfg
		}
	}
	published := map[string]string{
		name(1024, false): "0.696", name(1024, true): "0.274", name(4096, false): "1.192", name(4096, true): "0.378",
		name(8192, false): "1.234", name(8192, true): "0.637",
	}
	return &Experiment{
		ID: "e10", Title: "blocks leave while the prompt is computed", Source: "sglang pull request 23515, 32 in flight (its TTFT is the first token of the decode worker, here the second token)",
		Setup: "an 8B model, one ctx and one gen instance over 50 Gbit/s, 32 requests in flight",
		arms: func(o Options) (out []arm) {
			for _, n := range lengths {
				for _, on := range []bool{false, true} {
					out = append(out, arm{name: name(n, on), config: config(o, n, on), published: map[string]string{"second_mean": published[name(n, on)]}})
				}
			}
			return out
		},
		metrics: append([]metric{average("second_mean", "second token mean", second), throughput, busy, genBusy}, stages...),
		checks: []check{
			changes("256 tokens: no gain", name(256, false), name(256, true), "second_mean", -0.02, inf),
			changes("4096 tokens: gain", name(4096, false), name(4096, true), "second_mean", -inf, -0.02),
			changes("8192 tokens: gain", name(8192, false), name(8192, true), "second_mean", -inf, -0.02),
		},
	}
}

// good is the part of requests that keep both limits.
func good(r *des.Result, ttft, tpot time.Duration) float64 {
	n := 0
	for _, rec := range r.Good() {
		if rec.TTFT() <= ttft && rec.TPOT() <= tpot {
			n++
		}
	}
	return float64(n) / float64(max(len(r.Records)+r.Unfinished, 1))
}

// capacity is the rate at which 90 % of a cluster's requests are good, of those that can be offered.
func capacity(cfg func(rate float64) (des.Config, bool), ttft, tpot time.Duration) (float64, error) {
	return plan.Capacity(2, func(rate float64) (bool, error) {
		c, ok := cfg(rate)
		if !ok {
			return false, nil
		}
		s, err := des.New(c)
		if err != nil {
			return false, err
		}
		return good(s.Run(0, nil), ttft, tpot) >= 0.9, nil
	})
}

func goodput() *Experiment {
	tasks := []struct {
		name       string
		in, out    workload.Dist
		ttft, tpot time.Duration
	}{
		{"chat", workload.LogNormal(400, 0.9), workload.LogNormal(220, 0.7), 400 * time.Millisecond, 30 * time.Millisecond},
		{"code", workload.LogNormal(200, 0.6), workload.LogNormal(70, 0.6), 250 * time.Millisecond, 30 * time.Millisecond},
		{"summaries", workload.LogNormal(6000, 0.4), workload.LogNormal(150, 0.5), 4 * time.Second, 25 * time.Millisecond},
	}
	var checks []check
	for _, t := range tasks {
		checks = append(checks, changes(t.name+": divided is no worse", t.name+", mixed", t.name+", divided", "capacity_at_slo", 0, inf))
	}
	return &Experiment{
		ID: "e11", Title: "capacity within limits, divided and mixed", Source: "DistServe: up to 4.48 times the goodput, or limits 10.2 times tighter",
		Setup: "a 70B model, 12 devices: the best of three divisions, and three mixed instances of 4 with the best of three chunks; 90 % within limits",
		arms: func(o Options) (out []arm) {
			for _, t := range tasks {
				for _, split := range []bool{false, true} {
					name := t.name + ", mixed"
					if split {
						name = t.name + ", divided"
					}
					out = append(out, arm{name: name, probe: func(seed uint64) (map[string]float64, error) {
						best := 0.0
						for _, size := range []int{256, 1024, 4096} { // of a chunk
							if split {
								size /= 256 // 1, 4, 16: which division
							}
							c, err := capacity(func(rate float64) (des.Config, bool) { return task(o, seed, t.in, t.out, rate, split, size), true }, t.ttft, t.tpot)
							if err == nil {
								best = max(best, c)
							}
						}
						return map[string]float64{"capacity_at_slo": best}, nil
					}})
				}
			}
			return out
		},
		metrics: []metric{{key: "capacity_at_slo", title: "capacity", unit: "req/s", digits: 2}},
		checks:  checks,
	}
}

// task is one load on 12 devices: size is the chunk of mixed instances, or 1, 4 and
// 16 for three divisions.
func task(o Options, seed uint64, in, out workload.Dist, rate float64, split bool, size int) des.Config {
	cfg := des.Config{
		Seed: seed, Net: network(), Frontends: 1,
		Workload: workload.Random(workload.RandomOptions{Requests: 3000, Input: in, Output: out, Seed: seed}),
		Load:     schedule.Options{Mode: schedule.Rate, Rate: rate, Seed: seed, Recycle: true, Duration: time.Hour},
		Warmup:   o.time(8 * time.Second), Measure: o.time(30 * time.Second),
	}
	if split {
		switch size {
		case 1:
			cfg.Ctx, cfg.Gen = sharded(executor.Ctx, 2, 2), sharded(executor.Gen, 1, 8)
		case 4:
			cfg.Ctx, cfg.Gen = sharded(executor.Ctx, 2, 4), sharded(executor.Gen, 1, 4)
		default:
			cfg.Ctx, cfg.Gen = sharded(executor.Ctx, 1, 8), sharded(executor.Gen, 1, 4)
		}
		cfg.Ctx.Core.MaxNumTokens = 8192
		return cfg
	}
	cfg.Ctx = sharded(executor.Mixed, 3, 4)
	cfg.Ctx.Core.MaxNumTokens, cfg.Ctx.Core.PrefillMixed = max(size, 512), size
	return cfg
}
