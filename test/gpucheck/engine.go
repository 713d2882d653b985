//go:build cuda

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"tandem/engine/cuda"
	"tandem/engine/cuda/measure"
	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/test/bench/profile"
	"tandem/test/gpucheck/report"
	"tandem/test/tinymodel"
)

// plan is what is measured of a model whose weights are made on the device.
type plan struct {
	name       string
	size       tinymodel.Size
	weights    tensor.DType
	context    int // of decoding
	batches    []int
	prompts    []int
	steps      int // of a timing
	grid       func(vocab, blockTokens, blocks, maxRows int) profile.Grid
	blocks     int // of the KV pool, at the most
	spare      int64
	iterations bool
}

const blockTokens = 32

// llama is the shape of Llama 3 8B.
var llama = tinymodel.Size{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Inter: 14336, Vocab: 128256, Context: 131072}

func plans() []plan {
	if tiny() {
		small := plan{
			name: "tiny", size: tinymodel.Size{Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Inter: 64, Vocab: 300, Context: 4096},
			weights: tensor.BF16, context: 40, batches: []int{1, 2}, prompts: []int{8, 24}, steps: 2, blocks: 64, iterations: true,
			grid: func(vocab, blockTokens, blocks, maxRows int) profile.Grid {
				return profile.Grid{
					Vocab: vocab, BlockTokens: blockTokens, Blocks: blocks, MaxRows: maxRows, Repeats: 1,
					CtxTokens: []int{4, 16}, CtxPrior: []int{0, 32}, GenRequests: []int{1, 2, 3}, GenContext: []int{8, 64},
				}
			},
		}
		quant := small
		quant.name, quant.weights, quant.iterations, quant.prompts = "tiny, Q4_0", tensor.Q4_0, false, nil
		return []plan{small, quant}
	}
	full := plan{
		name: "8B, bf16", size: llama, weights: tensor.BF16, context: 4096, batches: []int{1, 16, 64}, prompts: []int{1024, 8192},
		steps: 50, grid: profile.DefaultGrid, blocks: 128*(4096/blockTokens+1) + 64, spare: 8 << 30, iterations: true,
	}
	quant := full
	quant.name, quant.weights, quant.iterations, quant.blocks = "8B, Q4_0", tensor.Q4_0, false, 64*(4096/blockTokens+1)
	return []plan{full, quant}
}

// engineCommand measures whole steps of the backend.
func engineCommand(out io.Writer, _ []string) error {
	dir, err := os.MkdirTemp("", "gpucheck-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, p := range plans() {
		err = errors.Join(err, p.run(out, dir))
	}
	return err
}

func (p *plan) run(out io.Writer, dir string) error {
	if err := tinymodel.WriteHollow(dir, p.size); err != nil {
		return err
	}
	ck, err := model.Open(dir)
	if err != nil {
		return err
	}
	defer ck.Close()
	b, cfg, err := p.open(ck)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	defer b.Close()
	m := &meter{plan: p, b: b, cfg: cfg, out: out}
	for _, n := range p.batches {
		if err := m.decode(n); err != nil {
			return fmt.Errorf("%s, decode batch %d: %w", p.name, n, err)
		}
	}
	for _, n := range p.prompts {
		if err := m.prefill(n); err != nil {
			return fmt.Errorf("%s, prefill of %d: %w", p.name, n, err)
		}
	}
	return m.iterations()
}

// open makes a backend that uses what memory is free, but no more than there are cases for.
func (p *plan) open(ck *model.Checkpoint) (*cuda.Synthetic, *cuda.Config, error) {
	kv := tensor.KVShape{
		Layers: ck.Config.Layers, KVHeads: ck.Config.KVHeads, HeadDim: ck.Config.HeadDim, BlockTokens: blockTokens, DType: tensor.BF16, Blocks: 1,
	}
	free, err := freeMemory()
	if err != nil {
		return nil, nil, err
	}
	left := free - p.spare - int64(ck.Bytes())
	kv.Blocks = min(p.blocks, int(left/int64(kv.BlockBytes())))
	if kv.Blocks < 1 {
		return nil, nil, fmt.Errorf("%d bytes are free, the weights have %d and steps need %d", free, ck.Bytes(), p.spare)
	}
	cfg := &cuda.Config{KV: kv, MaxRows: 64, MaxSeqs: 16, MaxPages: kv.Blocks + 128, Graphs: []int{1, 2, 4, 8, 16, 32, 64, 128}}
	if !tiny() {
		cfg.MaxRows, cfg.MaxSeqs = 8208, 128
	}
	b, err := cuda.NewSynthetic(*cfg, p.weights)
	if err != nil {
		return nil, nil, err
	}
	if err = model.Build(b, ck, model.Parallel{}); err == nil {
		err = b.Seal(ck.Config.Vocab)
	}
	if err == nil {
		err = b.FillCache()
	}
	if err != nil {
		b.Close()
		return nil, nil, err
	}
	return b, cfg, nil
}

