package model

import (
	"fmt"
	"slices"
	"strings"

	"tandem/engine/tensor"
)

// Config is a model's architecture, as far as the engine needs it, read from
// GGUF metadata or from config.json.
type Config struct {
	Arch    string // one of Architectures
	Name    string // what the file calls the model; may be empty
	Layers  int
	Hidden  int // width of the residual stream
	Heads   int // query heads
	KVHeads int // key and value heads; divides Heads
	HeadDim int
	Inter   int // width of the gated MLP
	Vocab   int // rows of the embedding table
	Context int // positions the model can attend to exactly
	// Windows has, for each layer, how many positions a query sees, its own the last;
	// 0 = all before it. nil: all layers see all.
	Windows []int `json:",omitempty"`
	Eps     float32
	RoPE    RoPEConfig
	// LocalRoPE is the rotation in layers that have a window; nil = RoPE.
	LocalRoPE *RoPEConfig `json:",omitempty"`
	// AttnScale multiplies the products of queries and keys; 0 = 1/sqrt(HeadDim).
	AttnScale float64 `json:",omitempty"`
	Tied      bool    // the output matrix is the embedding table
	QKVBias   bool
	OutBias   bool    // bias of the attention's output projection
	QKNorm    bool    // RMSNorm on each query and key head
	BOS       int32   // -1 when the file names none
	EOS       []int32 // ids that end a generation, ascending; may be empty

	MoE      MoEConfig        `json:",omitzero"` // zero for a dense model
	Sampling SamplingDefaults // of generation_config.json
}

// SamplingDefaults are the sampling values that a model's authors recommend;
// nil where they say nothing.
type SamplingDefaults struct {
	Temperature       *float64 `json:"temperature"`
	TopP              *float64 `json:"top_p"`
	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
}

// validate refuses values that no request could have.
func (d *SamplingDefaults) validate() error {
	bad := func(v *float64, lo, hi float64) bool { return v != nil && !(*v >= lo && *v <= hi) }
	switch {
	case bad(d.Temperature, 0, 100):
		return fmt.Errorf("temperature %v is not 0 to 100", *d.Temperature)
	case bad(d.TopP, 1e-9, 1):
		return fmt.Errorf("top_p %v is not above 0 and at most 1", *d.TopP)
	case d.TopK != nil && *d.TopK < 0:
		return fmt.Errorf("top_k %d is negative", *d.TopK)
	case bad(d.MinP, 0, 1):
		return fmt.Errorf("min_p %v is not 0 to 1", *d.MinP)
	case bad(d.RepetitionPenalty, 1e-3, 1e3):
		return fmt.Errorf("repetition_penalty %v is not 0.001 to 1000", *d.RepetitionPenalty)
	}
	return nil
}

// Architectures lists the values of Config.Arch that Build knows.
var Architectures = []string{"llama", "mistral", "qwen2", "qwen3", archQwen3MoE, archGemma3}

// archQwen3MoE is the GGUF name; a Hugging Face folder says "qwen3_moe".
const archQwen3MoE = "qwen3moe"

// archGemma3 is the GGUF name, too; a Hugging Face folder says "gemma3_text".
const archGemma3 = "gemma3"

func unsupportedArch(arch string) error {
	return fmt.Errorf("architecture %q is not supported (supported: %s)", arch, strings.Join(Architectures, ", "))
}

func knownArch(arch string) bool { return slices.Contains(Architectures, arch) }

// Upper bounds that no real model reaches. They keep products of a lying
// file's numbers within an int and allocations small.
const (
	maxLayers = 4096
	maxWidth  = 1 << 24
	maxHeads  = 1 << 14
	maxExpert = 1 << 12
	maxUsed   = 64 // experts of a token that backends are made for
)

