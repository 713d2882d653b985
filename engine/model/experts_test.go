package model

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

func TestOpenExperts(t *testing.T) {
	mixed, quant := open(t, "qwen3moe-mixed").Config, open(t, "gguf-qwen3moe-quant.gguf").Config
	if want := (MoEConfig{Experts: 7, Used: 3, Inter: 32, Dense: []int{0}}); mixed.Arch != "qwen3moe" || !mixed.QKNorm || !reflect.DeepEqual(mixed.MoE, want) {
		t.Errorf("folder: %+v", mixed)
	}
	if want := (MoEConfig{Experts: 7, Used: 3, Inter: 32, Renorm: true}); quant.Arch != "qwen3moe" || !quant.QKNorm || quant.RoPE.Adjacent || !reflect.DeepEqual(quant.MoE, want) {
		t.Errorf("GGUF: %+v", quant)
	}
}

func TestExpertIsSliced(t *testing.T) {
	ck := open(t, "gguf-qwen3moe-quant.gguf")
	const name = "blk.1.ffn_up_exps.weight"
	all, err := ck.Tensor(name, 7, 32, 32)
	if err != nil {
		t.Fatal(err)
	}
	var joined []byte
	for e := range 7 {
		h, err := ck.Expert(name, e, 7, 32, 32)
		if err != nil || h.Validate() != nil || h.Name != fmt.Sprintf("%s[%d]", name, e) || h.DType != all.DType {
			t.Fatalf("expert %d: %s %s %v, %v", e, h.Name, h.DType, h.Shape, err)
		}
		joined = append(joined, h.Data...)
	}
	if !slices.Equal(joined, all.Data) {
		t.Error("the experts are not the stacked tensor")
	}
	if h, err := open(t, "gguf-qwen3moe-quant.gguf", AsF32()).Expert(name, 3, 7, 32, 32); err != nil || h.DType != tensor.F32 || h.Validate() != nil {
		t.Errorf("as F32: %s, %v", h.DType, err)
	}
}

