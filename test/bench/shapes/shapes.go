// Package shapes writes GGUF files of random weights in the shapes of known
// models: speed does not depend on what weights say, so an engine, or two of them
// on the same file, can be measured without the models. Their text is noise.
package shapes

import (
	"fmt"
	"slices"
	"strings"
)

// Shape is the geometry of a model.
type Shape struct {
	Name, Arch                            string
	Layers, Hidden, Heads, KVHeads, Width int // Width of a head
	Inter, Vocab, Context                 int
	Theta, Eps                            float32
	Experts, Used                         int // 0 = dense; Inter is then an expert's
}

// All are the shapes that New knows. The last one is a mixture of experts whose
// layers are those of the 30B model with half its experts.
var All = []Shape{
	{Name: "smollm2-135m", Arch: "llama", Layers: 30, Hidden: 576, Heads: 9, KVHeads: 3, Width: 64, Inter: 1536, Vocab: 49152, Context: 8192, Theta: 1e5, Eps: 1e-5},
	{Name: "qwen3-0.6b", Arch: "qwen3", Layers: 28, Hidden: 1024, Heads: 16, KVHeads: 8, Width: 128, Inter: 3072, Vocab: 151936, Context: 40960, Theta: 1e6, Eps: 1e-6},
	{Name: "llama-3.2-1b", Arch: "llama", Layers: 16, Hidden: 2048, Heads: 32, KVHeads: 8, Width: 64, Inter: 8192, Vocab: 128256, Context: 131072, Theta: 5e5, Eps: 1e-5},
	{Name: "qwen3-moe", Arch: "qwen3moe", Layers: 6, Hidden: 2048, Heads: 32, KVHeads: 4, Width: 128, Inter: 768, Vocab: 32000, Context: 32768, Theta: 1e6, Eps: 1e-6, Experts: 64, Used: 8},
}

// Find returns the shape of a name.
func Find(name string) (Shape, error) {
	var names []string
	for _, s := range All {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Shape{}, fmt.Errorf("shape %q is unknown: %s", name, strings.Join(names, ", "))
}

// dtype is an element type of GGUF: its number, and values and bytes of a group.
type dtype struct {
	number, elems, bytes int
}

var dtypes = map[string]dtype{
	"f32": {0, 1, 4}, "q4_0": {2, 32, 18}, "q8_0": {8, 32, 34}, "q4_k": {12, 256, 144}, "bf16": {30, 1, 2},
}

// weight is one of the file's; dims are fastest first.
type weight struct {
	name  string
	dims  []int
	dtype string
}

func (t weight) bytes() int {
	n, d := 1, dtypes[t.dtype]
	for _, dim := range t.dims {
		n *= dim
	}
	return n / d.elems * d.bytes
}

// tensors lists them in the order of the file. With 4 bits the embedding, which
// is the output matrix too, has 8, as quantised models do.
func (s Shape) tensors(kind string) []weight {
	table := kind
	if kind == "q4_0" || kind == "q4_k" {
		table = "q8_0"
	}
	list := []weight{{"token_embd.weight", []int{s.Hidden, s.Vocab}, table}, {"output_norm.weight", []int{s.Hidden}, "f32"}}
	for i := range s.Layers {
		add := func(name, kind string, dims ...int) {
			list = append(list, weight{fmt.Sprintf("blk.%d.%s.weight", i, name), dims, kind})
		}
		q, kv := s.Heads*s.Width, s.KVHeads*s.Width
		add("attn_norm", "f32", s.Hidden)
		add("attn_q", kind, s.Hidden, q)
		add("attn_k", kind, s.Hidden, kv)
		add("attn_v", kind, s.Hidden, kv)
		add("attn_output", kind, q, s.Hidden)
		if s.Arch != "llama" {
			add("attn_q_norm", "f32", s.Width)
			add("attn_k_norm", "f32", s.Width)
		}
		add("ffn_norm", "f32", s.Hidden)
		if s.Experts == 0 {
			add("ffn_gate", kind, s.Hidden, s.Inter)
			add("ffn_up", kind, s.Hidden, s.Inter)
			add("ffn_down", kind, s.Inter, s.Hidden)
			continue
		}
		add("ffn_gate_inp", "f32", s.Hidden, s.Experts)
		add("ffn_gate_exps", kind, s.Hidden, s.Inter, s.Experts)
		add("ffn_up_exps", kind, s.Hidden, s.Inter, s.Experts)
		add("ffn_down_exps", kind, s.Inter, s.Hidden, s.Experts)
	}
	return list
}

// keys are the metadata in the order of the file.
func (s Shape) keys() []key {
	p := s.Arch + "."
	list := []key{
		{"general.architecture", s.Arch},
		{"general.name", s.Name + "-random"},
		{p + "block_count", uint32(s.Layers)},
		{p + "context_length", uint32(s.Context)},
		{p + "embedding_length", uint32(s.Hidden)},
		{p + "feed_forward_length", uint32(s.Inter)},
		{p + "attention.head_count", uint32(s.Heads)},
		{p + "attention.head_count_kv", uint32(s.KVHeads)},
		{p + "attention.key_length", uint32(s.Width)},
		{p + "attention.value_length", uint32(s.Width)},
		{p + "rope.dimension_count", uint32(s.Width)},
		{p + "rope.freq_base", s.Theta},
		{p + "attention.layer_norm_rms_epsilon", s.Eps},
		{p + "vocab_size", uint32(s.Vocab)},
	}
	if s.Experts > 0 {
		list = append(list, key{p + "expert_count", uint32(s.Experts)}, key{p + "expert_used_count", uint32(s.Used)},
			key{p + "expert_feed_forward_length", uint32(s.Inter)})
	}
	tokens := vocabulary(s.Vocab)
	types := make([]int32, len(tokens))
	for i := range types {
		types[i] = 1
	}
	types[len(types)-1] = 3
	end := uint32(len(tokens) - 1)
	return append(list, key{"tokenizer.ggml.model", "gpt2"}, key{"tokenizer.ggml.pre", "default"},
		key{"tokenizer.ggml.tokens", tokens}, key{"tokenizer.ggml.token_type", types}, key{"tokenizer.ggml.merges", []string{"a b"}},
		key{"tokenizer.ggml.bos_token_id", end}, key{"tokenizer.ggml.eos_token_id", end})
}

// vocabulary has the 256 symbols of byte-level BPE, then "ab", then tokens that
// no text gives.
func vocabulary(n int) []string {
	tokens, other := make([]string, 0, n), rune(256)
	for b := range rune(256) {
		if b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad {
			tokens = append(tokens, string(b))
			continue
		}
		tokens = append(tokens, string(other))
		other++
	}
	tokens = append(tokens, "ab")
	for i := len(tokens); i < n-1; i++ {
		tokens = append(tokens, fmt.Sprintf("[%d]", i))
	}
	return append(tokens, "<|end|>")
}

// Kinds are the element types that New writes.
func Kinds() []string {
	var list []string
	for k := range dtypes {
		if k != "f32" {
			list = append(list, k)
		}
	}
	slices.Sort(list)
	return list
}