// Validate reports the first impossible value by the name of its field.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name   string
		v, max int
	}{
		{"layers", c.Layers, maxLayers},
		{"hidden size", c.Hidden, maxWidth},
		{"attention heads", c.Heads, maxHeads},
		{"key/value heads", c.KVHeads, maxHeads},
		{"head dimension", c.HeadDim, maxHeads},
		{"intermediate size", c.Inter, maxWidth},
		{"context length", c.Context, 1 << 30},
	} {
		if f.v < 1 || f.v > f.max {
			return fmt.Errorf("%s is %d, want 1 to %d", f.name, f.v, f.max)
		}
	}
	if err := c.MoE.validate(c.Arch == archQwen3MoE, c.Layers); err != nil {
		return err
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("%d attention heads are no multiple of %d key/value heads", c.Heads, c.KVHeads)
	}
	if !(c.Eps > 0 && c.Eps < 1) {
		return fmt.Errorf("RMSNorm epsilon is %v, want a value between 0 and 1", c.Eps)
	}
	if err := c.RoPE.validate(c.HeadDim); err != nil {
		return err
	}
	if c.LocalRoPE != nil {
		if err := c.LocalRoPE.validate(c.HeadDim); err != nil {
			return err
		}
	}
	for layer, w := range c.Windows {
		if w < 0 {
			return fmt.Errorf("sliding window of layer %d is %d, want 1 or more, or 0 for none", layer, w)
		}
	}
	if !(c.AttnScale >= 0 && c.AttnScale < 1e6) {
		return fmt.Errorf("attention scale is %v, want a positive number", c.AttnScale)
	}
	if c.Vocab < 1 || c.Vocab > maxWidth {
		return fmt.Errorf("vocabulary is %d, want 1 to %d", c.Vocab, maxWidth)
	}
	if c.BOS < -1 || int(c.BOS) >= c.Vocab {
		return fmt.Errorf("beginning-of-sequence id %d is outside the vocabulary of %d", c.BOS, c.Vocab)
	}
	for _, id := range c.EOS {
		if id < 0 || int(id) >= c.Vocab {
			return fmt.Errorf("end-of-sequence id %d is outside the vocabulary of %d", id, c.Vocab)
		}
	}
	return nil
}

// KVBytesPerToken returns the bytes of keys and values of one position over all
// layers when the cache stores elements of type t.
func (c *Config) KVBytesPerToken(t tensor.DType) int {
	return tensor.KVShape{Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim, BlockTokens: 1, DType: t}.BlockBytes()
}

func (c *Config) setEOS(ids []int32) {
	slices.Sort(ids)
	c.EOS = slices.Compact(ids)
}

// setWindows gives a window to each layer that slides. A window of all positions
// is none, unless such layers differ in their rotation, too.
func (c *Config) setWindows(window int, slides func(layer int) bool) {
	if window <= 0 || window >= c.Context && c.LocalRoPE == nil {
		return
	}
	for i := range min(c.Layers, maxLayers) {
		w := 0
		if slides(i) {
			w = min(window, c.Context)
		}
		c.Windows = append(c.Windows, w)
	}
	if c.Windows != nil && slices.Max(c.Windows) == 0 {
		c.Windows = nil
	}
}

// Window returns how many positions a query sees in a layer, its own the last;
// 0 = all before it.
func (c *Config) Window(layer int) int {
	if layer >= len(c.Windows) {
		return 0
	}
	return c.Windows[layer]
}

// Reach returns how many positions before and with its own a query needs of the
// cache in any layer: the largest window, or 0 when a layer sees all.
func (c *Config) Reach() int {
	if len(c.Windows) == 0 || slices.Min(c.Windows) == 0 {
		return 0
	}
	return slices.Max(c.Windows)
}

// WithinWindow returns the model for requests no longer than its smallest window.
// For these, windows change nothing, and so it has none. The model must have no
// LocalRoPE, which goes by windows.
func (c Config) WithinWindow() Config {
	for _, w := range c.Windows {
		if w > 0 {
			c.Context = min(c.Context, w)
		}
	}
	c.Windows = nil
	return c
}
