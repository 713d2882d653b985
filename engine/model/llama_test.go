package model

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

// recorder is an Ops that writes down what it is told.
type recorder struct {
	loads   []string
	calls   []string
	buffers []int
	input   []tensor.AttnInput
	moe     []tensor.MoE
	refuse  string // Matrix fails for this tensor
}

func names(parts []tensor.Host) string {
	var n []string
	for _, p := range parts {
		n = append(n, p.Name)
	}
	return strings.Join(n, "+")
}

func (r *recorder) Matrix(parts ...tensor.Host) (tensor.Matrix, error) {
	for _, p := range parts {
		if r.refuse != "" && p.Name == r.refuse {
			return tensor.None, fmt.Errorf("tensor %q: refused", p.Name)
		}
	}
	r.loads = append(r.loads, names(parts))
	return tensor.Matrix(len(r.loads) - 1), nil
}

func (r *recorder) GateUp(gate, up tensor.Host) (tensor.Matrix, error) { return r.Matrix(gate, up) }

func (r *recorder) Vector(parts ...tensor.Host) (tensor.Vector, error) {
	m, err := r.Matrix(parts...)
	return tensor.Vector(m), err
}

func (r *recorder) Buffer(width int) tensor.Buffer {
	r.buffers = append(r.buffers, width)
	return tensor.Buffer(len(r.buffers) - 1)
}

func (r *recorder) call(format string, args ...any) {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *recorder) name(handle int32) string {
	if handle == tensor.None {
		return "none"
	}
	return r.loads[handle]
}

func (r *recorder) Embed(out tensor.Buffer, table tensor.Matrix) {
	r.call("Embed %d %s", out, r.name(int32(table)))
}

func (r *recorder) AttnInput(q, x tensor.Buffer, a tensor.AttnInput) {
	r.input = append(r.input, a)
	r.call("AttnInput %d %d %s %s %s %s %s", q, x, r.name(int32(a.Norm)), r.name(int32(a.QKV)), r.name(int32(a.Bias)), r.name(int32(a.QNorm)), r.name(int32(a.KNorm)))
}

func (r *recorder) Attention(out, q tensor.Buffer, a tensor.Attn) {
	r.call("Attention %d %d layer %d scale %.4f", out, q, a.Layer, a.Scale)
}

func (r *recorder) AddLinear(x, in tensor.Buffer, w tensor.Matrix, bias tensor.Vector) {
	r.call("AddLinear %d %d %s %s", x, in, r.name(int32(w)), r.name(int32(bias)))
}

func (r *recorder) GatedMLP(out, x tensor.Buffer, norm tensor.Vector, _ float32, gateUp tensor.Matrix) {
	r.call("GatedMLP %d %d %s %s", out, x, r.name(int32(norm)), r.name(int32(gateUp)))
}

func (r *recorder) Scale(x tensor.Buffer, factor float32) { r.call("Scale %d %.4f", x, factor) }

func (r *recorder) Linear(out, in tensor.Buffer, w tensor.Matrix) {
	r.call("Linear %d %d %s", out, in, r.name(int32(w)))
}

func (r *recorder) AddNorm(x, in tensor.Buffer, norm tensor.Vector, _ float32) {
	r.call("AddNorm %d %d %s", x, in, r.name(int32(norm)))
}

func (r *recorder) GatedGELU(out, x tensor.Buffer, norm tensor.Vector, _ float32, gateUp tensor.Matrix) {
	r.call("GatedGELU %d %d %s %s", out, x, r.name(int32(norm)), r.name(int32(gateUp)))
}

func (r *recorder) MoE(out, x tensor.Buffer, m tensor.MoE) {
	r.moe = append(r.moe, m)
	r.call("MoE %d %d %s %s", out, x, r.name(int32(m.Norm)), r.name(int32(m.Router)))
	for i := range m.GateUp {
		r.call("expert %s %s", r.name(int32(m.GateUp[i])), r.name(int32(m.Down[i])))
	}
}

func (r *recorder) Columns(b tensor.Buffer, first, width int) tensor.Buffer {
	view := r.Buffer(width)
	r.call("Columns %d = %d[%d:%d]", view, b, first, first+width)
	return view
}

func (r *recorder) GatherColumns(b tensor.Buffer, cuts []int) { r.call("GatherColumns %d %v", b, cuts) }

func (r *recorder) Shared(width int) tensor.Buffer {
	b := r.Buffer(width)
	r.call("Shared %d", b)
	return b
}

