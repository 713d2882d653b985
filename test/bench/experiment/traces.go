package experiment

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"tandem/engine/executor"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/schedule"
	"tandem/test/bench/traces"
	"tandem/test/bench/workload"
)

// shape is a kind of load of E12.
type shape struct {
	name string
	make func(seed uint64) *workload.Workload
}

// shapes are those of the three traces that Mooncake released.
var shapes = []shape{
	{"conversation", func(seed uint64) *workload.Workload {
		return workload.MultiTurn(workload.MultiTurnOptions{
			Conversations: 1500, Turns: workload.Geometric(3), First: workload.LogNormal(6000, 1), Next: workload.LogNormal(1500, 1),
			Output: workload.LogNormal(250, 0.7), Think: workload.Exponential(5), Seed: seed,
		})
	}},
	{"toolagent", func(seed uint64) *workload.Workload {
		return workload.SharedPrefix(workload.SharedPrefixOptions{
			Groups: 40, PerGroup: 80, System: workload.LogNormal(5000, 0.5), Question: workload.LogNormal(1500, 1), Output: workload.LogNormal(150, 0.6), Seed: seed,
		})
	}},
	{"synthetic", func(seed uint64) *workload.Workload {
		return workload.SharedPrefix(workload.SharedPrefixOptions{
			Groups: 60, PerGroup: 60, System: workload.LogNormal(14000, 0.4), Question: workload.LogNormal(700, 1), Output: workload.LogNormal(150, 0.6), Seed: seed,
		})
	}},
}

// recorded reads the trace of a shape, nil if the folder does not have it.
func (s *shape) recorded(dir string, seed uint64) (*workload.Workload, error) {
	if dir == "" {
		return nil, nil
	}
	f, err := os.Open(filepath.Join(dir, s.name+"_trace.jsonl")) //nolint:gosec // a folder that the caller named
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	w, _, err := traces.Read(f, traces.Options{Format: traces.Mooncake, Name: f.Name(), Seed: seed})
	return w, err
}

// offer loads a configuration with a rate. Of a recorded trace each seed takes another part, whose clock is as fast as
// the rate wants; there is none if the trace is over before the run is.
func offer(cfg des.Config, s *shape, trace *workload.Workload, seed uint64, rate float64) (des.Config, bool) {
	if trace == nil {
		cfg.Workload = s.make(seed)
		cfg.Load = schedule.Options{Mode: schedule.Rate, Rate: rate, Seed: seed, Recycle: true, Duration: time.Hour}
		return cfg, true
	}
	span := trace.Requests[len(trace.Requests)-1].Arrival
	from := span / 10 * time.Duration((seed-1)%5)
	speed := rate * span.Seconds() / float64(len(trace.Requests))
	cfg.Workload = trace
	cfg.Load = schedule.Options{Mode: schedule.Fixed, Speed: speed, From: from, AutoOffset: true, Seed: seed}
	return cfg, (span-from).Seconds()/speed >= (cfg.Warmup + cfg.Measure).Seconds()
}

// cached is E12's cluster, with and without reuse of what was computed.
func cached(o Options, seed uint64, cache bool) des.Config {
	g := dense(executor.Ctx, 4, 4)
	g.Core.BlockReuse, g.Core.MaxNumTokens = cache, 8192
	g.Router = router.Config{Type: router.KindLoad, UseTokens: true}
	if cache {
		g.Router = router.Config{Type: router.KindHybrid}
	}
	return des.Config{
		Seed: seed, Ctx: g, Ideal: des.Ideal{Step: 12 * time.Millisecond}, Net: network(), Frontends: 1,
		// As many prompts as there are beginnings must have come before a cache is warm.
		Warmup: o.time(4 * time.Minute), Measure: o.time(4 * time.Minute),
	}
}

func mooncake() *Experiment {
	// The longest prompts must be able to keep it in all arms.
	const limit = 30 * time.Second
	var checks []check
	for _, s := range shapes {
		checks = append(checks, changes(s.name+": capacity grows", s.name+", no cache", s.name+", cache", "capacity_at_slo", 0.05, inf))
	}
	return &Experiment{
		ID: "e12", Title: "capacity with a cache that routing uses", Source: "Mooncake, recorded traces: +59 to +498 %, deployments +107 and +115 %",
		Setup: "the three released traces where --traces has them (conversation_trace.jsonl and so on), faster or slower, else loads of their shapes made by generators; 4 ctx instances of 4 devices, gen workers without limit, TTFT at most 30 s for 90 %",
		arms: func(o Options) (out []arm) {
			for i := range shapes {
				s := &shapes[i]
				for _, cache := range []bool{false, true} {
					name := s.name + ", no cache"
					if cache {
						name = s.name + ", cache"
					}
					out = append(out, arm{name: name, probe: func(seed uint64) (map[string]float64, error) {
						trace, err := s.recorded(o.Traces, seed)
						if err != nil {
							return nil, err
						}
						c, err := capacity(func(rate float64) (des.Config, bool) {
							return offer(cached(o, seed, cache), s, trace, seed, rate)
						}, limit, time.Second)
						return map[string]float64{"capacity_at_slo": c}, err
					}})
				}
			}
			return out
		},
		metrics: []metric{{key: "capacity_at_slo", title: "capacity", unit: "req/s, or conversations begun", digits: 2}},
		checks:  checks,
	}
}
