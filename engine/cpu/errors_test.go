package cpu

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/pass"
	"tandem/engine/tensor"
)

func f32At(block []byte, i int) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(block[4*i:])))
}

func bf16At(block []byte, i int) float64 {
	return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(block[2*i:])) << 16))
}

var tinyShape = shape{layers: 1, hidden: 32, heads: 2, kvHeads: 1, headDim: 16, inter: 32, vocab: 10, dtype: tensor.F32}

func tinyConfig() Config {
	return Config{Threads: 1, MaxRows: 8, KV: tensor.KVShape{Layers: 1, KVHeads: 1, HeadDim: 16, BlockTokens: 16, Blocks: 4, DType: tensor.BF16}}
}

func TestRunRefusesBadBatches(t *testing.T) {
	b := build(t, newWeights(tinyShape, 1), tinyConfig())
	good := func() *tensor.Batch {
		var batch tensor.Batch
		batch.Reset()
		batch.Add([]int32{1, 2}, 15, []int32{0, 3}, true)
		batch.Add([]int32{4}, 0, []int32{2}, true)
		return &batch
	}
	for name, breakIt := range map[string]func(*tensor.Batch){
		"token negative":      func(b *tensor.Batch) { b.Tokens[1] = -1 },
		"token too large":     func(b *tensor.Batch) { b.Tokens[2] = 10 },
		"block negative":      func(b *tensor.Batch) { b.Pages[0] = -1 },
		"block too large":     func(b *tensor.Batch) { b.Pages[1] = 4 },
		"position negative":   func(b *tensor.Batch) { b.PosStart[0] = -1 },
		"position past pages": func(b *tensor.Batch) { b.PosStart[1] = 16 },
		"position overflows":  func(b *tensor.Batch) { b.PosStart[1] = math.MaxInt32 },
		"row start":           func(b *tensor.Batch) { b.RowStart[1] = 3 },
		"row start negative":  func(b *tensor.Batch) { b.RowStart[1] = -1 },
		"row start first":     func(b *tensor.Batch) { b.RowStart[0] = 1 },
		"rows uncovered":      func(b *tensor.Batch) { b.RowStart[2] = 2 },
		"no row starts":       func(b *tensor.Batch) { b.RowStart = nil },
		"page start":          func(b *tensor.Batch) { b.PageStart[1] = 4 },
		"page start negative": func(b *tensor.Batch) { b.PageStart[0] = -1 },
		"page start falls":    func(b *tensor.Batch) { b.PageStart[2] = 1 },
		"no page starts":      func(b *tensor.Batch) { b.PageStart = b.PageStart[:2] },
		"logit row":           func(b *tensor.Batch) { b.LogitRows[1] = 3 },
		"logit row negative":  func(b *tensor.Batch) { b.LogitRows[0] = -1 },
		"logit rows equal":    func(b *tensor.Batch) { b.LogitRows[0] = 2 },
		"too many rows":       func(b *tensor.Batch) { b.Add(make([]int32, 6), 0, []int32{1}, false) },
		"nothing at all":      func(b *tensor.Batch) { *b = tensor.Batch{} },
	} {
		t.Run(name, func(t *testing.T) {
			batch := good()
			if _, err := b.Run(batch); err != nil {
				t.Fatalf("good batch: %v", err)
			}
			breakIt(batch)
			if _, err := b.Run(batch); !errors.Is(err, pass.ErrBatch) {
				t.Fatalf("got %v, want pass.ErrBatch", err)
			}
		})
	}
}

func TestRunAllowsNoRows(t *testing.T) {
	b := build(t, newWeights(tinyShape, 1), tinyConfig())
	var batch tensor.Batch
	batch.Reset()
	if logits, err := b.Run(&batch); err != nil || len(logits) != 0 {
		t.Fatalf("got %d logits and %v", len(logits), err)
	}
	batch.Add([]int32{1, 2, 3}, 0, []int32{1}, false)
	if logits, err := b.Run(&batch); err != nil || len(logits) != 0 {
		t.Fatalf("without logit rows: %d logits and %v", len(logits), err)
	}
}

func TestRunDoesNotAllocate(t *testing.T) {
	b := build(t, newWeights(tinyShape, 1), tinyConfig())
	var batch tensor.Batch
	batch.Reset()
	batch.Add([]int32{1, 2, 3}, 0, []int32{1}, true)
	if n := testing.AllocsPerRun(20, func() { _, _ = b.Run(&batch) }); n != 0 {
		t.Fatalf("%g allocations a step", n)
	}
}

