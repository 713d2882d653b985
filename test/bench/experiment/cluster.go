package experiment

import (
	"fmt"
	"math"
	"time"

	"tandem/engine/executor"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/plan"
	"tandem/test/bench/profile"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// cluster are the experiments about instances.
func cluster() []*Experiment {
	return []*Experiment{kvAware(), prefixRouting(), divided(), rateMatched(), layered(), goodput(), mooncake(), hostTier()}
}

// seventy is a dense model of 70 thousand million parameters in 8 bit on g
// devices: weights are read once for each step, whose rest falls with g.
func seventy(g int) profile.Coefficients {
	n := float64(g)
	return profile.Coefficients{
		Iteration: 0.004 + 0.035/n, CtxToken: 0.00045/n + 0.000002, GenRequest: 0.0001/n + 0.00001, GenContext: 1.3e-7 / n, CtxAttention: 2e-8 / n,
	}
}

// sharded is an instance of g devices with that model and what dividing it costs:
// for each token 160 sums of 8192 numbers of 16 bit over all devices, at 350 GB/s.
// A device computes 6000 tokens a second alone and has 76 GB, of which the weights
// take 70 for all; K and V are of 8 bit.
func sharded(role executor.Role, instances, g int) des.Group {
	out, n := dense(role, instances, g), float64(g)
	out.Cost = seventy(g)
	out.Cost.CtxToken = 0.00017/n + 160*8192*2*2*(n-1)/n/350e9
	out.Cost.GenContext /= 2
	out.Core.Layout.HeadDim /= 2
	out.Core.Blocks = int((76e9*n - 70e9) / float64(out.Core.Layout.BlockBytes()))
	out.Router = router.Config{Type: router.KindLoad, UseTokens: true}
	return out
}

// dense is instances of that model, each of g devices.
func dense(role executor.Role, instances, g int) des.Group {
	out := group(role, instances, 1, 2400*g)
	out.Core.EventBuffer = 65536
	out.Core.Layout.Layers, out.Core.Layout.KVHeads, out.Core.Layout.HeadDim, out.Core.Layout.DType = 80, 8, 128, "F16"
	out.Core.MaxBatch, out.Core.MaxNumTokens, out.Cost = 256, 2048, seventy(g)
	out.Core.MaxLeasedFraction = 0.9
	return out
}

func kvAware() *Experiment {
	const random, aware = "load_balancing", "kv_cache_aware"
	config := func(o Options, kind string, shared bool) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			g := dense(executor.Mixed, 16, 1)
			g.Router = router.Config{Type: kind}
			g.Cost = seventy(8)
			g.Core.Blocks = 1600 // of 64 tokens: some 20 prompts
			w := workload.Random(workload.RandomOptions{Requests: 6000, Input: workload.Uniform(3600, 4400), Output: workload.Uniform(40, 120), Seed: seed})
			if shared {
				w = workload.SharedPrefix(workload.SharedPrefixOptions{
					Groups: 200, PerGroup: 30, System: workload.Fixed(3700), Question: workload.Fixed(300), Output: workload.Uniform(40, 120), Seed: seed,
				})
			}
			return des.Config{
				Seed: seed, Ctx: g, Net: network(), Frontends: 1, Workload: w, NoIDs: true,
				Load:   schedule.Options{Mode: schedule.Rate, Rate: 42, Seed: seed},
				Warmup: o.time(40 * time.Second), Measure: o.time(60 * time.Second),
			}
		}
	}
	return &Experiment{
		ID: "e5", Title: "a frontend that knows what workers have cached", Source: "Dynamo, 100 thousand queries to a 70B model: TTFT 3 times, mean latency 2 times better than random",
		Setup: "16 workers at about 80 % load, prompts of 4000 tokens from 200 groups that share 3700, answers of 80",
		arms: func(o Options) []arm {
			return []arm{
				{name: random, config: config(o, router.KindLoad, true), published: map[string]string{"ttft_mean": "1", "e2el_mean": "1"}},
				{name: aware, config: config(o, router.KindKVAware, true), published: map[string]string{"ttft_mean": "1/3", "e2el_mean": "1/2"}},
				{name: random + ", nothing shared", config: config(o, router.KindLoad, false)},
				{name: aware + ", nothing shared", config: config(o, router.KindKVAware, false)},
			}
		},
		metrics: []metric{meanTTFT, p95, meanE2E, throughput, reuse, busy, failed},
		checks: []check{
			changes("TTFT falls to half or less", random, aware, "ttft_mean", -inf, -0.5),
			changes("without anything to share, little is gained", random+", nothing shared", aware+", nothing shared", "ttft_mean", -0.167, 0.2),
		},
	}
}

