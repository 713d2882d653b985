package tinymodel

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Size is the shape of a servable model.
type Size struct {
	Hidden, Layers, Heads, KVHeads, HeadDim, Inter int
	Vocab                                          int // at least 257
	Context                                        int // longest sequence
}

// servable is small enough for everything.
var servable = Size{Hidden: 32, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Inter: 64, Vocab: 512, Context: 4096}

// WriteServable puts a random model of two layers that can be served, with a tokenizer and a chat template, into dir. What
// it says means nothing and depends on every token before it. Its tokens are the end of a text, all bytes, so that half
// characters occur, and words of random letters. The same seed gives the same files.
func WriteServable(dir string, seed uint64) error { return writeServable(dir, seed, dense) }

// WriteServableMoE is WriteServable of a model whose layers have four experts each, of which a token gets two.
func WriteServableMoE(dir string, seed uint64) error { return writeServable(dir, seed, moe) }

// Window is how many positions a layer with a window sees, which is no multiple of any block.
const Window = 41

// WriteServableMistral is WriteServable of a model whose layers all have a window.
func WriteServableMistral(dir string, seed uint64) error { return writeServable(dir, seed, mistral) }

// WriteServableGemma is WriteServable of a Gemma 3: the first layer has a window and a rotation of its own, the second sees all.
func WriteServableGemma(dir string, seed uint64) error { return writeServable(dir, seed, gemma) }

// kind is the architecture of a servable model.
type kind int

const (
	dense kind = iota
	moe
	mistral
	gemma

	experts = 4 // of a layer
)

func writeServable(dir string, seed uint64, k kind) error {
	if err := servable.describe(dir, seed, k); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, weightsFile), servableWeights(seed, k), 0o600); err != nil {
		return fmt.Errorf("servable model: %w", err)
	}
	return nil
}

const weightsFile = "model.safetensors"

// describe writes everything but the weights.
func (s Size) describe(dir string, seed uint64, k kind) error {
	config := map[string]any{
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "num_hidden_layers": s.Layers,
		"hidden_size": s.Hidden, "intermediate_size": s.Inter, "num_attention_heads": s.Heads,
		"num_key_value_heads": s.KVHeads, "head_dim": s.HeadDim, "vocab_size": s.Vocab,
		"max_position_embeddings": s.Context, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false,
		"rope_theta": 10000, "bos_token_id": 0, "eos_token_id": 0,
	}
	maps.Copy(config, s.differs(k))
	files := map[string]any{
		"config.json":    config,
		"tokenizer.json": servableTokenizer(seed, s.Vocab),
		"tokenizer_config.json": map[string]any{
			"eos_token":     servableEnd,
			"chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
		},
	}
	for name, val := range files {
		data, err := json.Marshal(val)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			return fmt.Errorf("servable model: %w", err)
		}
	}
	return nil
}

// differs returns what a kind has else in its config.json.
func (s Size) differs(k kind) map[string]any {
	switch k {
	case moe:
		return map[string]any{
			"model_type": "qwen3_moe", "architectures": []string{"Qwen3MoeForCausalLM"}, "num_experts": experts, "num_experts_per_tok": 2,
			"moe_intermediate_size": s.Inter, "norm_topk_prob": true,
		}
	case mistral:
		return map[string]any{"model_type": "mistral", "architectures": []string{"MistralForCausalLM"}, "sliding_window": Window}
	case gemma:
		return map[string]any{
			"model_type": "gemma3_text", "architectures": []string{"Gemma3ForCausalLM"}, "sliding_window": Window, "sliding_window_pattern": 2,
			"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": s.HeadDim, "rope_local_base_freq": 100,
		}
	}
	return nil
}

const servableEnd = "<|end|>"

