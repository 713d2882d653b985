//go:build cuda

package tinymodel

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"tandem/engine/cuda"
	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/kernels/cuda/emu"
)

// The tests run on the emulator, or, with TANDEM_GPU=1, on the machine's device.
func TestMain(m *testing.M) {
	if os.Getenv("TANDEM_GPU") == "" {
		lib, err := emu.Build()
		if err == nil {
			err = lib.Setenv()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// cudaRunner splits the flat logits into rows.
type cudaRunner struct {
	b     *cuda.Backend
	vocab int
}

func (r cudaRunner) Run(batch *tensor.Batch) ([][]float32, error) {
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

func openCUDA(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape) Backend {
	t.Helper()
	return openCUDAWith(tensor.BF16)(t, ck, kv)
}

func openCUDAWith(cache tensor.DType) Open {
	return func(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape) Backend {
		return cudaBackend(t, ck, kv, cache)
	}
}

func cudaBackend(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape, cache tensor.DType) Backend {
	t.Helper()
	kv.DType = cache
	return openCUDAConfig(t, ck, cuda.Config{KV: kv, MaxRows: 256, MaxSeqs: 64, MaxPages: 1024, Graphs: []int{1, 2, 4, 8}})
}

func openCUDAConfig(t testing.TB, ck *model.Checkpoint, cfg cuda.Config) cudaRunner {
	t.Helper()
	b, err := cuda.New(cfg)
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
	return cudaRunner{b, ck.Config.Vocab}
}

// cudaModels are those that CUDA runs: none with windows, within which a worker keeps requests of the others.
func cudaModels(t *testing.T) (out []Model) {
	t.Helper()
	models, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		ck, err := model.Open(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		if len(ck.Config.Windows) == 0 {
			out = append(out, m)
		}
		_ = ck.Close()
	}
	return out
}

// A window is refused, not overlooked.
func TestCUDARefusesWindows(t *testing.T) {
	m, err := Get("mistral-window")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	b, err := cuda.New(cuda.Config{KV: KVShape(ck, 16, tensor.BF16), MaxRows: 256, MaxSeqs: 64, MaxPages: 1024})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := model.Build(b, ck, model.Parallel{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Seal(ck.Config.Vocab); err == nil || !strings.Contains(err.Error(), "window") {
		t.Errorf("a model with a window: %v", err)
	}
}

// Weights, activations and the cache are bf16, so the tolerance is that of eight
// bits through a few layers.
func TestCUDAAgrees(t *testing.T) {
	for _, m := range cudaModels(t) {
		t.Run(m.Name, func(t *testing.T) { Check(t, m, openCUDA, Tolerance{Abs: 0.15, Rel: 0.05}) })
	}
}

// FP8 weights of a checkpoint stay FP8 on the device.
func TestCUDAKeepsFP8(t *testing.T) {
	m, err := Get("qwen3-fp8")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	b := cudaBackend(t, ck, KVShape(ck, 16, tensor.BF16), tensor.BF16).(cudaRunner).b
	if info := b.Info(); !strings.Contains(info, " 4 graphs") { // made before any step
		t.Errorf("%s: want 4 graphs", info)
	}
	if got, most := b.MemoryReport().WeightBytes, ck.Bytes()*11/10; got > most {
		t.Errorf("%d bytes of weights on the device, the file has %d", got, ck.Bytes())
	}
}

// spread is the root mean square of what two sets of logits differ by, as a part of that of want. Single logits may be
// far off where the cache has few bits; all of them together may not.
func spread(got [][][]float32, m Model) float64 {
	var off, all float64
	for i, s := range m.Sequences {
		for pos, want := range s.Logits {
			for j, w := range want {
				d := float64(got[i][pos][j] - w)
				off, all = off+d*d, all+float64(w)*float64(w)
			}
		}
	}
	return math.Sqrt(off / all)
}

// Logits as a whole are much nearer than single ones may be: by about 1/128, the rounding of bf16, and with an fp8 cache,
// which has three bits behind the point, by a twentieth.
func TestCUDALosesLittle(t *testing.T) {
	for _, m := range cudaModels(t) {
		loses(t, m, tensor.BF16, 0.0125)
	}
	m, err := Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	loses(t, m, tensor.F16, 0.0125)
	loses(t, m, tensor.F8, 0.08)
}

func loses(t *testing.T, m Model, cache tensor.DType, most float64) {
	t.Helper()
	ck, err := model.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	for _, chunk := range []int{1 << 20, 1} {
		t.Run(fmt.Sprintf("%s, %s, chunk %d", m.Name, cache, chunk), func(t *testing.T) {
			got, err := Logits(cudaBackend(t, ck, KVShape(ck, 16, cache), cache), m.Sequences, chunk)
			if err != nil {
				t.Fatal(err)
			}
			off := spread(got, m)
			t.Logf("off by %.4f", off)
			if off > most {
				t.Errorf("logits are off by %.3f of their size, at most %.3f are rounding", off, most)
			}
		})
	}
}
