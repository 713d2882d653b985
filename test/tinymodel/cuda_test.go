//go:build cuda

package tinymodel

import (
	"fmt"
	"os"
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
	b, err := cuda.New(cuda.Config{KV: kv, MaxRows: 256, MaxSeqs: 64, MaxPages: 1024, Graphs: []int{1, 2, 4, 8}})
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

// Weights, activations and the cache are bf16, so the tolerance is that of eight
// bits through a few layers.
func TestCUDAAgrees(t *testing.T) {
	models, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		t.Run(m.Name, func(t *testing.T) { Check(t, m, openCUDA, Tolerance{Abs: 0.15, Rel: 0.05}) })
	}
}

// A cache of other elements loses little more: fp8 has three bits behind the point.
func TestCUDACacheTypes(t *testing.T) {
	m, err := Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	for cache, tol := range map[tensor.DType]Tolerance{tensor.F16: {Abs: 0.15, Rel: 0.05}, tensor.F8: {Abs: 1.2, Rel: 0.1}} {
		t.Run(cache.String(), func(t *testing.T) { Check(t, m, openCUDAWith(cache), tol) })
	}
}