// servableTokenizer is a byte-level one: a word is either a token as a whole or its bytes.
func servableTokenizer(seed uint64, size int) any {
	rng := rand.New(rand.NewPCG(seed, 1))
	vocab := map[string]int{servableEnd: 0}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad { // those that do not print are spelled by other characters
			r, next = next, next+1
		}
		vocab[string(r)] = 1 + b
	}
	for len(vocab) < size {
		word := "Ġ"
		for range 2 + rng.IntN(6) {
			word += string(rune('a' + rng.IntN(26)))
		}
		if _, ok := vocab[word]; !ok {
			vocab[word] = len(vocab)
		}
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	return map[string]any{
		"added_tokens":  []any{map[string]any{"id": 0, "content": servableEnd, "special": true}},
		"pre_tokenizer": level, "decoder": level,
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}, "ignore_merges": true},
	}
}

// weight is one tensor of a model: normal numbers of that mean and deviation.
type weight struct {
	name         string
	mean, spread float64
	shape        []int
}

// elems is the number of elements.
func (w *weight) elems() int {
	n := 1
	for _, d := range w.shape {
		n *= d
	}
	return n
}

// weights lists the tensors in the order of the file.
func (s Size) weights(k kind) (list []weight) {
	add := func(name string, mean, spread float64, shape ...int) {
		list = append(list, weight{name, mean, spread, shape})
	}
	add("model.embed_tokens.weight", 0, 0.5, s.Vocab, s.Hidden)
	add("lm_head.weight", 0, 0.5, s.Vocab, s.Hidden)
	add("model.norm.weight", 1, 0.2, s.Hidden)
	for i := range s.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", 1, 0.2, s.Hidden)
		add(p+"post_attention_layernorm.weight", 1, 0.2, s.Hidden)
		add(p+"self_attn.q_proj.weight", 0, 0.3, s.Heads*s.HeadDim, s.Hidden)
		add(p+"self_attn.k_proj.weight", 0, 0.3, s.KVHeads*s.HeadDim, s.Hidden)
		add(p+"self_attn.v_proj.weight", 0, 0.3, s.KVHeads*s.HeadDim, s.Hidden)
		add(p+"self_attn.o_proj.weight", 0, 0.3, s.Hidden, s.Heads*s.HeadDim)
		mlp := func(p string) {
			add(p+"gate_proj.weight", 0, 0.2, s.Inter, s.Hidden)
			add(p+"up_proj.weight", 0, 0.2, s.Inter, s.Hidden)
			add(p+"down_proj.weight", 0, 0.2, s.Hidden, s.Inter)
		}
		if k == moe || k == gemma {
			add(p+"self_attn.q_norm.weight", 1, 0.2, s.HeadDim)
			add(p+"self_attn.k_norm.weight", 1, 0.2, s.HeadDim)
		}
		if k == gemma {
			add(p+"pre_feedforward_layernorm.weight", 1, 0.2, s.Hidden)
			add(p+"post_feedforward_layernorm.weight", 1, 0.2, s.Hidden)
		}
		if k != moe {
			mlp(p + "mlp.")
			continue
		}
		add(p+"mlp.gate.weight", 0, 0.5, experts, s.Hidden)
		for e := range experts {
			mlp(fmt.Sprintf("%smlp.experts.%d.", p, e))
		}
	}
	return list
}

// servableWeights are a safetensors file.
func servableWeights(seed uint64, k kind) []byte {
	rng := rand.New(rand.NewPCG(seed, 2))
	list := servable.weights(k)
	out, _ := header(list, "F32", 4)
	for i := range list {
		w := &list[i]
		for range w.elems() {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(w.mean+w.spread*rng.NormFloat64())))
		}
	}
	return out
}

// header is the beginning of a safetensors file, and the bytes of data behind it.
func header(list []weight, dtype string, size int) (head []byte, bytes int64) {
	index := map[string]any{}
	for i := range list {
		next := bytes + int64(size)*int64(list[i].elems())
		index[list[i].name] = map[string]any{"dtype": dtype, "shape": list[i].shape, "data_offsets": []int64{bytes, next}}
		bytes = next
	}
	text, _ := json.Marshal(index) // strings and numbers have an encoding
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), bytes
}
