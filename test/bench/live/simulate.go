package live

import (
	"slices"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/transfer"
	"tandem/serve/config"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// Setup is a cluster of mixed workers of one rank, live or simulated.
type Setup struct {
	Workers   int
	Router    string // type of the frontend's
	MaxBatch  int    // requests of a step
	MaxTokens int    // rows of a step
	Blocks    int    // of a worker's pool
	Block     int    // tokens of one
}

// Keys are the workers' configuration. What the simulator does not model is off.
func (s *Setup) Keys() map[string]any {
	return map[string]any{
		"max_batch_size": s.MaxBatch, "max_num_tokens": s.MaxTokens, "disable_overlap_scheduler": true,
		"return_perf_metrics": true, // whose stages tell what a message takes
		"kv_cache_config":     map[string]any{"max_tokens": s.Blocks * s.Block, "tokens_per_block": s.Block, "enable_partial_reuse": false},
	}
}

// Core is the same for an engine's core. How steps are planned is what workers without such keys do.
func (s *Setup) Core() executor.Config {
	c, own := des.Core(executor.Mixed, s.Router), config.DefaultWorker().Core(executor.Mixed)
	c.ChunkPrefill, c.Policy, c.Chunking, c.Queue = own.ChunkPrefill, own.Policy, own.Chunking, own.Queue
	c.PrefillMixed, c.PrefillPerDecode = max(own.PrefillMixed, s.Block), own.PrefillPerDecode
	c.Blocks, c.BlockTokens, c.MaxBatch, c.MaxNumTokens, c.MaxSeqLen = s.Blocks, s.Block, s.MaxBatch, s.MaxTokens, s.Blocks*s.Block
	c.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: s.Block}
	return c
}

// Simulate runs a workload on the cluster, with what a live run has told of it: what steps cost, and the time of a message
// between client, frontend and worker. limit bounds virtual time.
func (s *Setup) Simulate(m *Model, hop time.Duration, w *workload.Workload, load schedule.Options, limit time.Duration) (*des.Result, error) {
	sim, err := des.New(des.Config{
		Seed: load.Seed, Frontends: 1, Retries: 1, Workload: w, Load: load, Measure: limit,
		Ctx: des.Group{
			Instances: s.Workers, Ranks: 1, Core: s.Core(), ADP: adprouter.DefaultSettings(), Router: router.Config{Type: s.Router}, Cost: m.Cost,
			Pace: m.pace(),
		},
		Net: des.Net{Hop: hop, Bandwidth: 1e9, RankBand: 1e9},
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the field
	}
	return sim.Run(0, nil), nil
}

// Hop is the time of a message, as a live run tells: half of what requests waited for their first token beyond the queue and the
// prefill that the worker tells of. A worker hears of a request when its step is over, which most have to wait for and the
// simulator does by itself, so the tenth that waited least counts. 0 if the run tells nothing.
func Hop(records []*result.Record) time.Duration {
	var v []float64
	for _, r := range records {
		if prefill, ok := r.Stages["prefill"]; ok {
			v = append(v, max(0, r.TTFT()-(prefill+r.Stages["ctx_queue"]+r.Stages["gen_queue"])/1000))
		}
	}
	slices.Sort(v)
	return time.Duration(result.Quantile(v, 0.1) / 2 * float64(time.Second))
}
