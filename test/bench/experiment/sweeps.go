package experiment

import (
	"fmt"

	"tandem/engine/adprouter"
	"tandem/serve/conversation"
	"tandem/test/bench/des"
	"tandem/test/bench/workload"
)

// sweeps vary E1: what it was set up with, and how eagerly conversations move.
func sweeps() []*Experiment { return []*Experiment{setUp(), eagerness()} }

func setUp() *Experiment {
	const plain, rates, fast, apart = "as e1", "uneven rates", "and faster devices", "and sub-agents apart"
	config := func(o Options, set func(*des.Config, *workload.AgenticOptions)) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			return agentCluster(o, seed, func(c *des.Config) {
				c.Ctx.ADP.Placement = string(adprouter.RoundRobin)
				w := agentOptions(4500, seed)
				set(c, &w)
				c.Workload = des.Aged(workload.Agentic(w), c.Load.Concurrency, seed)
			})
		}
	}
	uneven := func(_ *des.Config, w *workload.AgenticOptions) { w.Sigma = 1 }
	faster := func(c *des.Config, w *workload.AgenticOptions) {
		uneven(c, w)
		c.Ctx.Cost.CtxToken = 0.00045
	}
	return &Experiment{
		ID: "e1-setup", Title: "what round_robin's queue skew depends on", Source: "that of e1: queue skew 1.8 to 3.4 by instance",
		Setup: "e1's cluster with round_robin; a deviation of turn rates of 1 instead of 0.8; also prompt tokens in 0.85 of the time; also sub-agents as conversations of their own",
		arms: func(o Options) []arm {
			return []arm{
				{name: plain, config: config(o, func(*des.Config, *workload.AgenticOptions) {})},
				{name: rates, config: config(o, uneven)},
				{name: fast, config: config(o, faster)},
				{name: apart, config: config(o, func(c *des.Config, w *workload.AgenticOptions) {
					faster(c, w)
					c.Rules = conversation.Rules{}
				})},
			}
		},
		metrics: []metric{skew, pinned, padded, meanTTFT, p90, p99, throughput, reuse, busy},
		checks:  []check{reaches("ranks pad more when devices are faster", plain, fast, "padded_worst", 0, inf)},
	}
}

func eagerness() *Experiment {
	name := func(gain float64) string { return fmt.Sprintf("gain %g", gain) }
	config := func(o Options, gain float64, least int) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			return agentCluster(o, seed, func(c *des.Config) {
				recommended(c)
				if c.Ctx.ADP.RehomeGain = gain; least > 0 {
					c.Ctx.ADP.RehomeMinGain = least
				}
			})
		}
	}
	return &Experiment{
		ID: "e1-moves", Title: "how eagerly conversations move", Source: "none",
		Setup: "e1's recommended setting with other values of kv_cache_routing_rehome_gain, and half of kv_cache_routing_rehome_min_gain",
		arms: func(o Options) []arm {
			return []arm{
				{name: name(0.2), config: config(o, 0.2, 0)},
				{name: name(0.15), config: config(o, 0.15, 0)},
				{name: name(0.1), config: config(o, 0.1, 0)},
				{name: name(0.2) + ", min_gain 1024", config: config(o, 0.2, 1024)},
			}
		},
		metrics: []metric{skew, padded, meanTTFT, p50, p90, p99, throughput, reuse, moves},
		checks:  []check{reaches("throughput stays", name(0.2), name(0.1), "request_throughput", -0.01, inf)},
	}
}
