package experiment

import (
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/test/bench/des"
	"tandem/test/bench/workload"
)

// variant is a load on one instance of the study.
type variant struct {
	name string
	live int // trees of conversations
	set  func(*workload.AgenticOptions, *des.Config)
}

// variants are the loads that a placement must stand.
func variants() []variant {
	plain := func(*workload.AgenticOptions, *des.Config) {}
	return []variant{
		{"250 live", 250, plain},
		{"200 live", 200, plain},
		{"150 live", 150, plain},
		{"no sub-agents", 300, func(o *workload.AgenticOptions, _ *des.Config) { o.Fanout = 0 }},
		{"many sub-agents", 150, func(o *workload.AgenticOptions, _ *des.Config) { o.Fanout, o.Children = 0.1, workload.Uniform(4, 8) }},
		{"uneven clients", 250, func(o *workload.AgenticOptions, _ *des.Config) { o.Sigma = 1.4 }},
		{"small cache", 200, func(_ *workload.AgenticOptions, c *des.Config) { c.Ctx.Core.Blocks = 9000 }},
	}
}

// placements are the arms of the study.
var placements = []struct {
	name  string
	how   adprouter.Placement
	moves bool
}{
	{"round_robin", adprouter.RoundRobin, false},
	{"least_queued", adprouter.LeastQueued, false},
	{"least_work", adprouter.LeastWork, false},
	{"round_robin + moves", adprouter.RoundRobin, true},
	{"least_queued + moves", adprouter.LeastQueued, true},
	{"least_work + moves", adprouter.LeastWork, true},
}

// study compares all placements under all loads, on one instance of E1's.
func study() *Experiment {
	e := &Experiment{
		ID: "study", Title: "placements and moves under seven loads", Source: "none",
		Setup:   "one instance of 8 ranks with a quarter of E1's conversations, and loads that differ from it",
		metrics: []metric{skew, padded, p50, p90, p99, throughput, reuse, busy, moves}, chart: byLoad,
	}
	for _, v := range variants() {
		from, to := v.name+": round_robin", v.name+": least_work + moves"
		e.checks = append(e.checks,
			reaches(v.name+": TTFT p99 of least_work with moves", from, to, "ttft_p99", -inf, 0),
			reaches(v.name+": throughput", from, to, "request_throughput", -0.005, inf),
			differs(v.name+": reuse", from, to, "block_reuse", 0.5))
	}
	e.arms = func(o Options) (out []arm) {
		for _, v := range variants() {
			for _, p := range placements {
				out = append(out, arm{name: v.name + ": " + p.name, config: func(seed uint64) des.Config {
					w := agentOptions(v.live*9/2, seed)
					cfg := des.Config{
						Seed: seed, Ctx: group(executor.Ctx, 1, 8, 30000), Ideal: des.Ideal{Step: 15 * time.Millisecond}, Net: network(),
						Frontends: 1, Rules: parents, Load: live(v.live, seed),
						Heat: min(6*time.Second, o.time(5*time.Minute)), Warmup: o.time(5 * time.Minute), Measure: o.time(15 * time.Minute),
					}
					cfg.Ctx.ADP.Placement, cfg.Ctx.ADP.Rehome = string(p.how), p.moves
					v.set(&w, &cfg)
					cfg.Workload = des.Aged(workload.Agentic(w), v.live, seed)
					return cfg
				}})
			}
		}
		return out
	}
	return e
}