// meter measures an opened backend.
type meter struct {
	*plan
	b   *cuda.Synthetic
	cfg *cuda.Config
	out io.Writer
}

// batch is seqs sequences of rows tokens behind prior ones, each with blocks of its own; nil if the
// pool is too small.
func (m *meter) batch(seqs, prior, rows int) *tensor.Batch {
	pages := (prior + rows + blockTokens - 1) / blockTokens
	if seqs*pages > m.cfg.KV.Blocks {
		return nil
	}
	var b tensor.Batch
	b.Reset()
	for s := range seqs {
		ids, tokens := make([]int32, pages), make([]int32, rows)
		for i := range ids {
			ids[i] = int32(i*seqs + s) // neighbours belong to different sequences
		}
		for i := range tokens {
			tokens[i] = int32((s*rows + i) * 7919 % m.size.Vocab)
		}
		b.Add(tokens, prior, ids, true)
	}
	return &b
}

func greedy(b *tensor.Batch) []tensor.Pick {
	return slices.Repeat([]tensor.Pick{{TopP: 1, Logprobs: -1}}, len(b.LogitRows))
}

// skip says that the pool is too small.
func (m *meter) skip(l report.Line) error {
	l.Status, l.Note = report.Skipped, fmt.Sprintf("needs more than the %d tokens that there is memory for", m.cfg.KV.Blocks*blockTokens)
	return l.Write(m.out)
}

func (m *meter) decode(seqs int) error {
	l := report.Line{Step: report.Decode, Model: m.name, Result: measure.Result{Batch: seqs, Context: m.context}}
	batch := m.batch(seqs, m.context-1, 1)
	if batch == nil {
		return m.skip(l)
	}
	t, err := m.b.TimeDecode(batch, greedy(batch), m.steps)
	if err != nil {
		return err
	}
	picked, _, err := m.b.RunPick(batch, greedy(batch))
	if err != nil {
		return err
	}
	for i := range picked {
		if picked[i].State != tensor.PickedOne {
			return fmt.Errorf("row %d has logits that are no numbers", i) // which could be faster than numbers
		}
	}
	kv := m.cfg.KV
	perToken := int64(kv.BlockBytes() / kv.BlockTokens)
	l.Seconds, l.Gap = t.Wall.Seconds(), t.Gap().Seconds()
	l.Bytes = float64(m.b.Cost().WeightBytes + int64(seqs*m.context)*perToken)
	return l.Write(m.out)
}

func (m *meter) prefill(tokens int) error {
	l := report.Line{Step: report.Prefill, Model: m.name, Result: measure.Result{Rows: tokens}}
	batch := m.batch(1, 0, tokens)
	if batch == nil {
		return m.skip(l)
	}
	var times []float64
	for i := range 4 {
		begin := time.Now()
		if _, _, err := m.b.RunPick(batch, greedy(batch)); err != nil {
			return err
		}
		if i > 0 { // the first makes plans
			times = append(times, time.Since(begin).Seconds())
		}
	}
	slices.Sort(times)
	n := float64(tokens)
	l.Seconds = times[len(times)/2]
	l.Flop = 2*float64(m.b.Cost().LayerElems)*n + 2*float64(m.size.Layers*m.size.Heads*m.size.HeadDim)*n*n
	return l.Write(m.out)
}

// device runs batches for the grid of iterations: the choice of tokens is the device's, as in an engine.
type device struct{ b *cuda.Synthetic }

// Run implements profile.Device.
func (d device) Run(batch *tensor.Batch) ([]float32, error) {
	_, logits, err := d.b.RunPick(batch, greedy(batch))
	return logits, err
}

// iterations are for the throughput model.
func (m *meter) iterations() error {
	if !m.plan.iterations {
		return nil
	}
	g := m.grid(m.size.Vocab, blockTokens, m.cfg.KV.Blocks, m.cfg.MaxRows)
	var wrote error
	_, err := g.Measure(device{m.b}, func(_, _ int, p profile.Point) {
		wrote = errors.Join(wrote, p.WriteLine(m.out, m.name, m.b.Device().Name))
	})
	return errors.Join(err, wrote)
}
