package experiment

import (
	"fmt"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/serve/conversation"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/workload"
)

// routing are the experiments about ranks.
func routing() []*Experiment {
	return []*Experiment{leastQueued(), plumbing(), subAgents(), evicted()}
}

// agentCluster is the cluster of E1 with one placement.
func agentCluster(o Options, seed uint64, set func(*des.Config)) des.Config {
	const instances, sessions = 4, 1000
	cfg := des.Config{
		Seed: seed, Ctx: group(executor.Ctx, instances, 8, 30000), Ideal: des.Ideal{Step: 15 * time.Millisecond}, Net: network(),
		Frontends: 1, Rules: parents, Load: live(sessions, seed),
		Heat: min(6*time.Second, o.time(5*time.Minute)), Warmup: o.time(5 * time.Minute), Measure: o.time(30 * time.Minute),
	}
	cfg.Workload = agents(4500, seed, sessions)
	set(&cfg)
	return cfg
}

// placed is a cluster of E1 whose ranks get new conversations by a placement.
func placed(o Options, p adprouter.Placement, rehome bool) func(uint64) des.Config {
	return func(seed uint64) des.Config {
		return agentCluster(o, seed, func(c *des.Config) { c.Ctx.ADP.Placement, c.Ctx.ADP.Rehome = string(p), rehome })
	}
}

// recommended is what docs/routing-study.md recommends for workers that prefill:
// least_work with moves that begin early, instances by open work, and sub-agents
// that share no more than a system prompt with their parents as conversations of
// their own.
func recommended(c *des.Config) {
	a := &c.Ctx.ADP
	a.Placement, a.Rehome = string(adprouter.LeastWork), true
	a.RehomeGain, a.RehomeMaxMoves, a.RehomeCooldown = 0.2, 8, 128
	c.Ctx.Router.HashSkipCount, c.Rules = 0, conversation.Rules{}
}

func leastQueued() *Experiment {
	const rr, lq, lt, lw, best = "round_robin", "least_queued", "least_tokens", "least_work + moves", "recommended"
	return &Experiment{
		ID: "e1", Title: "where new conversations go", Source: "TensorRT-LLM pull request 16294, trace C4",
		Setup: "4 ctx instances of 8 ranks, 1000 live conversations with sub-agents, gen workers without limit",
		arms: func(o Options) []arm {
			return []arm{
				{name: rr, config: placed(o, adprouter.RoundRobin, false), published: map[string]string{
					"queue_skew": "3.4", "padded_worst": "15.7", "ttft_p90": "35.5", "ttft_p99": "105.6", "block_reuse": "95.0", "request_throughput": "35.75",
				}},
				{name: lq, config: placed(o, adprouter.LeastQueued, false), published: map[string]string{
					"queue_skew": "2.0", "padded_worst": "9.9", "ttft_p90": "30.0", "ttft_p99": "87.5", "block_reuse": "95.0", "request_throughput": "35.90", "conv_skew": "≤ 1.14",
				}},
				{name: lt, config: placed(o, adprouter.LeastTokens, false)},
				{name: lw, config: placed(o, adprouter.LeastWork, true)},
				{name: best, config: func(seed uint64) des.Config { return agentCluster(o, seed, recommended) }},
			}
		},
		metrics: []metric{skew, pinned, padded, meanTTFT, devTTFT, p50, p90, p99, throughput, reuse, busy, moves},
		chart:   quantiles,
		checks: []check{
			within("round_robin: conversations are spread evenly", rr, "conv_skew", 1, 1.2),
			uneven(within("round_robin: queue skew", rr, "queue_skew", 1.8, 3.5), rr, "queue_skew", 1.8),
			changes("least_queued: queue skew falls", rr, lq, "queue_skew", -inf, -0.25),
			changes("least_queued: padding falls", rr, lq, "padded_worst", -inf, -0.25),
			changes("least_queued: TTFT p90 falls", rr, lq, "ttft_p90", -0.30, -0.08),
			changes("least_queued: TTFT p99 falls", rr, lq, "ttft_p99", -0.30, -0.08),
			differs("least_queued: reuse stays", rr, lq, "block_reuse", 0.5),
			changes("least_queued: throughput stays", rr, lq, "request_throughput", -0.02, 0.02),
			within("recommended: queue skew", best, "queue_skew", 1, 1.3),
			within("recommended: padding", best, "padded_worst", 0, 4),
			reaches("recommended: TTFT p99", rr, best, "ttft_p99", -inf, -0.45),
			differs("recommended: reuse stays", rr, best, "block_reuse", 0.5),
			reaches("recommended: no loss of throughput", rr, best, "request_throughput", 0, inf),
		},
	}
}

