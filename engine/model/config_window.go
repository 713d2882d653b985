package model

import (
	"fmt"
	"math"
)

// hfWindow is the part of config.json about sliding windows, and what Gemma 3 has
// besides.
type hfWindow struct {
	Window     *int     `json:"sliding_window"`
	UseWindow  *bool    `json:"use_sliding_window"`
	MaxWindow  *int     `json:"max_window_layers"` // layers before it have none
	LayerTypes []string `json:"layer_types"`
	Pattern    *int     `json:"sliding_window_pattern"` // every so many layers one has none
	LocalTheta *float64 `json:"rope_local_base_freq"`
	QueryScale *float64 `json:"query_pre_attn_scalar"`
	Activation string   `json:"hidden_activation"`
	AttnCap    *float64 `json:"attn_logit_softcapping"`
	LogitCap   *float64 `json:"final_logit_softcapping"`
	BothWays   *bool    `json:"use_bidirectional_attention"`
}

const (
	slidingLayer = "sliding_attention"
	fullLayer    = "full_attention"

	gemmaWindow     = 4096
	gemmaPattern    = 6
	gemmaTheta      = 1e6
	gemmaLocalTheta = 1e4
	// gemmaLarge is the layers of the one Gemma 3 whose queries are scaled by the
	// hidden size a head. GGUF metadata do not say so.
	gemmaLarge = 62
)

// slides tells which layers have the window: those that layer_types names, else
// as the model type has it. Mistral and Qwen3 MoE give it to all.
func (h *hfConfig) slides(layer int) bool {
	if layer < len(h.LayerTypes) {
		return h.LayerTypes[layer] == slidingLayer
	}
	switch h.arch() {
	case "qwen2", "qwen3":
		return layer >= or(h.MaxWindow, 28)
	case archGemma3:
		return (layer+1)%max(or(h.Pattern, gemmaPattern), 1) != 0
	}
	return true
}

// windows reads which layers attend to a window.
func (h *hfConfig) windows(c *Config) error {
	if c.Arch == "llama" || !or(h.UseWindow, c.Arch == "mistral" || c.Arch == archGemma3) {
		return nil
	}
	if n := len(h.LayerTypes); n > 0 && n != h.Layers {
		return fmt.Errorf("layer_types: %d for %d layers", n, h.Layers)
	}
	for i, kind := range h.LayerTypes {
		if kind != slidingLayer && kind != fullLayer {
			return fmt.Errorf("layer_types: layer %d is %q, which is not supported (%s and %s are)", i, kind, fullLayer, slidingLayer)
		}
	}
	window := 0
	if c.Arch == archGemma3 {
		window = gemmaWindow
	}
	c.setWindows(or(h.Window, window), h.slides)
	return nil
}

// gemma reads what only Gemma 3 has.
func (h *hfConfig) gemma(c *Config) {
	c.Tied = or(h.Tied, true)
	c.AttnScale = 1 / math.Sqrt(or(h.QueryScale, 256))
	full, local := &hfRoPE{}, &hfRoPE{}
	if h.RoPE != nil && h.RoPE.Full != nil {
		full = h.RoPE.Full
	} else if h.Scaling != nil {
		full = h.Scaling
	}
	if h.RoPE != nil && h.RoPE.Sliding != nil {
		local = h.RoPE.Sliding
	}
	theta := or(full.Theta, or(h.Theta, gemmaTheta))
	c.RoPE = h.ropeOf(c, full, theta)
	r := h.ropeOf(c, local, or(local.Theta, or(h.LocalTheta, gemmaLocalTheta)))
	c.LocalRoPE = &r
	c.Context = h.Context // scaling is within it
}

// gemmaSupported refuses what would load and give wrong numbers.
func (h *hfConfig) gemmaSupported() error {
	for _, f := range []struct {
		name string
		cap  *float64
	}{{"attn_logit_softcapping", h.AttnCap}, {"final_logit_softcapping", h.LogitCap}} {
		if or(f.cap, 0) != 0 {
			return fmt.Errorf("%s is not supported", f.name)
		}
	}
	if or(h.BothWays, false) {
		return fmt.Errorf("use_bidirectional_attention is not supported")
	}
	if a := h.Activation; h.arch() == archGemma3 && a != "" && a != "gelu_pytorch_tanh" {
		return fmt.Errorf("hidden_activation %q is not supported (gelu_pytorch_tanh is)", a)
	}
	return nil
}

// windows reads the window, and which layers have it.
func (r *ggufReader) windows(c *Config) {
	every := 0 // so many layers one has none
	if r.arch == archGemma3 {
		every = gemmaPattern
	}
	every = r.numberOr("attention.sliding_window_pattern", every)
	slides := func(i int) bool { return every < 1 || (i+1)%every != 0 }
	c.setWindows(r.numberOr("attention.sliding_window", 0), slides)
}

// gemma reads what only Gemma 3 has.
func (r *ggufReader) gemma(c *Config) {
	c.RoPE.Base = r.floatOr("rope.freq_base", gemmaTheta)
	c.LocalRoPE = &RoPEConfig{Base: r.floatOr("rope.freq_base_swa", gemmaLocalTheta), Dims: c.RoPE.Dims}
	if c.Layers == gemmaLarge {
		c.AttnScale = 1 / math.Sqrt(float64(c.Hidden)/float64(max(c.Heads, 1)))
	}
	for _, name := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if r.floatOr(name, 0) != 0 {
			r.keep(fmt.Errorf("GGUF key %q is not supported", r.key(name)))
		}
	}
}
