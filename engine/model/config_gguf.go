package model

import (
	"errors"
	"fmt"
	"math"

	"tandem/engine/model/gguf"
	"tandem/engine/tensor"
)

// ggufReader reads metadata under an architecture's prefix; the first error
// sticks, so that a long list of keys reads as a list.
type ggufReader struct {
	f    *gguf.File
	arch string
	err  error
}

func (r *ggufReader) key(name string) string { return r.arch + "." + name }

func (r *ggufReader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

// number returns a size. Some files give one per layer; then all must agree.
func (r *ggufReader) number(name string) int {
	key := r.key(name)
	list, err := r.f.Ints(key)
	if err != nil {
		n, err := r.f.Uint(key)
		if err == nil && n > math.MaxInt32 {
			err = fmt.Errorf("GGUF key %q: %d is too large", key, n)
		}
		r.keep(err)
		return int(n)
	}
	for _, n := range list {
		if n != list[0] {
			r.keep(fmt.Errorf("GGUF key %q: layers differ (%d and %d), which is not supported", key, list[0], n))
		}
	}
	if len(list) == 0 || list[0] < 0 || list[0] > math.MaxInt32 {
		r.keep(fmt.Errorf("GGUF key %q: %v is no size", key, list))
		return 0
	}
	return int(list[0])
}

func (r *ggufReader) numberOr(name string, fallback int) int {
	if !r.f.Has(r.key(name)) {
		return fallback
	}
	return r.number(name)
}

func (r *ggufReader) float(name string) float64 {
	x, err := r.f.Float(r.key(name))
	r.keep(err)
	return x
}

func (r *ggufReader) floatOr(name string, fallback float64) float64 {
	if !r.f.Has(r.key(name)) {
		return fallback
	}
	return r.float(name)
}

func (r *ggufReader) stringOr(name, fallback string) string {
	s, err := r.f.String(r.key(name))
	if errors.Is(err, gguf.ErrMissing) {
		return fallback
	}
	r.keep(err)
	return s
}

func ggufConfig(f *gguf.File) (Config, error) {
	var c Config
	arch, err := f.String("general.architecture")
	if err != nil {
		return c, err
	}
	if !knownArch(arch) {
		return c, unsupportedArch(arch)
	}
	if n, err := f.Int("split.count"); err == nil && n > 1 {
		return c, fmt.Errorf("GGUF key \"split.count\": the model is split over %d files; merge them into one first", n)
	}
	r := &ggufReader{f: f, arch: arch}
	if n := r.numberOr("expert_count", 0); n > 0 && arch != archQwen3MoE {
		return c, fmt.Errorf("GGUF key %q: %d experts; of mixture-of-experts models only %s is supported", r.key("expert_count"), n, archQwen3MoE)
	}
	c.Arch = arch
	c.Name, _ = f.String("general.name") // a label only
	c.Layers = r.number("block_count")
	c.Hidden = r.number("embedding_length")
	if arch == archQwen3MoE {
		c.MoE = r.moe(c.Layers)
	}
	c.Inter = r.inter(&c.MoE)
	c.Heads = r.number("attention.head_count")
	c.KVHeads = r.numberOr("attention.head_count_kv", c.Heads)
	c.HeadDim = r.numberOr("attention.key_length", c.Hidden/max(c.Heads, 1))
	if v := r.numberOr("attention.value_length", c.HeadDim); v != c.HeadDim {
		r.keep(fmt.Errorf("GGUF key %q: %d differs from the key length %d, which is not supported", r.key("attention.value_length"), v, c.HeadDim))
	}
	c.Context = r.number("context_length")
	c.Eps = float32(r.float("attention.layer_norm_rms_epsilon"))
	c.RoPE = r.rope(&c)
	if arch == archGemma3 {
		r.gemma(&c)
	}
	r.windows(&c)
	ggufFlags(f, &c)
	r.specialTokens(&c)
	if r.err != nil {
		return c, r.err
	}
	return c, c.Validate()
}

// ggufFlags reads from the tensors what metadata leave open.
func ggufFlags(f *gguf.File, c *Config) {
	has := func(name string) bool { _, ok := f.Tensor(name); return ok }
	if emb, ok := f.Tensor("token_embd.weight"); ok {
		c.Vocab = emb.Rows()
	}
	c.Tied = !has("output.weight")
	c.QKVBias = c.Arch == "qwen2" || has("blk.0.attn_q.bias")
	c.OutBias = has("blk.0.attn_output.bias")
	c.QKNorm = hasQKNorm(c.Arch)
}

func (r *ggufReader) rope(c *Config) RoPEConfig {
	rope := RoPEConfig{
		Base: r.floatOr("rope.freq_base", 10000),
		Dims: r.numberOr("rope.dimension_count", c.HeadDim),
		// Converters reorder the rows of Q and K of these for adjacent pairs.
		Adjacent: r.arch == "llama" || r.arch == "mistral",
	}
	s := &rope.Scaling
	s.Factor = r.floatOr("rope.scaling.factor", 1)
	kind := r.stringOr("rope.scaling.type", "")
	if kind == "" && r.f.Has(r.key("rope.scale_linear")) {
		kind, s.Factor = "linear", r.float("rope.scale_linear")
	}
	switch kind {
	case "", "none":
		*s = Scaling{}
	case "yarn":
		s.Type = ScalingYaRN
		s.OrigContext = float64(r.numberOr("rope.scaling.original_context_length", c.Context))
		s.BetaFast = r.floatOr("rope.scaling.yarn_beta_fast", 32)
		s.BetaSlow = r.floatOr("rope.scaling.yarn_beta_slow", 1)
		s.Attn = yarnAttention(s.Factor, 1) * r.floatOr("rope.scaling.attn_factor", 1)
	default:
		s.Type = ScalingType(kind)
	}
	if t, ok := r.f.Tensor("rope_freqs.weight"); ok && s.Type == ScalingNone {
		if len(t.Shape) != 1 || t.DType != tensor.F32 {
			r.keep(fmt.Errorf("tensor %q: %v of %s, want one dimension of F32", t.Name, t.Shape, t.DType))
			return rope
		}
		s.Type, s.Divisors = ScalingDivisor, float32s(t.Data)
	}
	return rope
}

func (r *ggufReader) specialTokens(c *Config) {
	c.BOS = r.tokenID("tokenizer.ggml.bos_token_id")
	var eos []int32
	for _, key := range []string{"eos", "eot", "eom"} {
		if id := r.tokenID("tokenizer.ggml." + key + "_token_id"); id >= 0 {
			eos = append(eos, id)
		}
	}
	c.setEOS(eos)
}

// tokenID returns -1 for an absent key, and for the all-ones value by which
// some files say "none".
func (r *ggufReader) tokenID(key string) int32 {
	n, err := r.f.Int(key)
	if errors.Is(err, gguf.ErrMissing) || n == -1 || n == math.MaxUint32 {
		return -1
	}
	if err == nil && (n < 0 || n > math.MaxInt32) {
		err = fmt.Errorf("GGUF key %q: %d is no token id", key, n)
	}
	r.keep(err)
	return int32(n)
}
