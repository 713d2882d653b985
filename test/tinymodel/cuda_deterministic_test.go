//go:build cuda

package tinymodel

import (
	"fmt"
	"math"
	"testing"

	"tandem/engine/cuda"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

// With Deterministic a row's logits have the same bits alone, beside others, in
// chunks of any size and in steps that are captured: for plain and quantised
// weights, FP8 and experts.
func TestCUDADeterministic(t *testing.T) {
	for _, name := range []string{"qwen3", "gguf-llama-quant", "qwen3moe-mixed", "qwen3-fp8"} {
		m, err := Get(name)
		if err != nil {
			t.Fatal(err)
		}
		ck, err := model.Open(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		b := openCUDAConfig(t, ck, cuda.Config{
			KV: KVShape(ck, 16, tensor.BF16), MaxRows: 256, MaxSeqs: 64, MaxPages: 1024, Graphs: []int{1, 2, 4, 8}, Deterministic: true,
		})
		var want [][][]float32
		for _, s := range m.Sequences {
			got, err := Logits(b, []Sequence{s}, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, got[0])
		}
		for _, chunk := range []int{1 << 20, 16, 5, 1} {
			t.Run(fmt.Sprintf("%s/chunk %d", name, chunk), func(t *testing.T) {
				got, err := Logits(b, m.Sequences, chunk)
				if err != nil {
					t.Fatal(err)
				}
				for i := range want {
					sameBits(t, got[i], want[i])
				}
			})
		}
	}
}

func sameBits(t *testing.T, got, want [][]float32) {
	t.Helper()
	for pos, row := range want {
		for j, w := range row {
			if g := got[pos][j]; math.Float32bits(g) != math.Float32bits(w) {
				t.Fatalf("position %d, value %d: %v, alone %v", pos, j, g, w)
			}
		}
	}
}