// sparse is the cluster of E2: a model of 49 thousand million active parameters on
// devices of which each computes 12 thousand prompt tokens a second, with room for
// 7.7 million tokens of 9.6 kB beside its part of the weights.
func sparse(c *des.Config) {
	c.Ctx.Instances, c.Ctx.Ranks = 3, 4
	c.Ctx.Cost.CtxToken = 0.00007
	c.Gen = group(executor.Gen, 1, 8, 120000)
	c.Gen.Cost.Iteration = 0.012
	c.Ctx.Core.Blocks = 120000
	c.Ctx.Core.Layout.HeadDim = 40
	c.Gen.Core.Layout.HeadDim = 40
}

func plumbing() *Experiment {
	const inTurn, scattered, named, native = "ranks in turn, no id", "router's rank, no id", "router's rank and id", "id only"
	const sessions = 460
	config := func(o Options, set func(*des.Config)) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			return agentCluster(o, seed, func(c *des.Config) {
				sparse(c)
				set(c)
				c.Load = live(sessions, seed)
				w := agentOptions(2200, seed)
				w.LongTool = workload.Uniform(5, 10)
				c.Workload = des.Aged(workload.Agentic(w), sessions, seed)
				c.Measure = o.time(8 * time.Minute)
			})
		}
	}
	byRouter := func(hide bool) func(*des.Config) {
		return func(c *des.Config) {
			c.RankRouter, c.HideIDs, c.Ctx.Core.EventBuffer = router.Config{Type: router.KindKVAware}, hide, 65536
		}
	}
	return &Experiment{
		ID: "e2", Title: "a wrapper that names ranks", Source: "dynamo pull request 10517",
		Setup: "3 ctx instances of 4 ranks and one gen instance of 8, 460 live conversations, tools that take at most 10 s; conversations keep their instance, and the wrapper names the rank of it that its cache-aware router chose",
		arms: func(o Options) []arm {
			return []arm{
				{name: inTurn, config: config(o, func(c *des.Config) { c.ForceRank, c.HideIDs = true, true })},
				{name: scattered, config: config(o, byRouter(true)), published: map[string]string{"ttft_p95": "8.39", "request_throughput": "46"}},
				{name: named, config: config(o, byRouter(false)), published: map[string]string{"ttft_p95": "4.84", "ttft_p99": "7.12", "request_throughput": "50"}},
				{name: native, config: config(o, func(*des.Config) {}), published: map[string]string{"ttft_p95": "4.81", "ttft_p99": "7.00"}},
			}
		},
		metrics: append([]metric{p50, p95, p99, throughput, reuse, busy, genBusy, meanE2E}, stages...),
		checks: []check{
			changes("affinity: TTFT p95 falls", scattered, named, "ttft_p95", -0.60, -0.25),
			changes("affinity: throughput rises", scattered, named, "request_throughput", 0.03, 0.15),
			changes("through a wrapper as without: TTFT p95", native, named, "ttft_p95", -0.02, 0.02),
			changes("through a wrapper as without: throughput", native, named, "request_throughput", -0.02, 0.02),
		},
	}
}

