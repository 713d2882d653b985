package model

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

// float8Weights is a checkpoint with codes [rows, cols] that count up, and factors
// 1, 2, 3 ... for blocks of the given size.
func float8Weights(rows, cols int, block [2]int, factors int) *Checkpoint {
	w := tensor.Host{Name: "w", DType: tensor.F8, Shape: []int{rows, cols}, Data: make([]byte, rows*cols)}
	for i := range w.Data {
		w.Data[i] = byte(i % 120)
	}
	s := tensor.Host{Name: "w" + scaleSuffix, DType: tensor.F32, Shape: []int{factors}, Data: make([]byte, 4*factors)}
	for i := range factors {
		binary.LittleEndian.PutUint32(s.Data[4*i:], math.Float32bits(float32(i+1)))
	}
	return &Checkpoint{Format: FormatGGUF, tensors: []tensor.Host{w, s}, index: map[string]int{w.Name: 0, s.Name: 1}, float8: block}
}

func TestFloat8JoinsItsFactors(t *testing.T) {
	for _, c := range []struct {
		rows, cols, factors int
		block               [2]int
		want                tensor.DType
	}{
		{130, 192, 4, [2]int{128, 128}, tensor.F8_S},
		{128, 64, 1, [2]int{128, 128}, tensor.F8_S},
		{5, 128, 1, [2]int{}, tensor.F8_S}, // one for the whole tensor
		{9, 128, 6, [2]int{4, 64}, tensor.F8_S},
		{9, 100, 1, [2]int{128, 128}, tensor.F32},
		{9, 128, 6, [2]int{3, 96}, tensor.F32},
	} {
		ck := float8Weights(c.rows, c.cols, c.block, c.factors)
		h, err := ck.Tensor("w", c.rows, c.cols)
		if err != nil || h.DType != c.want {
			t.Fatalf("%+v: %s, error %v", c, h.DType, err)
		}
		got := make([]float32, h.Elems())
		if err := tensor.Dequantize(got, h); err != nil {
			t.Fatal(err)
		}
		br, bc := c.block[0], c.block[1]
		if br == 0 {
			br, bc = c.rows, c.cols
		}
		for i, v := range got {
			row, col := i/c.cols, i%c.cols
			factor := float32(row/br*((c.cols+bc-1)/bc) + col/bc + 1)
			if want := factor * tensor.F8ToF32(byte(i%120)); v != want {
				t.Fatalf("%+v: [%d, %d] is %v, want %v", c, row, col, v, want)
			}
		}
		if n := ck.Params(); n != c.rows*c.cols {
			t.Errorf("%+v: %d weights", c, n)
		}
	}
}

func TestFloat8Errors(t *testing.T) {
	wrong := float8Weights(130, 192, [2]int{128, 128}, 3)
	if _, err := wrong.Tensor("w", 130, 192); err == nil || !strings.Contains(err.Error(), "need 4 factors") {
		t.Errorf("too few factors: %v", err)
	}
	none := float8Weights(130, 192, [2]int{128, 128}, 4)
	delete(none.index, "w"+scaleSuffix)
	if _, err := none.Tensor("w", 130, 192); err == nil || !strings.Contains(err.Error(), `"w_scale_inv"`) {
		t.Errorf("no factors: %v", err)
	}
	for _, c := range []struct {
		name string
		q    map[string]any
		want string
	}{
		{"method", map[string]any{"quant_method": "awq"}, `quant_method "awq"`},
		{"format", map[string]any{"quant_method": "fp8", "fmt": "e5m2"}, `fmt "e5m2"`},
		{"block", map[string]any{"quant_method": "fp8", "weight_block_size": []int{128}}, "weight_block_size [128]"},
		{"zero", map[string]any{"quant_method": "fp8", "weight_block_size": []int{0, 128}}, "weight_block_size [0 128]"},
	} {
		dir := copyModel(t, "qwen3-fp8")
		edit(t, dir, "config.json", map[string]any{"quantization_config": c.q})
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "quantization_config: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Factors of the folder are one for each block of 128, so a configuration that says
// otherwise is noticed.
func TestFloat8BlocksComeFromTheConfiguration(t *testing.T) {
	dir := copyModel(t, "qwen3-fp8")
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if block, err := float8Blocks(raw); err != nil || block != [2]int{128, 128} {
		t.Fatalf("%v, error %v", block, err)
	}
	edit(t, dir, "config.json", map[string]any{"quantization_config": map[string]any{"quant_method": "fp8", "weight_block_size": []int{64, 64}}})
	ck, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	if _, err := ck.Tensor("blk.0.ffn_gate.weight", 192, 192); err == nil || !strings.Contains(err.Error(), "need 9 factors") {
		t.Errorf("blocks of 64: %v", err)
	}
}