func prefixRouting() *Experiment {
	const random, aware = "round_robin", "kv_cache_aware"
	config := func(o Options, kind string) func(uint64) des.Config {
		return func(seed uint64) des.Config {
			g := group(executor.Mixed, 8, 1, 3200)
			g.Router = router.Config{Type: kind}
			g.Core.EventBuffer, g.Core.MaxBatch, g.Core.MaxNumTokens = 65536, 128, 2048
			g.Cost = profile.Coefficients{Iteration: 0.025, CtxToken: 0.00022, GenRequest: 0.0002, GenContext: 1e-7}
			w := workload.SharedPrefix(workload.SharedPrefixOptions{
				Groups: 48, PerGroup: 160, System: workload.Fixed(6000), Question: workload.Fixed(300), Output: workload.Fixed(300), Seed: seed,
			})
			return des.Config{
				Seed: seed, Ctx: g, Net: network(), Frontends: 1, Workload: w, NoIDs: true,
				Load: schedule.Options{Mode: schedule.Concurrency, Concurrency: 512, Seed: seed, Recycle: true, Duration: time.Hour},
				// All begin with empty caches and at once; it takes minutes until groups have found their workers.
				Warmup: o.time(6 * time.Minute), Measure: o.time(2 * time.Minute),
			}
		}
	}
	return &Experiment{
		ID: "e6", Title: "prefix routing over replicas", Source: "llm-d, 8 A10G, Qwen2.5-7B, concurrency 512",
		Setup: "8 workers, 48 groups that share 6000 tokens, 512 requests in flight",
		arms: func(o Options) []arm {
			return []arm{
				{name: random, config: config(o, router.KindRoundRobin), published: map[string]string{"ttft_mean": "19.0", "output_throughput": "2742"}},
				{name: aware, config: config(o, router.KindKVAware), published: map[string]string{"ttft_mean": "0.86", "output_throughput": "6423"}},
			}
		},
		metrics: []metric{outputTPS, meanTTFT, p95, reuse, busy},
		checks: []check{
			changes("throughput grows 1.8 to 3 times", random, aware, "output_throughput", 0.8, 2),
			changes("TTFT falls to an eighth or less", random, aware, "ttft_mean", -inf, -0.875),
		},
	}
}

// perGPU are the figures of probes of the planner.
var perGPU = []metric{
	{key: "tps_per_gpu", title: "output per device", unit: "tok/s", digits: 1},
	{key: "user_tps", title: "speed of a user", unit: "tok/s", digits: 1},
	{key: "ctx_busy", title: "ctx or mixed ranks busy", unit: "%", digits: 0},
	{key: "gen_busy", title: "gen ranks busy", unit: "%", digits: 0},
}

// better keeps the figures of a cluster that gives more for each device than the
// best so far.
func better(best map[string]float64, m *plan.Measured) {
	if m.TPSPerGPU > best["tps_per_gpu"] {
		best["tps_per_gpu"], best["user_tps"] = m.TPSPerGPU, m.UserTPS
		best["ctx_busy"], best["gen_busy"] = 100*m.CtxBusy, 100*m.GenBusy
	}
}