func subAgents() *Experiment {
	scopes := []conversation.Scope{"", conversation.ScopeContext, conversation.ScopeBoth}
	names := []string{"own", "context", "both"}
	config := func(o Options, scope conversation.Scope, batch int, share bool) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			return agentCluster(o, seed, func(c *des.Config) {
				c.Ctx.Instances, c.Ctx.Ranks = 2, 4
				c.Ctx.Cost.CtxToken = 0.0003
				c.Gen = group(executor.Gen, 2, 4, 30000)
				c.Gen.Core.MaxBatch, c.Gen.Cost.Iteration = batch, 0.012
				if batch < 32 { // a step of a small batch is shorter
					c.Gen.Cost.Iteration = 0.008
				}
				c.Rules = conversation.Rules{Scope: scope}
				if scope != "" {
					c.Rules.ParentHeader = parents.ParentHeader
				}
				c.Load = live(160, seed)
				w := workload.C4(700, seed)
				w.Fanout, w.Children, w.ChildTurns, w.ShareParent = 0.08, workload.Uniform(4, 8), workload.Geometric(4), share
				c.Workload = des.Aged(workload.Agentic(w), 160, seed)
				c.Measure = o.time(8 * time.Minute)
			})
		}
	}
	name := func(i, batch int) string { return fmt.Sprintf("%s, batch %d", names[i], batch) }
	const small, big = 8, 128
	const owned, apart = "own, system prompt only", "context, system prompt only"
	return &Experiment{
		ID: "e3", Title: "sub-agents go where their parents are", Source: "TensorRT-LLM pull request 18684: context −2 to −9 % TTFT, both up to +23 %",
		Setup: "2 ctx and 2 gen instances of 4 ranks, 160 trees with fan-outs of 4 to 8 that begin with their parents' prompts; in two arms with a system prompt only, which all trees share",
		arms: func(o Options) (out []arm) {
			for _, batch := range []int{small, big} {
				for i, s := range scopes {
					out = append(out, arm{name: name(i, batch), config: config(o, s, batch, true)})
				}
			}
			return append(out, arm{name: owned, config: config(o, "", big, false)}, arm{name: apart, config: config(o, conversation.ScopeContext, big, false)})
		},
		metrics: append([]metric{
			meanTTFT, average("second_mean", "second token mean", second), quantile("second_p95", "second token p95", 0.95, second),
			average("gen_wait", "first to second token mean", func(r *des.Record) time.Duration { return r.Second - r.First }),
			meanE2E, throughput, reuse, busy, genBusy,
		}, stages...),
		checks: []check{
			changes("context is no worse, small batch", name(0, small), name(1, small), "ttft_mean", -inf, 0.005),
			changes("context is no worse, large batch", name(0, big), name(1, big), "ttft_mean", -inf, 0.005),
			changes("both waits longer for gen, small batch", name(1, small), name(2, small), "gen_wait", 0.03, inf),
			changes("both makes no difference, large batch", name(1, big), name(2, big), "gen_wait", -0.03, 0.03),
			changes("context is no worse where sub-agents share a system prompt only", owned, apart, "ttft_mean", -inf, 0.005),
		},
	}
}

func evicted() *Experiment {
	const probe, conv = "kv_cache_aware", "conversation_aware"
	config := func(o Options, conversations bool) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			return agentCluster(o, seed, func(c *des.Config) {
				c.Ctx.Instances = 1
				c.Ctx.Core.Blocks = 9000 // a third of the working set
				c.Ctx.ADP.Conversations, c.Ctx.ADP.KVCacheAware = conversations, !conversations
				c.Ctx.Cost.CtxToken = 0.0003
				c.Load = live(200, seed)
				c.Workload = agents(800, seed, 200)
				c.Measure = o.time(8 * time.Minute)
			})
		}
	}
	changed := metric{"rank_changes", "rank changes of 1000 turns", "", 1, func(r *des.Result) float64 {
		return 1000 * float64(r.Changes) / float64(max(len(r.Good()), 1))
	}}
	return &Experiment{
		ID: "e4", Title: "an explicit map survives eviction", Source: "the reason for conversation routers",
		Setup: "one instance of 8 ranks, 200 trees of conversations, a cache for a third of them",
		arms: func(o Options) []arm {
			return []arm{{name: probe, config: config(o, false)}, {name: conv, config: config(o, true)}}
		},
		metrics: []metric{changed, reuse, p50, p95, throughput},
		checks: []check{
			within("the conversation router changes no rank", conv, "rank_changes", 0, 0),
			within("the probing router does", probe, "rank_changes", 1e-9, inf),
			{name: "reuse is higher by conversation", test: func(r *Report) (string, bool) {
				a, b := r.mean(probe, "block_reuse"), r.mean(conv, "block_reuse")
				return fmt.Sprintf("%.1f %%, probing %.1f %%", b, a), b > a
			}},
		},
	}
}
