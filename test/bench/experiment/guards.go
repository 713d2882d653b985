package experiment

import (
	"fmt"
	"math"
	"slices"
	"time"

	"tandem/engine/executor"
	"tandem/engine/scheduler"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// guards are cases that went wrong elsewhere.
func guards() []*Experiment {
	return []*Experiment{oneSided(), pinnedGroup(), headOfLine(), aborts(), starved(), replicas()}
}

// shares is how the requests divide on instances: the largest part, in percent.
var shares = metric{"largest_share", "largest share of an instance", "%", 1, func(r *des.Result) float64 {
	counts := make([]float64, len(r.Ctx))
	for _, rec := range r.Good() {
		counts[rec.Ctx]++
	}
	return 100 * slices.Max(counts) / float64(max(len(r.Good()), 1))
}}

func oneSided() *Experiment {
	config := func(o Options, kind string) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			g := dense(executor.Mixed, 2, 4)
			g.Router = router.Config{Type: kind}
			return des.Config{
				Seed: seed, Ctx: g, Net: network(), Frontends: 1, NoIDs: true,
				Workload: workload.OneSided(seed),
				Load:     schedule.Options{Mode: schedule.Rate, Rate: 1, Seed: seed},
				Measure:  o.time(3 * time.Minute),
			}
		}
	}
	kinds := []string{router.KindKVAware, router.KindHybrid, router.KindConversation}
	var checks []check
	for _, k := range kinds {
		checks = append(checks, within(k+": no worse than 60/40", k, "largest_share", 50, 60))
	}
	return &Experiment{
		ID: "r1", Title: "all requests on one of two workers", Source: "Infera issue 103: 448 and 0",
		Setup: "2 workers, 112 conversations of 4 turns that begin one after the other and share a system prompt",
		arms: func(o Options) (out []arm) {
			for _, k := range kinds {
				out = append(out, arm{name: k, config: config(o, k), published: map[string]string{"largest_share": "100"}})
			}
			return out
		},
		metrics: []metric{shares, meanTTFT, reuse}, checks: checks,
	}
}

func pinnedGroup() *Experiment {
	const name = "kv_cache_aware"
	used := metric{"ranks_used", "ranks used", "", 0, func(r *des.Result) float64 {
		n := 0
		for _, k := range r.Ctx[0] {
			if k.Prefill > 0 {
				n++
			}
		}
		return float64(n)
	}}
	return &Experiment{
		ID: "r2", Title: "one cached block pins a group to a rank", Source: "tpu-inference issue 3307",
		Setup: "2 groups of 8 streams that share a prompt, one instance of 4 ranks",
		arms: func(o Options) []arm {
			return []arm{{name: name, config: func(seed uint64) des.Config {
				g := dense(executor.Mixed, 1, 4)
				g.Ranks, g.ADP.Conversations, g.ADP.KVCacheAware = 4, false, true
				return des.Config{
					Seed: seed, Ctx: g, Net: network(), Frontends: 1, NoIDs: true, Measure: o.time(2 * time.Minute),
					Workload: workload.PinnedGroups(seed),
					Load:     schedule.Options{Mode: schedule.Concurrency, Concurrency: 16, Seed: seed},
				}
			}}}
		},
		metrics: []metric{used, meanTTFT, reuse},
		checks:  []check{within("all ranks are used", name, "ranks_used", 4, 4)},
	}
}

func headOfLine() *Experiment {
	const fcfs, equal = "FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"
	of := func(small bool) func(*des.Result) float64 {
		return func(r *des.Result) float64 {
			var some []des.Record
			for _, rec := range r.Good() {
				if rec.In < 4000 == small {
					some = append(some, rec)
				}
			}
			return des.Quantile(some, 0.99, ttft)
		}
	}
	ratio := metric{"small_by_large", "small : large p99", "", 2, func(r *des.Result) float64 { return of(true)(r) / of(false)(r) }}
	config := func(chunking scheduler.Chunking) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			g := dense(executor.Ctx, 1, 8)
			g.Core.Chunking, g.Core.Blocks = chunking, 20000
			return des.Config{
				Seed: seed, Ctx: g, Ideal: des.Ideal{Step: 10 * time.Millisecond}, Net: network(), Frontends: 1, Workload: workload.HeadOfLine(24000, 2000, seed),
				Load: schedule.Options{Mode: schedule.Fixed, Seed: seed}, Measure: time.Minute,
			}
		}
	}
	return &Experiment{
		ID: "r3", Title: "short prompts behind long ones", Source: "sglang issue 22831: p99 of short prompts 22.9 s, alone 50 ms",
		Setup: "a ctx worker gets 29 prompts within 191 ms, some 18 of 24000 and 11 of 2000 tokens",
		arms: func(Options) []arm {
			return []arm{
				{name: fcfs, config: config(scheduler.FirstCome), published: map[string]string{"small_p99": "22.9"}},
				{name: equal, config: config(scheduler.EqualProgress)},
			}
		},
		metrics: []metric{{"small_p99", "small prompts, TTFT p99", "s", 2, of(true)}, {"large_p99", "large prompts, TTFT p99", "s", 2, of(false)}, ratio},
		checks: []check{
			within("with equal progress small prompts wait at most 0.3 of large ones", equal, "small_by_large", 0, 0.3),
		},
	}
}

