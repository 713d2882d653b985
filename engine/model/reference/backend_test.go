package reference

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

func host(name string, shape []int, values ...float32) tensor.Host {
	h := tensor.Host{Name: name, DType: tensor.F32, Shape: shape}
	for _, v := range values {
		h.Data = binary.LittleEndian.AppendUint32(h.Data, math.Float32bits(v))
	}
	return h
}

func kv() tensor.KVShape {
	return tensor.KVShape{Layers: 1, KVHeads: 1, HeadDim: 2, BlockTokens: 2, Blocks: 3, DType: tensor.F32}
}

// tiny records a model small enough to compute by hand: hidden size 2, one head
// of 2, values equal to the normalised input, and an identity output matrix.
func tiny(t *testing.T) *Backend {
	t.Helper()
	b, err := New(kv())
	if err != nil {
		t.Fatal(err)
	}
	table, _ := b.Matrix(host("emb", []int{2, 2}, 1, 0, 0, 1))
	qkv, _ := b.Matrix(host("q", []int{2, 2}, 0, 0, 0, 0), host("k", []int{2, 2}, 1, 0, 0, 1), host("v", []int{2, 2}, 1, 0, 0, 1))
	out, _ := b.Matrix(host("o", []int{2, 2}, 1, 0, 0, 1))
	ones, _ := b.Vector(host("one", []int{1}, 1), host("two", []int{1}, 1))
	x, q, y := b.Buffer(2), b.Buffer(2), b.Buffer(2)
	b.Embed(x, table)
	b.AttnInput(q, x, tensor.AttnInput{
		Norm: ones, Eps: 1e-6, QKV: qkv, Bias: tensor.None, QNorm: tensor.None, KNorm: tensor.None,
		Heads: 1, KVHeads: 1, HeadDim: 2, RoPE: tensor.RoPE{Dims: 2, InvFreq: []float32{1}, Scale: 1},
	})
	b.Attention(y, q, tensor.Attn{Heads: 1, KVHeads: 1, HeadDim: 2, Scale: 1})
	b.AddLinear(x, y, out, tensor.None)
	b.Logits(x, ones, 1e-6, out, nil)
	return b
}

// Queries are zero, so attention is the mean of the values so far; values are
// sqrt(2) times the embedding.
func TestRunByHand(t *testing.T) {
	b := tiny(t)
	var batch tensor.Batch
	batch.Reset()
	batch.Add([]int32{0, 1, 0}, 0, []int32{2, 0}, true)
	got, err := b.Run(&batch)
	if err != nil {
		t.Fatal(err)
	}
	x, y := 1+math.Sqrt2*2/3, math.Sqrt2/3
	norm := math.Sqrt((x*x + y*y) / 2)
	for i, want := range []float64{x / norm, y / norm} {
		if math.Abs(float64(got[0][i])-want) > 1e-5 {
			t.Errorf("logit %d is %v, want %v", i, got[0][i], want)
		}
	}
	// The next token reads the cache of the first three.
	b.CopyBlock(0, 1, 1)
	batch.Reset()
	batch.Add([]int32{1}, 3, []int32{2, 1}, true)
	if got, err = b.Run(&batch); err != nil {
		t.Fatal(err)
	}
	x, y = math.Sqrt2/2, 1+math.Sqrt2/2
	norm = math.Sqrt((x*x + y*y) / 2)
	if math.Abs(float64(got[0][0])-x/norm) > 1e-5 {
		t.Errorf("logit 0 is %v, want %v", got[0][0], x/norm)
	}
}

func TestRunRefusesBadBatches(t *testing.T) {
	cases := map[string]struct {
		change func(*tensor.Batch)
		want   string
	}{
		"token":     {func(b *tensor.Batch) { b.Tokens[0] = 2 }, "token 2 is outside"},
		"negative":  {func(b *tensor.Batch) { b.Tokens[0] = -1 }, "token -1"},
		"page":      {func(b *tensor.Batch) { b.Pages[0] = 3 }, "block 3 is outside"},
		"few pages": {func(b *tensor.Batch) { b.PosStart[0] = 1 }, "too few"},
		"rows":      {func(b *tensor.Batch) { b.RowStart[1] = 1 }, "rows belong to no sequence"},
		"logit row": {func(b *tensor.Batch) { b.LogitRows[0] = 2 }, "logit row 2"},
		"starts":    {func(b *tensor.Batch) { b.RowStart = b.RowStart[:1] }, "row starts"},
	}
	b := tiny(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var batch tensor.Batch
			batch.Reset()
			batch.Add([]int32{0, 1}, 0, []int32{0}, true)
			c.change(&batch)
			if _, err := b.Run(&batch); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestRecordingErrorComesBackFromRun(t *testing.T) {
	b := tiny(t)
	w, _ := b.Matrix(host("w", []int{1, 3}, 1, 2, 3))
	b.AddLinear(0, 1, w, tensor.None)
	if _, err := b.Run(&tensor.Batch{}); err == nil || !strings.Contains(err.Error(), "AddLinear: weight [1, 3]") {
		t.Errorf("error %v", err)
	}
}

func TestLoadErrors(t *testing.T) {
	b := tiny(t)
	if _, err := b.Matrix(host("a", []int{1, 2}, 1, 2), host("b", []int{1, 1}, 1)); err == nil || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("columns differ: %v", err)
	}
	if _, err := b.GateUp(host("a", []int{1, 2}, 1, 2), host("b", []int{2, 1}, 1, 2)); err == nil || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("rows differ: %v", err)
	}
	if _, err := b.Vector(host("a", []int{3}, 1)); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("short data: %v", err)
	}
	shape := kv()
	shape.DType = tensor.F16
	if _, err := New(shape); err == nil {
		t.Error("an F16 cache gave no error")
	}
	if _, err := New(tensor.KVShape{}); err == nil {
		t.Error("an empty cache gave no error")
	}
}

func TestRoundBF16(t *testing.T) {
	for in, want := range map[float32]float32{
		1: 1, 1.00390625: 1, 1.01171875: 1.015625, 1.004: 1.0078125, -1.004: -1.0078125,
		math.MaxFloat32: float32(math.Inf(1)),
	} {
		if got := roundBF16(in); got != want {
			t.Errorf("roundBF16(%v) = %v, want %v", in, got, want)
		}
	}
	if nan := roundBF16(float32(math.NaN())); nan == nan {
		t.Error("NaN did not stay NaN")
	}
}