// question is a shape with a limit on TTFT for the planner.
func question(o Options, seed uint64, in, out, budget int) plan.Question {
	return plan.Question{
		Input: workload.Spread(float64(in), 0.1), Output: workload.Spread(float64(out), 0.1), TTFT: 2 * time.Second,
		Ladder: []int{4, 8, 12, 16, 24, 32, 48, 64, 96, 128}, Budget: budget, Net: network(), Seed: seed, Measure: o.time(40 * time.Second),
	}
}

// bestDivided is the most that divided instances give for each device at a
// speed for users: ctx instances of one device.
func bestDivided(q plan.Question, genGPUs int, speed float64) (map[string]float64, error) {
	ctx := plan.Spec{GPUs: 1, Group: sharded(executor.Ctx, 1, 1)}
	ctx.Group.Core.MaxNumTokens = 4096
	gen := plan.Spec{GPUs: genGPUs, Group: sharded(executor.Gen, 1, genGPUs)}
	a, err := plan.Make(q, ctx, gen)
	if err != nil {
		return nil, err
	}
	best := map[string]float64{}
	for _, p := range a.Points {
		if p.UserTPS < speed || p.Gen == 0 {
			continue
		}
		m, err := plan.Check(q, ctx, gen, a, p, func(m *plan.Measured) bool { return m.UserTPS >= speed })
		if err != nil {
			return nil, err
		}
		if m.UserTPS >= speed && m.TTFTp95 <= q.TTFT.Seconds() {
			better(best, &m)
		}
	}
	return best, nil
}

// bestMixed is the same of mixed instances, of two sizes and with four sizes of chunk, each with the most requests in
// flight that keep the limits.
func bestMixed(q plan.Question, speed float64) (map[string]float64, error) {
	best := map[string]float64{}
	for _, g := range []int{4, 8} {
		if g > q.Budget {
			continue
		}
		for _, chunk := range []int{256, 512, 1024, 4096} {
			s := plan.Spec{GPUs: g, Group: sharded(executor.Mixed, 1, g)}
			s.Group.Core.MaxNumTokens, s.Group.Core.MaxBatch = max(chunk, 512), 256
			s.Group.Core.PrefillMixed = chunk
			for least, most := 0, q.Ladder[len(q.Ladder)-1]+1; most-least > max(1, least/32); {
				n := (least + most) / 2
				m, err := plan.Mixed(q, s, 1, n)
				if err != nil {
					return nil, err
				}
				if m.UserTPS < speed || m.TTFTp95 > q.TTFT.Seconds() {
					most = n
					continue
				}
				least = n
				better(best, &m)
			}
		}
	}
	return best, nil
}

func divided() *Experiment {
	const speed = 40
	shape := func(o Options, in, out, budget, genGPUs int) arm {
		name := fmt.Sprintf("%d/%d, %d devices", in, out, budget)
		if genGPUs == 0 {
			name += ", mixed"
		}
		return arm{name: name, probe: func(seed uint64) (map[string]float64, error) {
			q := question(o, seed, in, out, budget)
			if genGPUs == 0 {
				return bestMixed(q, speed)
			}
			return bestDivided(q, genGPUs, speed)
		}}
	}
	return &Experiment{
		ID: "e8", Title: "prefill and decode divided", Source: "Dynamo, 70B, 3000/150: +30 % for each device on one node, more than twice on two",
		Setup: fmt.Sprintf("a 70B model, %d tok/s for each user, TTFT p95 at most 2 s; divided: ctx instances of 1 device and gen instances of 4; mixed: the best of two sizes and four chunks", speed),
		arms: func(o Options) []arm {
			return []arm{
				shape(o, 3000, 150, 8, 0), shape(o, 3000, 150, 8, 4), shape(o, 3000, 150, 16, 4), shape(o, 3000, 150, 32, 4),
				shape(o, 128, 512, 8, 0), shape(o, 128, 512, 16, 4),
			}
		},
		metrics: perGPU,
		checks: []check{
			changes("long prompts, 8 devices: divided is better", "3000/150, 8 devices, mixed", "3000/150, 8 devices", "tps_per_gpu", 0, inf),
			changes("long prompts, 16 devices: better than with 8", "3000/150, 8 devices", "3000/150, 16 devices", "tps_per_gpu", 0, inf),
			changes("short prompts: nothing is gained", "128/512, 8 devices, mixed", "128/512, 16 devices", "tps_per_gpu", -inf, 0.1),
		},
	}
}

