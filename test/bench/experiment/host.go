package experiment

import (
	"time"

	"tandem/engine/executor"
	"tandem/test/bench/des"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

func hostTier() *Experiment {
	const none, host = "no host tier", "host tier"
	config := func(o Options, blocks int) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			const users = 80
			g := sharded(executor.Mixed, 1, 2) // its pool has room for half a million tokens
			g.Core.Tiers.HostBlocks = blocks
			net := network()
			net.HostBand = 2 * 50e9
			return des.Config{
				Seed: seed, Ctx: g, Net: net, Frontends: 1,
				Workload: workload.MultiTurn(workload.MultiTurnOptions{
					Conversations: 2000, Turns: workload.Fixed(10), First: workload.LogNormal(4000, 0.5), Next: workload.LogNormal(1000, 0.5),
					Output: workload.LogNormal(200, 0.5), Think: workload.Exponential(20), Seed: seed,
				}),
				Load:   schedule.Options{Mode: schedule.Sessions, Concurrency: users, RampUp: o.time(2 * time.Minute), Seed: seed},
				Warmup: o.time(4 * time.Minute), Measure: o.time(4 * time.Minute),
			}
		}
	}
	return &Experiment{
		ID: "e13", Title: "blocks that a pool has no room for go to the host", Source: "host offload, 10 turns of 80 users: TTFT 40 % better",
		Setup: "a 70B model on 2 devices, whose pool has room for half of what 80 conversations of 10 turns have said; 100 GB/s to the host, which has room for all",
		arms: func(o Options) []arm {
			return []arm{{name: none, config: config(o, 0)}, {name: host, config: config(o, 40000)}}
		},
		metrics: []metric{meanTTFT, p50, p95, meanE2E, throughput, reuse, busy},
		checks:  []check{changes("TTFT falls by a fifth or more", none, host, "ttft_mean", -inf, -0.2)},
	}
}
