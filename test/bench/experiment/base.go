package experiment

import (
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/transfer"
	"tandem/serve/conversation"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/profile"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// large is a model with compressed attention on eight devices of an instance: the
// coefficients are orders of magnitude, not measured.
var large = profile.Coefficients{Iteration: 0.030, CtxToken: 0.00053, GenRequest: 0.0001, GenContext: 2e-9}

// block is the tokens of a block.
const block = 64

// group is the instances of a role of a large model.
func group(role executor.Role, instances, ranks, blocks int) des.Group {
	core := des.Core(role, router.KindConversation)
	core.BlockTokens, core.Blocks, core.MaxBatch, core.MaxNumTokens, core.MaxSeqLen, core.MaxQueued = block, blocks, 128, 2048, 1<<20, 1<<20
	core.MaxInflightBytes = 64 << 30 // a prompt of a large model has gigabytes
	core.Layout = transfer.Layout{Layers: 60, KVHeads: 1, HeadDim: 288, DType: "F16", BlockTokens: block}
	adp := adprouter.DefaultSettings()
	adp.Conversations, adp.Rehome = true, false
	return des.Group{
		Instances: instances, Ranks: ranks, Core: core, ADP: adp,
		Router: router.Config{Type: router.KindConversation, HashSkipCount: 1 << 20}, // conversations go to instances in turn

		Cost: large, Collective: time.Millisecond,
	}
}

// network is 400 Gbit/s between instances, and faster links within one.
func network() des.Net {
	return des.Net{
		Hop: time.Millisecond, Setup: time.Millisecond, Bandwidth: 40e9, MaxSends: 64, RankSetup: time.Millisecond, RankBand: 100e9,
	}
}

// agents is the workload c4: about 95 % of the prompts' blocks are there from the
// turn before. Sub-agents make it bursty, and their parents' names go along.
func agents(conversations int, seed uint64, aged int) *workload.Workload {
	return des.Aged(workload.Agentic(agentOptions(conversations, seed)), aged, seed)
}

func agentOptions(conversations int, seed uint64) workload.AgenticOptions {
	o := workload.C4(conversations, seed)
	o.First, o.Growth, o.Output = workload.LogNormal(12000, 0.6), workload.LogNormal(600, 1), workload.LogNormal(220, 0.8)
	o.Sigma, o.Keep, o.Fanout, o.Children, o.ChildTurns = 0.8, 0.1, 0.04, workload.Uniform(2, 6), workload.Geometric(4)
	return o
}

// parents is a frontend that sends sub-agents where their parents are.
var parents = conversation.Rules{ParentHeader: "X-Parent-Session-ID"}

// live is a closed loop of so many trees of conversations.
func live(n int, seed uint64) schedule.Options {
	return schedule.Options{Mode: schedule.Trees, Concurrency: n, Seed: seed}
}

// ttft and others are the figures of many experiments.
func ttft(r *des.Record) time.Duration { return r.TTFT() }
func e2e(r *des.Record) time.Duration  { return r.E2E() }

// second is the time until the second token, the first that a gen worker makes.
func second(r *des.Record) time.Duration { return r.Second - r.Send }

func quantile(key, title string, q float64, of func(*des.Record) time.Duration) metric {
	return metric{key: key, title: title, unit: "s", digits: 2, of: func(r *des.Result) float64 {
		return des.Quantile(r.Good(), q, of)
	}}
}

func average(key, title string, of func(*des.Record) time.Duration) metric {
	return metric{key: key, title: title, unit: "s", digits: 3, of: func(r *des.Result) float64 {
		good := r.Good()
		sum := 0.0
		for i := range good {
			sum += of(&good[i]).Seconds()
		}
		return sum / float64(max(len(good), 1))
	}}
}

// stages are the parts of the time to the second token.
var stages = []metric{
	average("queue_ctx", "  ctx queue", func(r *des.Record) time.Duration { return r.QueueCtx }),
	average("prefill", "  prefill", func(r *des.Record) time.Duration { return r.Prefill }),
	average("room", "  room on gen", func(r *des.Record) time.Duration { return r.Room }),
	average("kv_transfer", "  hand-over", func(r *des.Record) time.Duration { return r.Pulled }),
}

// spread is the deviation of a time.
func spread(key, title string, of func(*des.Record) time.Duration) metric {
	return metric{key: key, title: title, unit: "s", digits: 2, of: func(r *des.Result) float64 {
		good := r.Good()
		v := make([]float64, len(good))
		for i := range good {
			v[i] = of(&good[i]).Seconds()
		}
		return result.Describe(v).Std
	}}
}

var (
	p50        = quantile("ttft_p50", "TTFT p50", 0.5, ttft)
	p90        = quantile("ttft_p90", "TTFT p90", 0.9, ttft)
	p95        = quantile("ttft_p95", "TTFT p95", 0.95, ttft)
	p99        = quantile("ttft_p99", "TTFT p99", 0.99, ttft)
	meanTTFT   = average("ttft_mean", "TTFT mean", ttft)
	devTTFT    = spread("ttft_std", "TTFT deviation", ttft)
	meanE2E    = average("e2el_mean", "latency mean", e2e)
	throughput = metric{"request_throughput", "throughput", "req/s", 2, (*des.Result).Throughput}
	reuse      = metric{"block_reuse", "reuse", "%", 1, func(r *des.Result) float64 { return 100 * r.Reuse() }}
	skew       = metric{"queue_skew", "queue skew", "", 2, (*des.Result).QueueSkew}
	padded     = metric{"padded_worst", "padded, worst rank", "%", 1, func(r *des.Result) float64 { return 100 * r.PaddedWorst() }}
	pinned     = metric{"conv_skew", "conversations placed, skew", "", 2, (*des.Result).PlacedSkew}
	busy       = metric{"utilisation", "ctx ranks busy", "%", 0, func(r *des.Result) float64 { return 100 * r.Utilisation() }}
	genBusy    = metric{"gen_busy", "gen ranks busy", "%", 0, func(r *des.Result) float64 { return 100 * r.Usage(true).Busy }}
	failed     = metric{"failed", "failed requests", "", 0, func(r *des.Result) float64 { return float64(len(r.Records) - len(r.Good()) + r.Unfinished) }}
	moves      = metric{"moves", "turns that move", "%", 1, func(r *des.Result) float64 { return 100 * r.Reasons()["moved"] }}
	outputTPS  = metric{"output_throughput", "output", "tok/s", 0, func(r *des.Result) float64 {
		n := 0
		for _, rec := range r.Good() {
			n += rec.Out
		}
		return float64(n) / r.Seconds()
	}}
	leaked = metric{"kv_leak_blocks", "blocks leaked", "", 0, func(r *des.Result) float64 { return float64(r.Leaked) }}
)
