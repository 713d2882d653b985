package tinymodel

import (
	"testing"

	"tandem/engine/model"
	"tandem/engine/model/reference"
	"tandem/engine/tensor"
)

func openReference(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape) Backend {
	t.Helper()
	b, err := reference.New(kv)
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Build(b, ck, model.Parallel{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// The reference backend must agree with the second implementation's float32
// run on every architecture, format and scaling.
func TestReferenceAgrees(t *testing.T) {
	models, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	if len(models) != 19 {
		t.Errorf("%d models, want 19", len(models))
	}
	for _, m := range models {
		t.Run(m.Name, func(t *testing.T) { Check(t, m, openReference, Tolerance{Abs: 1e-4, Rel: 1e-4}) })
	}
}

// Loading as F32 changes the storage and no value.
func TestAsF32IsTheSameModel(t *testing.T) {
	for _, name := range []string{"gguf-llama-quant", "qwen3", "qwen3-fp8"} {
		m, err := Get(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			Check(t, m, openReference, Tolerance{Abs: 1e-4, Rel: 1e-4}, model.AsF32())
		})
	}
}