func TestBuildRecordsExperts(t *testing.T) {
	var r recorder
	if err := Build(&r, open(t, "qwen3moe-mixed"), Parallel{}); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(r.calls, "\n")
	const p = "model.layers.1.mlp."
	for _, want := range []string{
		"GatedMLP 3 0 model.layers.0.post_attention_layernorm.weight model.layers.0.mlp.gate_proj.weight+model.layers.0.mlp.up_proj.weight\nAddLinear",
		"MoE 0 0 model.layers.1.post_attention_layernorm.weight " + p + "gate.weight\nexpert " +
			p + "experts.0.gate_proj.weight+" + p + "experts.0.up_proj.weight " + p + "experts.0.down_proj.weight\nexpert",
		p + "experts.6.down_proj.weight\nLogits",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if len(r.moe) != 1 || r.moe[0].Used != 3 || r.moe[0].Renorm || r.moe[0].First != 0 || len(r.moe[0].Down) != 7 || r.moe[0].Eps != 1e-5 {
		t.Errorf("experts %+v", r.moe)
	}
	r = recorder{}
	if err := Build(&r, open(t, "gguf-qwen3moe-quant.gguf"), Parallel{}); err != nil {
		t.Fatal(err)
	}
	if len(r.moe) != 2 || !r.moe[0].Renorm || len(r.buffers) != 3 {
		t.Errorf("experts %+v, buffers %v", r.moe, r.buffers)
	}
}

// ops that note the type of the router.
type routerOps struct {
	recorder
	types []tensor.DType
}

func (r *routerOps) Matrix(parts ...tensor.Host) (tensor.Matrix, error) {
	if strings.Contains(parts[0].Name, "ffn_gate_inp") {
		r.types = append(r.types, parts[0].DType)
	}
	return r.recorder.Matrix(parts...)
}

func TestQuantisedRouterIsDecoded(t *testing.T) {
	ck := open(t, "gguf-qwen3moe-quant.gguf")
	for i, h := range ck.tensors {
		if h.Name == "blk.1.ffn_gate_inp.weight" {
			ck.tensors[i].DType, ck.tensors[i].Data = tensor.Q8_0, make([]byte, 7*34)
		}
	}
	var r routerOps
	if err := Build(&r, ck, Parallel{}); err != nil || !slices.Equal(r.types, []tensor.DType{tensor.F32, tensor.F32}) {
		t.Errorf("routers of %v, %v", r.types, err)
	}
}

func TestBuildExpertErrors(t *testing.T) {
	cases := map[string]struct {
		model string
		spoil func(*Checkpoint)
		want  string
	}{
		"router":        {"gguf-qwen3moe-quant.gguf", func(c *Checkpoint) { delete(c.index, "blk.0.ffn_gate_inp.weight") }, `tensor "blk.0.ffn_gate_inp.weight" is missing`},
		"stack":         {"gguf-qwen3moe-quant.gguf", func(c *Checkpoint) { delete(c.index, "blk.1.ffn_down_exps.weight") }, `tensor "blk.1.ffn_down_exps.weight" is missing`},
		"count":         {"gguf-qwen3moe-quant.gguf", func(c *Checkpoint) { c.Config.MoE.Experts = 8 }, `tensor "blk.0.ffn_gate_inp.weight" has shape [7 32], the model's configuration asks for [8 32]`},
		"width":         {"gguf-qwen3moe-quant.gguf", func(c *Checkpoint) { c.Config.MoE.Inter = 64 }, `tensor "blk.0.ffn_gate_exps.weight" has shape [7 32 32], the model's configuration asks for [7 64 32]`},
		"dense":         {"gguf-qwen3moe-quant.gguf", func(c *Checkpoint) { c.Config.MoE.Dense = []int{1} }, `tensor "blk.1.ffn_gate.weight" is missing`},
		"folder expert": {"qwen3moe-mixed", func(c *Checkpoint) { delete(c.index, "model.layers.1.mlp.experts.5.up_proj.weight") }, `tensor "model.layers.1.mlp.experts.5.up_proj.weight" is missing`},
		"folder width":  {"qwen3moe-mixed", func(c *Checkpoint) { c.Config.MoE.Inter = 16 }, `tensor "model.layers.1.mlp.experts.0.gate_proj.weight" has shape [32 32]`},
		"folder router": {"qwen3moe-mixed", func(c *Checkpoint) { delete(c.index, "model.layers.1.mlp.gate.weight") }, `tensor "model.layers.1.mlp.gate.weight" is missing`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ck := open(t, c.model)
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
	r := recorder{refuse: "blk.1.ffn_down_exps.weight[2]"}
	if err := Build(&r, open(t, "gguf-qwen3moe-quant.gguf"), Parallel{}); err == nil || !strings.Contains(err.Error(), `"blk.1.ffn_down_exps.weight[2]": refused`) {
		t.Errorf("error %v", err)
	}
}

func TestHFExpertConfig(t *testing.T) {
	cases := map[string]struct {
		changes map[string]any
		want    string // of the error, or of the dense layers
	}{
		"none":          {map[string]any{"num_local_experts": nil}, "number of experts is 0"},
		"old name":      {map[string]any{"num_local_experts": nil, "num_experts": 7}, "[0]"},
		"used":          {map[string]any{"num_experts_per_tok": 8}, "experts per token is 8, want 1 to 7"},
		"no used":       {map[string]any{"num_experts_per_tok": nil}, "experts per token is 0"},
		"inter":         {map[string]any{"moe_intermediate_size": nil}, "expert intermediate size is 0"},
		"too many":      {map[string]any{"num_local_experts": 1 << 20}, "number of experts is 1048576"},
		"step":          {map[string]any{"decoder_sparse_step": 0}, "decoder_sparse_step is 0"},
		"step 2":        {map[string]any{"decoder_sparse_step": 2, "mlp_only_layers": nil}, "[0]"},
		"step 3":        {map[string]any{"decoder_sparse_step": 3}, "[0 1]"},
		"all sparse":    {map[string]any{"mlp_only_layers": []int{}, "intermediate_size": nil}, "[]"},
		"dense layer":   {map[string]any{"mlp_only_layers": []int{2}}, "mlp_only_layers: layer 2 of a model of 2 layers"},
		"no MLP width":  {map[string]any{"intermediate_size": nil}, "intermediate size is 0"},
		"shared expert": {map[string]any{"shared_expert_intermediate_size": 64}, "shared experts are not supported"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t, "qwen3moe-mixed")
			edit(t, dir, "config.json", c.changes)
			ck, err := Open(dir)
			if err == nil {
				defer ck.Close()
				if got := fmt.Sprint(ck.Config.MoE.Dense); got != c.want {
					t.Errorf("dense layers %s, want %s", got, c.want)
				}
				return
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func moeKeys(extra ...any) []any {
	var keys []any
	for _, k := range llamaKeys() {
		if s, ok := k.(string); ok {
			k = strings.Replace(s, "llama", "qwen3moe", 1)
		}
		keys = append(keys, k)
	}
	base := []any{"qwen3moe.expert_count", 8, "qwen3moe.expert_used_count", 2, "qwen3moe.expert_feed_forward_length", 24}
	for i := 0; i < len(extra); i += 2 {
		if at := slices.Index(base, extra[i]); at >= 0 {
			base[at+1] = extra[i+1]
			continue
		}
		base = append(base, extra[i], extra[i+1])
	}
	return append(keys, base...)
}

func TestGGUFExpertConfig(t *testing.T) {
	c, err := ggufConfig(metadata(t, moeKeys("qwen3moe.expert_gating_func", 1, "qwen3moe.expert_weights_scale", 1.0)...))
	if err == nil || !strings.Contains(err.Error(), "vocabulary") { // there are no tensors
		t.Fatal(err)
	}
	if want := (MoEConfig{Experts: 8, Used: 2, Inter: 24, Renorm: true}); !reflect.DeepEqual(c.MoE, want) {
		t.Errorf("experts %+v", c.MoE)
	}
	for key, cs := range map[string]struct {
		value any
		want  string
	}{
		"expert_count":               {0, "number of experts is 0"},
		"expert_used_count":          {9, "experts per token is 9, want 1 to 8"},
		"expert_feed_forward_length": {0, "expert intermediate size is 0"},
		"expert_shared_count":        {1, `"qwen3moe.expert_shared_count": 1 is not supported`},
		"expert_gating_func":         {2, `"qwen3moe.expert_gating_func": 2 is not supported`},
		"expert_weights_scale":       {2.5, `"qwen3moe.expert_weights_scale": 2.5`},
		"expert_weights_norm":        {1, "want a bool"},
	} {
		if _, err := ggufConfig(metadata(t, moeKeys("qwen3moe."+key, cs.value)...)); err == nil || !strings.Contains(err.Error(), cs.want) {
			t.Errorf("%s: error %v, want one with %q", key, err, cs.want)
		}
	}
}

// The fingerprints of dense models are those from before there were experts.
func TestDenseFingerprintIsKept(t *testing.T) {
	if fp := open(t, "qwen3").Fingerprint(); fp != denseFingerprint {
		t.Errorf("the fingerprint of qwen3 is %s", fp)
	}
}

const denseFingerprint = "732eaa0bbecf44831db1546a2625d6061c42c35a2150aac3be606a6db7b70239"