func rateMatched() *Experiment {
	shape := func(o Options, in, out int) arm {
		return arm{name: fmt.Sprintf("%d/%d", in, out), probe: func(seed uint64) (map[string]float64, error) { return curve(o, seed, in, out) }}
	}
	return &Experiment{
		ID: "e9", Title: "rates matched against what comes out", Source: "TensorRT-LLM blog: 1.4 to 1.8 times at 4400/1200, up to 1.73 and 2 times at 8192/256; the whole is 0 to 25 % below the ideal",
		Setup: "a 70B model, ctx instances of 2 and gen instances of 8 devices, 64 devices; mixed instances of 8",
		arms:  func(o Options) []arm { return []arm{shape(o, 4400, 1200), shape(o, 8192, 256)} },
		metrics: []metric{
			{key: "ratio_slow", title: "divided : mixed, slowest users", digits: 2},
			{key: "ratio_mid", title: "best ratio between", digits: 2},
			{key: "ratio_fast", title: "fastest users", digits: 2},
			{key: "gap", title: "simulated below the ideal, mean", unit: "%", digits: 1},
		},
		checks: []check{
			within("4400/1200: better in the middle", "4400/1200", "ratio_mid", 1, inf),
			within("8192/256: better in the middle", "8192/256", "ratio_mid", 1, inf),
			within("4400/1200: gap", "4400/1200", "gap", 0, 25),
			within("8192/256: gap", "8192/256", "gap", 0, 25),
		},
	}
}

// curve compares both curves at the speeds of the divided one.
func curve(o Options, seed uint64, in, out int) (map[string]float64, error) {
	q := question(o, seed, in, out, 64)
	q.Ladder, q.Measure = []int{2, 8, 32, 96}, o.time(4*time.Minute) // answers take half a minute
	ctx := plan.Spec{GPUs: 2, Group: sharded(executor.Ctx, 1, 2)}
	ctx.Group.Core.MaxNumTokens = 4096
	gen := plan.Spec{GPUs: 8, Group: sharded(executor.Gen, 1, 8)}
	a, err := plan.Make(q, ctx, gen)
	if err != nil {
		return nil, err
	}
	var mixed []plan.Measured
	for _, chunk := range []int{256, 1024, 4096} {
		s := plan.Spec{GPUs: 8, Group: sharded(executor.Mixed, 1, 8)}
		s.Group.Core.MaxNumTokens, s.Group.Core.PrefillMixed = max(chunk, 512), chunk
		for _, n := range []int{1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96} {
			m, err := plan.Mixed(q, s, 1, n)
			if err != nil {
				return nil, err
			}
			mixed = append(mixed, m)
		}
	}
	v := map[string]float64{"ratio_mid": 0, "gap": 0}
	for i, p := range a.Points {
		m, err := plan.Check(q, ctx, gen, a, p, p.Keeps)
		if err != nil {
			return nil, err
		}
		v["gap"] += 100 * (1 - m.TPSPerGPU/p.Whole) / float64(len(a.Points))
		best := 1e-9
		for _, x := range mixed {
			if x.UserTPS >= m.UserTPS*0.98 {
				best = math.Max(best, x.TPSPerGPU)
			}
		}
		switch ratio := m.TPSPerGPU / best; i {
		case 0:
			v["ratio_fast"] = ratio
		case len(a.Points) - 1:
			v["ratio_slow"] = ratio
		default:
			v["ratio_mid"] = math.Max(v["ratio_mid"], ratio)
		}
	}
	return v, nil
}