func TestConfigErrorsNameTheKey(t *testing.T) {
	for key, change := range map[string]func(*Config){
		"threads":          func(c *Config) { c.Threads = -1 },
		"max_num_tokens":   func(c *Config) { c.MaxRows = 0 },
		"tokens_per_block": func(c *Config) { c.KV.BlockTokens = 4 },
		"dtype":            func(c *Config) { c.KV.DType = tensor.F16 },
		"head dimension":   func(c *Config) { c.KV.HeadDim = 40 },
		"layers":           func(c *Config) { c.KV.Layers = 0 },
		"blocks":           func(c *Config) { c.KV.Blocks = math.MaxInt / 4096 },
		"instruction set":  func(c *Config) { c.ISA = "mmx" },
		"activations":      func(c *Config) { c.Activations = 2 },
	} {
		cfg := tinyConfig()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v", key, err)
		}
	}
}

func TestLoadErrorsNameTheTensor(t *testing.T) {
	b, err := New(tinyConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	short := host("blk.0.w", tensor.F32, make([]float32, 64), 2, 32)
	short.Data = short.Data[:100]
	odd := tensor.Host{Name: "blk.0.w", DType: tensor.Q8_0, Shape: []int{1, 33}, Data: make([]byte, 68)}
	narrow, wide := host("blk.0.w", tensor.F32, make([]float32, 32), 2, 16), host("b", tensor.F32, make([]float32, 64), 2, 32)
	for name, load := range map[string]func() error{
		"short data":      func() error { _, err := b.Matrix(short); return err },
		"odd groups":      func() error { _, err := b.Matrix(odd); return err },
		"unequal columns": func() error { _, err := b.Matrix(wide, narrow); return err },
		"unequal rows": func() error {
			_, err := b.GateUp(narrow, host("u", tensor.F32, make([]float32, 48), 3, 16))
			return err
		},
		"quantised vector": func() error {
			_, err := b.Vector(tensor.Host{Name: "blk.0.w", DType: tensor.Q8_0, Shape: []int{32}, Data: make([]byte, 34)})
			return err
		},
		"short vector": func() error { _, err := b.Vector(short); return err },
	} {
		if err := load(); err == nil || !strings.Contains(err.Error(), "blk.0.w") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := b.Matrix(); err == nil {
		t.Error("a matrix of nothing was accepted")
	}
}

func TestVectorTypes(t *testing.T) {
	b, err := New(tinyConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	le := binary.LittleEndian
	half := le.AppendUint16(le.AppendUint16(le.AppendUint16(nil, 0x3c00), 0xc500), 0x0001)
	v, err := b.Vector(host("a", tensor.F32, []float32{1.5}, 1),
		tensor.Host{Name: "b", DType: tensor.F16, Shape: []int{3}, Data: half},
		tensor.Host{Name: "c", DType: tensor.BF16, Shape: []int{1}, Data: le.AppendUint16(nil, 0xbf80)})
	if err != nil {
		t.Fatal(err)
	}
	if want := []float32{1.5, 1, -5, 1.0 / (1 << 24), -1}; !slices.Equal(b.vectors[v], want) {
		t.Fatalf("got %v, want %v", b.vectors[v], want)
	}
}

func TestSealReportsTheFirstRecordingError(t *testing.T) {
	rope := tensor.RoPE{Dims: 16, InvFreq: make([]float32, 8), Scale: 1}
	for want, rec := range map[string]func(b *Backend, x, q tensor.Buffer, m tensor.Matrix, v tensor.Vector){
		"no embedding": func(*Backend, tensor.Buffer, tensor.Buffer, tensor.Matrix, tensor.Vector) {},
		"embed: output is 32 wide, must be 16": func(b *Backend, x, _ tensor.Buffer, m tensor.Matrix, _ tensor.Vector) {
			b.Embed(x, m)
			b.Embed(99, 99)
		},
		"layer 1, the KV cache has 1": func(b *Backend, x, q tensor.Buffer, m tensor.Matrix, v tensor.Vector) {
			b.Attention(q, x, tensor.Attn{Layer: 1, Heads: 2, KVHeads: 1, HeadDim: 16})
		},
		"QKV has 64 rows": func(b *Backend, x, q tensor.Buffer, m tensor.Matrix, v tensor.Vector) {
			b.AttnInput(q, x, tensor.AttnInput{Norm: v, QKV: m, Bias: -1, QNorm: -1, KNorm: -1, Heads: 1, KVHeads: 1, HeadDim: 16, RoPE: rope})
		},
		"rotation of 15": func(b *Backend, x, q tensor.Buffer, m tensor.Matrix, v tensor.Vector) {
			b.AttnInput(q, x, tensor.AttnInput{
				Norm: v, QKV: m, Bias: -1, QNorm: -1, KNorm: -1, Heads: 2, KVHeads: 1, HeadDim: 16, RoPE: tensor.RoPE{Dims: 15},
			})
		},
		"same buffer":  func(b *Backend, x, _ tensor.Buffer, m tensor.Matrix, _ tensor.Vector) { b.AddLinear(x, x, m, -1) },
		"GateUp":       func(b *Backend, x, q tensor.Buffer, m tensor.Matrix, v tensor.Vector) { b.GatedMLP(q, x, v, 0, m) },
		"not a vector": func(b *Backend, x, _ tensor.Buffer, m tensor.Matrix, _ tensor.Vector) { b.Logits(x, 5, 0, m, nil) },
		"width 0":      func(b *Backend, _, _ tensor.Buffer, _ tensor.Matrix, _ tensor.Vector) { b.Buffer(0) },
	} {
		b, err := New(tinyConfig())
		if err != nil {
			t.Fatal(err)
		}
		m, _ := b.Matrix(host("w", tensor.F32, make([]float32, 64*16), 64, 16))
		v, _ := b.Vector(host("v", tensor.F32, make([]float32, 16), 16))
		rec(b, b.Buffer(32), b.Buffer(32), m, v)
		if err := b.Seal(64); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		b.Close()
	}
}

func TestClosedAndUnsealedBackends(t *testing.T) {
	b, err := New(tinyConfig())
	if err != nil {
		t.Fatal(err)
	}
	var batch tensor.Batch
	batch.Reset()
	if _, err := b.Run(&batch); err == nil {
		t.Error("an unsealed backend ran")
	}
	record(t, b, newWeights(tinyShape, 1))
	if err := b.Seal(11); err == nil || !strings.Contains(err.Error(), "vocabulary 11") {
		t.Errorf("wrong vocabulary: got %v", err)
	}
	b.Close()
	b.Close()
	if _, err := b.Run(&batch); !errors.Is(err, ErrClosed) {
		t.Errorf("run: got %v", err)
	}
	if _, err := b.Matrix(); !errors.Is(err, ErrClosed) {
		t.Errorf("matrix: got %v", err)
	}
	if b.Block(0) != nil || b.CopyBlockPrefix(0, 1, 1) == nil || b.Seal(10) == nil {
		t.Error("a closed backend still answers")
	}
}

func TestBlockIDs(t *testing.T) {
	b := build(t, newWeights(tinyShape, 1), tinyConfig())
	for _, id := range []int32{-1, 4} {
		if b.Block(id) != nil || !errors.Is(b.CopyBlockPrefix(id, 0, 1), pass.ErrBatch) || !errors.Is(b.CopyBlockPrefix(0, id, 1), pass.ErrBatch) {
			t.Errorf("block %d of 4 was accepted", id)
		}
	}
	if !errors.Is(b.CopyBlockPrefix(0, 1, 17), pass.ErrBatch) {
		t.Error("17 tokens of 16 were accepted")
	}
}

// threadCount returns how many threads this process has.
func threadCount(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skipf("no thread list on this system: %v", err)
	}
	return len(tasks)
}

func TestCloseEndsTheThreads(t *testing.T) {
	w := newWeights(tinyShape, 1)
	cfg := tinyConfig()
	cfg.Threads = 40
	b := build(t, w, cfg)
	var batch tensor.Batch
	batch.Reset()
	batch.Add([]int32{1, 2, 3}, 0, []int32{1}, true)
	if _, err := b.Run(&batch); err != nil {
		t.Fatal(err)
	}
	with := threadCount(t)
	b.Close()
	// One that was waited for is listed a moment longer, and the Go runtime may add a thread or two of its own meanwhile.
	for end := time.Now().Add(30 * time.Second); threadCount(t) > with-35; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d threads before Close, %d after", with, threadCount(t))
		}
	}
}

func TestReports(t *testing.T) {
	var names []string
	cfg := tinyConfig()
	cfg.Loaded = func(name string, bytes int) { names = append(names, name) }
	b := build(t, newWeights(tinyShape, 1), cfg)
	r := b.MemoryReport()
	if r.KVBytes != 4*cfg.KV.BlockBytes() || r.WeightBytes == 0 || r.ActivationBytes == 0 || r.Threads != 1 || r.Device == "" {
		t.Errorf("got %+v", r)
	}
	if len(names) != 9 || !strings.Contains(b.Info(), "1 threads") {
		t.Errorf("%d tensors reported, info %q", len(names), b.Info())
	}
}
