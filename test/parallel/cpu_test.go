package parallel

import (
	"testing"

	"tandem/engine/comm"
	"tandem/engine/cpu"
	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/test/tinymodel"
)

// cpuDevice splits the CPU backend's flat logits into rows of its own.
type cpuDevice struct {
	*cpu.Backend
	vocab int
}

func (d cpuDevice) Run(batch *tensor.Batch) (rows [][]float32, err error) {
	flat, err := d.Backend.Run(batch)
	for len(flat) > 0 {
		rows = append(rows, append([]float32(nil), flat[:d.vocab]...))
		flat = flat[d.vocab:]
	}
	return rows, err
}

// openCPU makes devices with weights of their own, or in a store.
func openCPU(isa string, store *cpu.Store) open {
	return func(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape, p model.Parallel, rank *comm.Rank) tinymodel.Backend {
		t.Helper()
		cfg := cpu.Config{Threads: 1, KV: kv, MaxRows: 256, ISA: isa, Store: store}
		if rank != nil {
			cfg.Group = rank
		}
		b, err := cpu.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		if err := model.Build(b, ck, p); err != nil {
			t.Fatal(err)
		}
		if err := b.Seal(ck.Config.Vocab); err != nil {
			t.Fatal(err)
		}
		return cpuDevice{b, ck.Config.Vocab}
	}
}

var (
	local = []mode{
		tp(1), tp(2), tp(3), tp(4),
		adp(1), adp(2), adp(3), adp(4), attentionDP(2, true), attentionDP(4, true),
	}
	spread = []mode{tp(2).over(1), tp(3).over(1), adp(4).over(2), attentionDP(3, true).over(2)}
)

// Float32 weights and cache: the ranks give the bits of one rank, which agrees
// with the second implementation.
func TestRanksInFloat32(t *testing.T) {
	checkAll(t, tinymodel.Tolerance{Abs: 1e-4, Rel: 1e-4}, model.AsF32())
}

// Weights as they are stored. One rank is only as near to the second
// implementation as integer weights and activations are.
func TestRanksGiveTheBitsOfOne(t *testing.T) { checkAll(t, quantised) }

var quantised = tinymodel.Tolerance{Abs: 0.05, Rel: 0.03}

func checkAll(t *testing.T, tol tinymodel.Tolerance, opts ...model.Option) {
	models, err := tinymodel.Models()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		t.Run(m.Name, func(t *testing.T) { check(t, m.Name, local, openCPU("", nil), tol, opts...) })
	}
}

// As many ranks as heads or experts allow.
func TestManyRanks(t *testing.T) {
	for name, modes := range map[string][]mode{
		"qwen2-odd":           {tp(5), tp(9), attentionDP(6, true)},
		"gguf-qwen3moe-quant": {adp(5), adp(7)},
		"qwen3moe-mixed":      {attentionDP(7, true), adp(6).over(1)},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, name, modes, openCPU("", nil), quantised)
		})
	}
}

func TestRanksOfTwoProcesses(t *testing.T) {
	for _, name := range []string{"qwen2-odd", "gguf-llama-quant", "gguf-qwen3moe-quant", "qwen3moe-mixed"} {
		t.Run(name, func(t *testing.T) {
			check(t, name, spread, openCPU("", nil), quantised)
		})
	}
}

func TestRanksAtOtherInstructionSets(t *testing.T) {
	for _, isa := range []string{"portable", "avx2"} {
		b, err := cpu.New(cpu.Config{Threads: 1, MaxRows: 1, ISA: isa, KV: tensor.KVShape{
			Layers: 1, KVHeads: 1, HeadDim: 32, BlockTokens: tinymodel.BlockTokens, Blocks: 1, DType: tensor.F32,
		}})
		if err != nil {
			t.Logf("skipped: %v", err)
			continue
		}
		b.Close()
		for _, name := range []string{"qwen2-odd", "gguf-qwen3moe-quant"} {
			t.Run(isa+"/"+name, func(t *testing.T) {
				check(t, name, []mode{tp(3), tp(4), adp(4)}, openCPU(isa, nil), quantised)
			})
		}
	}
}
