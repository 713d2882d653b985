package numerics

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"tandem/engine/cpu"
	"tandem/engine/hub"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

const blockTokens = 16

// open loads the default model on the CPU backend.
func open(t *testing.T, kv tensor.DType, isa string, opts ...model.Option) *cpu.Backend {
	t.Helper()
	return build(t, cpu.Config{ISA: isa}, kv, func(b *cpu.Backend) model.Ops { return b }, opts...)
}

// build loads the default model on a CPU backend as cfg says, through the ops around
// it; it skips where the model has not been fetched (make test fetches it).
func build(t *testing.T, cfg cpu.Config, kv tensor.DType, around func(*cpu.Backend) model.Ops, opts ...model.Option) *cpu.Backend {
	t.Helper()
	path, err := hub.Locate(hub.DefaultModel)
	if errors.Is(err, hub.ErrNotPulled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	c := ck.Config
	shape := tensor.KVShape{Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim, BlockTokens: blockTokens, Blocks: 64, DType: kv}
	cfg.KV, cfg.MaxRows = shape, 1024
	b, err := cpu.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := errors.Join(model.Build(around(b), ck, model.Parallel{}), b.Seal(c.Vocab)); err != nil {
		t.Fatal(err)
	}
	return b
}

// fit sums up how near rows of logits are to others.
type fit struct {
	n         int
	kl, agree float64
}

// add compares the probabilities that logits give with those of ref, whose first
// entry is the most likely token.
func (f *fit) add(ref []entry, logits []float32) {
	f.n++
	f.kl += divergence(ref, logits)
	if argmax(logits) == ref[0].id {
		f.agree++
	}
}

func (f *fit) mean() (kl, agree float64) { return f.kl / float64(f.n), f.agree / float64(f.n) }

func (f fit) String() string {
	kl, agree := f.mean()
	return fmt.Sprintf("%d positions, mean KL %.2e, top-1 agreement %.2f %%", f.n, kl, 100*agree)
}

// logits runs a text and returns a row for each position that has a reference.
func logits(t *testing.T, b *cpu.Backend, x text) (rows [][]float32) {
	t.Helper()
	pages := make([]int32, 64)
	for i := range pages {
		pages[i] = int32(i)
	}
	var batch tensor.Batch
	batch.Reset()
	batch.Add(x.ids, 0, pages[:(len(x.ids)+blockTokens-1)/blockTokens], false)
	for p := x.first; p < len(x.ids); p++ {
		batch.LogitRows = append(batch.LogitRows, int32(p))
	}
	all, err := b.Run(&batch)
	if err != nil {
		t.Fatal(err)
	}
	vocab := len(all) / len(batch.LogitRows)
	for ; len(all) > 0; all = all[vocab:] {
		rows = append(rows, all[:vocab])
	}
	return rows
}

// compare runs texts and returns how near the model is to their reference.
func compare(t *testing.T, b *cpu.Backend, texts []text) (f fit) {
	t.Helper()
	for _, x := range texts {
		for i, row := range logits(t, b, x) {
			f.add(x.top[i], row)
		}
	}
	return f
}

func TestLogitsAgreeWithTransformers(t *testing.T) {
	texts := readReference(t)
	if len(texts) < 40 {
		t.Fatalf("the reference has only %d texts", len(texts))
	}
	for _, tc := range []struct {
		name   string
		kv     tensor.DType
		isa    string
		opts   []model.Option
		texts  []text
		atMost float64 // mean divergence
		agree  float64
	}{
		{"quantised, best instruction set", tensor.BF16, "", nil, texts, 2e-3, 0.99},
		{"quantised, avx2", tensor.BF16, "avx2", nil, texts[:10], 2e-3, 0.99},
		{"quantised, portable", tensor.BF16, "portable", nil, texts[:2], 2e-3, 0.98},
		{"quantised, int8 cache", tensor.I8, "", nil, texts, 2e-3, 0.98},
		{"float32", tensor.F32, "", []model.Option{model.AsF32()}, texts, 1e-5, 0.999},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if testing.Short() && tc.isa != "" {
				t.Skip("slow instruction sets are left out of short runs")
			}
			f := compare(t, open(t, tc.kv, tc.isa, tc.opts...), tc.texts)
			kl, agree := f.mean()
			t.Log(f)
			if kl > tc.atMost || kl < -1e-6 || agree < tc.agree {
				t.Errorf("mean KL %.2e (at most %.0e), agreement %.2f %% (at least %.1f %%)", kl, tc.atMost, 100*agree, 100*tc.agree)
			}
		})
	}
}

// Activations of 8 bits, the default, pass the gate of weights of 8 bits: a divergence of
// 1e-3, 98 % of the first choices, and half a percent of perplexity. Beside a cache of
// bytes they are held to what that is.
func TestActivationsOfEightBits(t *testing.T) {
	texts := readReference(t)
	exact := perplexity(t, open(t, tensor.F32, "", model.AsF32()), texts)
	for _, tc := range []struct {
		kv            tensor.DType
		atMost, agree float64
	}{{tensor.BF16, 1e-3, 0.98}, {tensor.I8, 2e-3, 0.97}} {
		b := build(t, cpu.Config{Activations: cpu.Activations8}, tc.kv, func(b *cpu.Backend) model.Ops { return b })
		f, ppl := compare(t, b, texts), perplexity(t, b, texts)
		t.Logf("%s cache: %v, perplexity %.4f, in float32 %.4f", tc.kv, f, ppl, exact)
		if kl, agree := f.mean(); kl > tc.atMost || agree < tc.agree || math.Abs(ppl/exact-1) > 0.005 {
			t.Errorf("%s cache: %v, perplexity %.4f of %.4f: want a divergence of at most %.0e, %.0f %%, and a perplexity within 0.5 %%",
				tc.kv, f, ppl, exact, tc.atMost, 100*tc.agree)
		} else if kl < 1e-4 {
			t.Errorf("%s cache: %v: that is of activations of 16 bits", tc.kv, f)
		}
	}
}

// perplexity is that of the texts' positions with a reference.
func perplexity(t *testing.T, b *cpu.Backend, texts []text) float64 {
	t.Helper()
	sum, n := 0.0, 0
	for _, x := range texts {
		for i, row := range logits(t, b, x) {
			if next := x.first + i + 1; next < len(x.ids) {
				sum += logSumExp(row) - float64(row[x.ids[next]])
				n++
			}
		}
	}
	return math.Exp(sum / float64(n))
}
