package model

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// hfConfig is the part of config.json that the engine reads. Pointers tell an
// absent key from a zero.
type hfConfig struct {
	ModelType     string          `json:"model_type"`
	Architectures []string        `json:"architectures"`
	Name          string          `json:"_name_or_path"`
	Layers        int             `json:"num_hidden_layers"`
	Hidden        int             `json:"hidden_size"`
	Inter         int             `json:"intermediate_size"`
	Heads         int             `json:"num_attention_heads"`
	KVHeads       *int            `json:"num_key_value_heads"`
	HeadDim       *int            `json:"head_dim"`
	Vocab         int             `json:"vocab_size"`
	Context       int             `json:"max_position_embeddings"`
	Eps           *float64        `json:"rms_norm_eps"`
	Act           string          `json:"hidden_act"`
	Tied          *bool           `json:"tie_word_embeddings"`
	AttnBias      bool            `json:"attention_bias"`
	MLPBias       bool            `json:"mlp_bias"`
	Theta         *float64        `json:"rope_theta"`
	Partial       *float64        `json:"partial_rotary_factor"`
	RoPE          *hfRoPE         `json:"rope_parameters"` // since transformers 5
	Scaling       *hfRoPE         `json:"rope_scaling"`
	Quantization  *hfQuantization `json:"quantization_config"`
	BOS           tokenIDs        `json:"bos_token_id"`
	EOS           tokenIDs        `json:"eos_token_id"`
	hfMoE
	hfWindow
}

type hfRoPE struct {
	Type      string   `json:"rope_type"`
	OldType   string   `json:"type"`
	Theta     *float64 `json:"rope_theta"`
	Partial   *float64 `json:"partial_rotary_factor"`
	Factor    *float64 `json:"factor"`
	Orig      *float64 `json:"original_max_position_embeddings"`
	LowFreq   *float64 `json:"low_freq_factor"`
	HighFreq  *float64 `json:"high_freq_factor"`
	BetaFast  *float64 `json:"beta_fast"`
	BetaSlow  *float64 `json:"beta_slow"`
	Attn      *float64 `json:"attention_factor"`
	MScale    *float64 `json:"mscale"`
	MScaleAll *float64 `json:"mscale_all_dim"`
	Truncate  *bool    `json:"truncate"`

	// Of models whose layers rotate in two ways.
	Full    *hfRoPE `json:"full_attention"`
	Sliding *hfRoPE `json:"sliding_attention"`
}

// tokenIDs accepts null, one id or a list of ids.
type tokenIDs []int32

// UnmarshalJSON implements json.Unmarshaler.
func (t *tokenIDs) UnmarshalJSON(b []byte) error {
	*t = nil
	s := strings.TrimSpace(string(b))
	if s == "null" {
		return nil
	}
	if strings.HasPrefix(s, "[") {
		return json.Unmarshal(b, (*[]int32)(t))
	}
	var id int32
	if err := json.Unmarshal(b, &id); err != nil {
		return err
	}
	*t = tokenIDs{id}
	return nil
}

func or[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

// parseHFConfig reads config.json and, when it is there, generation_config.json,
// whose end ids are the ones generation uses. hasHead tells whether the
// weights contain an output matrix.
func parseHFConfig(config, generation []byte, hasHead bool) (Config, error) {
	var h hfConfig
	if err := json.Unmarshal(config, &h); err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	if err := h.supported(); err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	c := Config{
		Arch: h.arch(), Name: h.Name, Layers: h.Layers, Hidden: h.Hidden, Inter: h.Inter,
		Heads: h.Heads, KVHeads: or(h.KVHeads, h.Heads), Vocab: h.Vocab, Context: h.Context,
		HeadDim: or(h.HeadDim, h.Hidden/max(h.Heads, 1)), Eps: float32(or(h.Eps, 1e-6)),
		// An absent key leaves it to the weights, as writers drop default values.
		Tied:    or(h.Tied, !hasHead),
		QKVBias: h.ModelType == "qwen2" || h.AttnBias,
		OutBias: h.AttnBias && h.ModelType != "qwen2",
		QKNorm:  hasQKNorm(h.arch()),
		BOS:     -1,
	}
	if c.Arch == archQwen3MoE {
		var err error
		if c.MoE, err = h.moe(); err != nil {
			return c, fmt.Errorf("config.json: %w", err)
		}
		if c.Inter == 0 && len(c.MoE.Dense) == 0 {
			c.Inter = c.MoE.Inter // no layer uses it
		}
	}
	if len(h.BOS) == 1 {
		c.BOS = h.BOS[0]
	}
	if c.Arch == archGemma3 {
		h.gemma(&c)
	} else {
		c.RoPE = h.rope(&c)
	}
	if err := h.windows(&c); err != nil {
		return c, fmt.Errorf("config.json: %w", err)
	}
	eos := h.EOS
	if len(generation) > 0 {
		var g struct {
			EOS tokenIDs `json:"eos_token_id"`
			SamplingDefaults
		}
		if err := json.Unmarshal(generation, &g); err != nil {
			return c, fmt.Errorf("generation_config.json: %w", err)
		}
		if err := g.validate(); err != nil {
			return c, fmt.Errorf("generation_config.json: %w", err)
		}
		c.Sampling = g.SamplingDefaults
		if len(g.EOS) > 0 {
			eos = g.EOS
		}
	}
	c.setEOS(eos)
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("config.json: %w", err)
	}
	return c, nil
}

