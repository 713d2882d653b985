package model

import (
	"fmt"
	"maps"
	"slices"
)

// MoEConfig describes the mixture-of-experts layers of a model.
type MoEConfig struct {
	Experts int   // experts of a layer; 0 in a model without such layers
	Used    int   // experts of a token
	Inter   int   // width of one expert's gated MLP
	Renorm  bool  // the weights of a token's experts sum to 1
	Dense   []int // layers with a plain MLP of Config.Inter instead, ascending
}

// Sparse reports whether a layer is a mixture of experts.
func (m *MoEConfig) Sparse(layer int) bool { return m.Experts > 0 && !slices.Contains(m.Dense, layer) }

func (m *MoEConfig) validate(wanted bool, layers int) error {
	if !wanted {
		return nil
	}
	for _, f := range []struct {
		name   string
		v, max int
	}{
		{"number of experts", m.Experts, maxExpert},
		{"experts per token", m.Used, min(maxUsed, m.Experts)},
		{"expert intermediate size", m.Inter, maxWidth},
	} {
		if f.v < 1 || f.v > f.max {
			return fmt.Errorf("%s is %d, want 1 to %d", f.name, f.v, f.max)
		}
	}
	for _, layer := range m.Dense {
		if layer < 0 || layer >= layers {
			return fmt.Errorf("dense layer %d of a model of %d layers", layer, layers)
		}
	}
	return nil
}

// hfMoE is the part of config.json about experts.
type hfMoE struct {
	Experts      *int  `json:"num_experts"`
	LocalExperts *int  `json:"num_local_experts"` // since transformers 5
	Used         int   `json:"num_experts_per_tok"`
	ExpertInter  int   `json:"moe_intermediate_size"`
	Renorm       bool  `json:"norm_topk_prob"`
	SparseStep   *int  `json:"decoder_sparse_step"`
	Dense        []int `json:"mlp_only_layers"`
	SharedInter  *int  `json:"shared_expert_intermediate_size"`
}

// hfArchs gives the canonical names of model types that have another.
var hfArchs = map[string]string{"qwen3_moe": archQwen3MoE, "gemma3_text": archGemma3}

func (h *hfConfig) arch() string {
	if a, ok := hfArchs[h.ModelType]; ok {
		return a
	}
	return h.ModelType
}

// hasQKNorm tells which architectures normalise query and key heads.
func hasQKNorm(arch string) bool {
	return arch == "qwen3" || arch == archQwen3MoE || arch == archGemma3
}

func (h *hfConfig) moe() (MoEConfig, error) {
	m := MoEConfig{Experts: or(h.Experts, or(h.LocalExperts, 0)), Used: h.Used, Inter: h.ExpertInter, Renorm: h.Renorm}
	step := or(h.SparseStep, 1)
	if step < 1 {
		return m, fmt.Errorf("decoder_sparse_step is %d, want 1 or more", step)
	}
	for _, layer := range h.Dense {
		if layer < 0 || layer >= h.Layers {
			return m, fmt.Errorf("mlp_only_layers: layer %d of a model of %d layers", layer, h.Layers)
		}
	}
	for i := range min(h.Layers, maxLayers) {
		if (i+1)%step != 0 || slices.Contains(h.Dense, i) {
			m.Dense = append(m.Dense, i)
		}
	}
	return m, nil
}

// Keys of other mixtures of experts, with the values that change nothing.
var ggufMoEKeys = map[string]float64{
	"expert_shared_count": 0, "expert_shared_feed_forward_length": 0, "expert_group_count": 0, "expert_group_used_count": 0,
	"expert_gating_func": 1, "expert_weights_scale": 1,
}

func (r *ggufReader) moe(layers int) MoEConfig {
	m := MoEConfig{
		Experts: r.number("expert_count"), Used: r.number("expert_used_count"), Inter: r.number("expert_feed_forward_length"),
		Renorm: true, // converters do not say, and so the models are
	}
	if key := r.key("expert_weights_norm"); r.f.Has(key) {
		var err error
		m.Renorm, err = r.f.Bool(key)
		r.keep(err)
	}
	for _, name := range slices.Sorted(maps.Keys(ggufMoEKeys)) {
		if got, plain := r.floatOr(name, 0), ggufMoEKeys[name]; got != 0 && got != plain {
			r.keep(fmt.Errorf("GGUF key %q: %v is not supported", r.key(name), got))
		}
	}
	has := func(layer int, part string) bool {
		_, ok := r.f.Tensor(fmt.Sprintf("blk.%d.%s.weight", layer, part))
		return ok
	}
	for i := range min(layers, maxLayers) {
		if has(i, "ffn_gate") && !has(i, "ffn_gate_inp") {
			m.Dense = append(m.Dense, i)
		}
	}
	return m
}

// inter reads the width of the plain MLP, which a model of experts only need
// not have.
func (r *ggufReader) inter(m *MoEConfig) int {
	if m.Experts > 0 && len(m.Dense) == 0 {
		return max(r.numberOr("feed_forward_length", 0), m.Inter)
	}
	return r.number("feed_forward_length")
}
