package tinymodel

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"tandem/engine/model"
	"tandem/engine/tensor"
)

func TestSizedModels(t *testing.T) {
	size := Size{Hidden: 64, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 16, Inter: 96, Vocab: 300, Context: 128}
	for name, write := range map[string]func(string) error{
		"sized":  func(dir string) error { return WriteSized(dir, 5, size) },
		"hollow": func(dir string) error { return WriteHollow(dir, size) },
	} {
		dir := t.TempDir()
		if err := write(dir); err != nil {
			t.Fatal(err)
		}
		c, err := model.Open(dir)
		if err != nil {
			t.Fatal(name, err)
		}
		defer c.Close()
		if g := c.Config; g.Layers != 3 || g.Vocab != 300 {
			t.Errorf("%s: %+v", name, g)
		}
		h, err := c.Tensor("blk.2.ffn_down.weight", 64, 96)
		if err != nil {
			t.Fatal(name, err)
		}
		values := make([]float32, h.Elems())
		if err := tensor.Dequantize(values, h); err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, v := range values {
			sum += float64(v) * float64(v)
		}
		want := 1.0 / 96
		if name == "hollow" {
			want = 0
		}
		if got := sum / float64(len(values)); math.Abs(got-want) > 0.2*want {
			t.Errorf("%s: variance %g, want %g", name, got, want)
		}
	}
}

// A hole takes no room, whatever the model's size.
func TestHollowTakesNoRoom(t *testing.T) {
	dir := t.TempDir()
	size := Size{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, Inter: 14336, Vocab: 300, Context: 8192}
	if err := WriteHollow(dir, size); err != nil {
		t.Skip("the file system takes no file of that size:", err)
	}
	info, err := os.Stat(filepath.Join(dir, weightsFile))
	if err != nil || info.Size() < 13<<30 {
		t.Errorf("%v, %v", info, err)
	}
}