func (r *recorder) GatherRows(out, x tensor.Buffer)  { r.call("GatherRows %d %d", out, x) }
func (r *recorder) OwnRows(x, in tensor.Buffer)      { r.call("OwnRows %d %d", x, in) }
func (r *recorder) AddShares(x, share tensor.Buffer) { r.call("AddShares %d %d", x, share) }

func (r *recorder) Logits(x tensor.Buffer, norm tensor.Vector, _ float32, head tensor.Matrix, cuts []int) {
	if cuts != nil {
		r.call("Logits %d %s %s %v", x, r.name(int32(norm)), r.name(int32(head)), cuts)
		return
	}
	r.call("Logits %d %s %s", x, r.name(int32(norm)), r.name(int32(head)))
}

func TestBuildRecordsOneForward(t *testing.T) {
	ck := open(t, "gguf-qwen2.gguf")
	ck.Config.Layers = 1
	var r recorder
	if err := Build(&r, ck, Parallel{}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Embed 0 token_embd.weight",
		"AttnInput 1 0 blk.0.attn_norm.weight blk.0.attn_q.weight+blk.0.attn_k.weight+blk.0.attn_v.weight blk.0.attn_q.bias+blk.0.attn_k.bias+blk.0.attn_v.bias none none",
		"Attention 2 1 layer 0 scale 0.1768",
		"AddLinear 0 2 blk.0.attn_output.weight none",
		"GatedMLP 3 0 blk.0.ffn_norm.weight blk.0.ffn_gate.weight+blk.0.ffn_up.weight",
		"AddLinear 0 3 blk.0.ffn_down.weight none",
		"Logits 0 output_norm.weight output.weight",
	}
	if !reflect.DeepEqual(r.calls, want) {
		t.Errorf("calls\n%s\nwant\n%s", strings.Join(r.calls, "\n"), strings.Join(want, "\n"))
	}
	if !reflect.DeepEqual(r.buffers, []int{32, 128, 128, 32}) {
		t.Errorf("buffers %v", r.buffers)
	}
	if a := r.input[0]; a.Heads != 4 || a.KVHeads != 2 || a.HeadDim != 32 || a.RoPE.Adjacent || len(a.RoPE.InvFreq) != 16 {
		t.Errorf("attention input %+v", a)
	}
}

func TestBuildLoadsTiedTableOnce(t *testing.T) {
	var r recorder
	if err := Build(&r, open(t, "qwen2-tied"), Parallel{}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(r.loads, " "), "embed_tokens"); n != 1 {
		t.Errorf("the embedding table was loaded %d times", n)
	}
	if last := r.calls[len(r.calls)-1]; last != "Logits 0 model.norm.weight model.embed_tokens.weight" {
		t.Error(last)
	}
}

func TestBuildErrors(t *testing.T) {
	cases := map[string]struct {
		spoil func(*Checkpoint)
		want  string
	}{
		"arch":    {func(c *Checkpoint) { c.Config.Arch = "mamba" }, `architecture "mamba" is not supported (supported: llama`},
		"layers":  {func(c *Checkpoint) { c.Config.Layers = 3 }, `tensor "blk.2.attn_norm.weight" is missing`},
		"inter":   {func(c *Checkpoint) { c.Config.Inter = 64 }, `tensor "blk.0.ffn_gate.weight" has shape [32 32]`},
		"vocab":   {func(c *Checkpoint) { c.Config.Vocab = 63 }, `tensor "token_embd.weight" has shape`},
		"untied":  {func(c *Checkpoint) { c.Config.Tied = false }, `tensor "output.weight" is missing`},
		"no norm": {func(c *Checkpoint) { delete(c.index, "blk.1.attn_q_norm.weight") }, `tensor "blk.1.attn_q_norm.weight" is missing`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ck := open(t, "gguf-qwen3.gguf")
			c.spoil(ck)
			var r recorder
			if err := Build(&r, ck, Parallel{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if len(r.calls) > 0 {
				t.Errorf("recorded %v after an error", r.calls)
			}
		})
	}
	r := recorder{refuse: "blk.1.ffn_down.weight"}
	if err := Build(&r, open(t, "gguf-qwen3.gguf"), Parallel{}); err == nil || !strings.Contains(err.Error(), `"blk.1.ffn_down.weight": refused`) {
		t.Errorf("error %v", err)
	}
}