func aborts() *Experiment {
	const name = "cancelled while blocks travel"
	probe := metric{"probes", "requests that end well after it", "", 0, func(r *des.Result) float64 {
		n := 0
		for _, rec := range r.Good() {
			if rec.Sched > 40*time.Second {
				n++
			}
		}
		return float64(n)
	}}
	return &Experiment{
		ID: "r4", Title: "clients leave during transfers", Source: "TensorRT-LLM issue 12313: a probe hangs after four rounds of aborts",
		Setup: "4 rounds of 300 prompts of 2000 tokens whose clients leave after 2 s, over a slow link; then one request",
		arms: func(Options) []arm {
			return []arm{{name: name, config: func(seed uint64) des.Config {
				cfg := des.Config{
					Seed: seed, Ctx: dense(executor.Ctx, 1, 8), Gen: dense(executor.Gen, 1, 8), Net: network(), Frontends: 1, Workload: workload.Aborts(2000, seed),
					Load: schedule.Options{Mode: schedule.Fixed, Seed: seed}, Measure: 60 * time.Second,
				}
				cfg.Net.Bandwidth, cfg.Ctx.Core.Blocks = 4e9, 40000
				return cfg
			}}}
		},
		metrics: []metric{probe, leaked, {"cancelled", "requests whose clients left", "", 0, func(r *des.Result) float64 { return float64(len(r.Records) - len(r.Good())) }}},
		checks: []check{
			within("the probe is answered", name, "probes", 1, 1),
			within("no block is lost", name, "kv_leak_blocks", 0, 0),
		},
	}
}

func starved() *Experiment {
	const name = "one rank starved"
	others := metric{"others", "requests of other ranks", "", 0, func(r *des.Result) float64 {
		n := 0
		for _, rec := range r.Good() {
			if rec.CtxRank != 0 {
				n++
			}
		}
		return float64(n)
	}}
	return &Experiment{
		ID: "r5", Title: "a rank without memory stops all", Source: "TensorRT-LLM pull request 17379",
		Setup: "one mixed instance of 4 ranks with pools of 64 blocks; requests that name rank 0 need more than half of it each",
		arms: func(Options) []arm {
			return []arm{{name: name, config: func(seed uint64) des.Config {
				g := dense(executor.Mixed, 1, 4)
				g.Ranks, g.Core.Blocks = 4, 64
				cfg := des.Config{
					Seed: seed, Ctx: g, Net: network(), Frontends: 1, Workload: starving(seed), NoIDs: true, ForceRank: true,
					Load: schedule.Options{Mode: schedule.Concurrency, Concurrency: 40, Seed: seed}, Measure: 10 * time.Minute,
				}
				return cfg
			}}}
		},
		metrics: []metric{others, failed, leaked},
		checks: []check{
			within("other ranks go on", name, "others", 250, inf),
			within("all requests end well", name, "failed", 0, 0),
		},
	}
}

// starving is 400 requests of which every fourth, which goes to rank 0, is large.
func starving(seed uint64) *workload.Workload {
	w := &workload.Workload{Name: "starving", Seed: seed}
	for i := range 400 {
		r := workload.Request{ID: fmt.Sprint("s", i), Arrival: workload.NoArrival, Input: 300, Output: 60}
		if i%4 == 3 {
			r.Input = 2400
		}
		w.Requests = append(w.Requests, r)
	}
	return w
}

func replicas() *Experiment {
	kinds := []string{router.KindConversation, router.KindHybrid, router.KindConsistent}
	config := func(o Options, kind string) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			g := dense(executor.Mixed, 4, 4)
			g.Router = router.Config{Type: kind}
			return des.Config{
				Seed: seed, Ctx: g, Net: network(), Frontends: 3, Scatter: true, ShareHomes: true,
				Workload: workload.MultiTurn(workload.MultiTurnOptions{
					Conversations: 400, Turns: workload.Geometric(8), First: workload.LogNormal(1500, 0.5), Next: workload.LogNormal(200, 0.5),
					Output: workload.Fixed(30), Think: workload.Exponential(1), Seed: seed,
				}),
				Load:    schedule.Options{Mode: schedule.Sessions, Concurrency: 60, Seed: seed},
				Measure: o.time(90 * time.Second),
			}
		}
	}
	sticky := metric{"sticky_rate", "later turns on the same worker", "%", 1, func(r *des.Result) float64 {
		home, same, all := map[string]int{}, 0, 0
		for _, rec := range r.Good() {
			if at, ok := home[rec.Conversation]; ok {
				all++
				if at == rec.Ctx {
					same++
				}
			}
			home[rec.Conversation] = rec.Ctx
		}
		return 100 * float64(same) / math.Max(float64(all), 1)
	}}
	// The other two let conversations overflow from a worker that is too busy.
	checks := []check{within("conversation: conversations stay", router.KindConversation, "sticky_rate", 98, 100)}
	return &Experiment{
		ID: "r6", Title: "replicas of the frontend scatter conversations", Source: "dynamo issue 11035",
		Setup: "3 frontends that get requests in turn and tell each other of homes, 4 workers, 60 live conversations",
		arms: func(o Options) (out []arm) {
			for _, k := range kinds {
				out = append(out, arm{name: k, config: config(o, k)})
			}
			return out
		},
		metrics: []metric{sticky, meanTTFT, reuse}, checks: checks,
	}
}