// supported refuses what would otherwise load and give wrong numbers.
func (h *hfConfig) supported() error {
	if h.ModelType == archGemma3 {
		return fmt.Errorf("model_type: %q reads images; its text model, %q, and GGUF files of it are supported", h.ModelType, "gemma3_text")
	}
	if !knownArch(h.arch()) {
		return fmt.Errorf("model_type: %w", unsupportedArch(h.ModelType))
	}
	if len(h.Architectures) > 0 && !strings.HasSuffix(h.Architectures[0], "ForCausalLM") {
		return fmt.Errorf("architectures: %s is no causal language model", h.Architectures[0])
	}
	if or(h.SharedInter, 0) > 0 {
		return fmt.Errorf("shared_expert_intermediate_size: shared experts are not supported")
	}
	if h.MLPBias {
		return fmt.Errorf("mlp_bias is not supported")
	}
	if err := h.gemmaSupported(); err != nil {
		return err
	}
	if err := h.Quantization.supported(); err != nil {
		return fmt.Errorf("quantization_config: %w", err)
	}
	if h.Act != "" && h.arch() != archGemma3 && h.Act != "silu" && h.Act != "swish" {
		return fmt.Errorf("hidden_act %q is not supported (silu is)", h.Act)
	}
	return nil
}

func (h *hfConfig) rope(c *Config) RoPEConfig {
	p := &hfRoPE{}
	if h.Scaling != nil {
		p = h.Scaling
	}
	if h.RoPE != nil {
		p = h.RoPE
	}
	return h.ropeOf(c, p, or(p.Theta, or(h.Theta, 10000)))
}

// ropeOf reads one rotation; scaling may extend the context.
func (h *hfConfig) ropeOf(c *Config, p *hfRoPE, base float64) RoPEConfig {
	r := RoPEConfig{Base: base}
	partial := or(p.Partial, or(h.Partial, 1))
	if partial > 0 && partial <= 1 { // else Dims stays 0 and Validate says so
		r.Dims = int(float64(c.HeadDim) * partial)
	}
	kind := p.Type
	if kind == "" {
		kind = p.OldType
	}
	s := &r.Scaling
	s.Factor = or(p.Factor, 0)
	s.OrigContext = or(p.Orig, float64(h.Context))
	switch kind {
	case "", "default", "dynamic":
		// Dynamic scaling starts beyond max_position_embeddings, which stays the
		// limit here: frequencies that change with length would spoil cached keys.
		*s = Scaling{}
	case "linear":
		*s = Scaling{Type: ScalingLinear, Factor: s.Factor}
		c.extend(float64(h.Context) * s.Factor)
	case "llama3":
		s.Type, s.LowFreq, s.HighFreq = ScalingLlama3, or(p.LowFreq, 0), or(p.HighFreq, 0)
	case "yarn":
		s.Type = ScalingYaRN
		s.BetaFast, s.BetaSlow = or(p.BetaFast, 32), or(p.BetaSlow, 1)
		s.NoTruncate = !or(p.Truncate, true)
		s.Attn = p.attention(s.Factor)
		c.extend(s.OrigContext * s.Factor)
	default:
		s.Type = ScalingType(kind)
	}
	return r
}

// attention returns the YaRN factor of cos and sin.
func (p *hfRoPE) attention(factor float64) float64 {
	if p.Attn != nil {
		return *p.Attn
	}
	if or(p.MScale, 0) != 0 && or(p.MScaleAll, 0) != 0 {
		return yarnAttention(factor, *p.MScale) / yarnAttention(factor, *p.MScaleAll)
	}
	return yarnAttention(factor, 1)
}

// extend raises the context to what scaling makes of it.
func (c *Config) extend(context float64) {
	if context > float64(c.Context) && context <= math.MaxInt32 {
		c.Context = int(context)
	}
}
