package tinymodel

import (
	"testing"

	"tandem/engine/cpu"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

// cpuRunner splits the CPU backend's flat logits into rows.
type cpuRunner struct {
	b     *cpu.Backend
	vocab int
}

func (r cpuRunner) Run(batch *tensor.Batch) ([][]float32, error) {
	flat, err := r.b.Run(batch)
	if err != nil {
		return nil, err
	}
	var rows [][]float32
	for i := range batch.LogitRows {
		rows = append(rows, append([]float32(nil), flat[i*r.vocab:(i+1)*r.vocab]...))
	}
	return rows, nil
}

func openCPU(isa string) Open {
	return func(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape) Backend {
		t.Helper()
		b, err := cpu.New(cpu.Config{Threads: 2, KV: kv, MaxRows: 256, ISA: isa})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		if err := model.Build(b, ck, model.Parallel{}); err != nil {
			t.Fatal(err)
		}
		if err := b.Seal(ck.Config.Vocab); err != nil {
			t.Fatal(err)
		}
		return cpuRunner{b, ck.Config.Vocab}
	}
}

// The CPU backend with float32 weights must meet the same tolerance as the
// reference, at every instruction set level of the machine.
func TestCPUAgrees(t *testing.T) {
	models, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	for _, isa := range []string{"portable", "avx2", "avx512", "amx"} {
		if b, err := cpu.New(cpu.Config{Threads: 1, MaxRows: 1, ISA: isa, KV: tensor.KVShape{
			Layers: 1, KVHeads: 1, HeadDim: 32, BlockTokens: BlockTokens, Blocks: 1, DType: tensor.F32,
		}}); err != nil {
			t.Logf("skipped: %v", err)
			continue
		} else {
			b.Close()
		}
		for _, m := range models {
			t.Run(isa+"/"+m.Name, func(t *testing.T) {
				Check(t, m, openCPU(isa), Tolerance{Abs: 1e-4, Rel: 1e-4}, model.AsF32())
			})
		}
	}
}

// Quantised weights meet activations rounded to eight bits, so the tolerance is
// that of the arithmetic: a wrong scale or a swapped nibble is far outside it.
func TestCPUQuantised(t *testing.T) {
	models, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		t.Run(m.Name, func(t *testing.T) { Check(t, m, openCPU(""), Tolerance{Abs: 0.05, Rel: 0.03}) })
	}
}
