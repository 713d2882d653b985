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

// Sizes of the servable model.
const (
	servableHidden  = 32
	servableLayers  = 2
	servableHeads   = 4
	servableKVHeads = 2
	servableHeadDim = 16
	servableInter   = 64
	servableVocab   = 512
	servableContext = 4096
)

// WriteServable puts a random model of two layers that can be served, with a tokenizer and a chat template, into dir. What
// it says means nothing and depends on every token before it. Its tokens are the end of a text, all bytes, so that half
// characters occur, and words of random letters. The same seed gives the same files.
func WriteServable(dir string, seed uint64) error { return writeServable(dir, seed, 0) }

// WriteServableMoE is WriteServable of a model whose layers have four experts each, of which a token gets two.
func WriteServableMoE(dir string, seed uint64) error { return writeServable(dir, seed, 4) }

func writeServable(dir string, seed uint64, experts int) error {
	config := map[string]any{
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "num_hidden_layers": servableLayers,
		"hidden_size": servableHidden, "intermediate_size": servableInter, "num_attention_heads": servableHeads,
		"num_key_value_heads": servableKVHeads, "head_dim": servableHeadDim, "vocab_size": servableVocab,
		"max_position_embeddings": servableContext, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false,
		"rope_theta": 10000, "bos_token_id": 0, "eos_token_id": 0,
	}
	if experts > 0 {
		maps.Copy(config, map[string]any{
			"model_type": "qwen3_moe", "architectures": []string{"Qwen3MoeForCausalLM"}, "num_experts": experts, "num_experts_per_tok": 2,
			"moe_intermediate_size": servableInter, "norm_topk_prob": true,
		})
	}
	files := map[string]any{
		"config.json":    config,
		"tokenizer.json": servableTokenizer(seed),
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
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), servableWeights(seed, experts), 0o600); err != nil {
		return fmt.Errorf("servable model: %w", err)
	}
	return nil
}

const servableEnd = "<|end|>"

// servableTokenizer is a byte-level one: a word is either a token as a whole or its bytes.
func servableTokenizer(seed uint64) any {
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
	for len(vocab) < servableVocab {
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

// servableWeights are a safetensors file.
func servableWeights(seed uint64, experts int) []byte {
	rng := rand.New(rand.NewPCG(seed, 2))
	header, data := map[string]any{}, []byte(nil)
	add := func(name string, mean, spread float64, shape ...int) {
		n, begin := 1, len(data)
		for _, d := range shape {
			n *= d
		}
		for range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(mean+spread*rng.NormFloat64())))
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{begin, len(data)}}
	}
	add("model.embed_tokens.weight", 0, 0.5, servableVocab, servableHidden)
	add("lm_head.weight", 0, 0.5, servableVocab, servableHidden)
	add("model.norm.weight", 1, 0.2, servableHidden)
	for i := range servableLayers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", 1, 0.2, servableHidden)
		add(p+"post_attention_layernorm.weight", 1, 0.2, servableHidden)
		add(p+"self_attn.q_proj.weight", 0, 0.3, servableHeads*servableHeadDim, servableHidden)
		add(p+"self_attn.k_proj.weight", 0, 0.3, servableKVHeads*servableHeadDim, servableHidden)
		add(p+"self_attn.v_proj.weight", 0, 0.3, servableKVHeads*servableHeadDim, servableHidden)
		add(p+"self_attn.o_proj.weight", 0, 0.3, servableHidden, servableHeads*servableHeadDim)
		mlp := func(p string) {
			add(p+"gate_proj.weight", 0, 0.2, servableInter, servableHidden)
			add(p+"up_proj.weight", 0, 0.2, servableInter, servableHidden)
			add(p+"down_proj.weight", 0, 0.2, servableHidden, servableInter)
		}
		if experts == 0 {
			mlp(p + "mlp.")
			continue
		}
		add(p+"self_attn.q_norm.weight", 1, 0.2, servableHeadDim)
		add(p+"self_attn.k_norm.weight", 1, 0.2, servableHeadDim)
		add(p+"mlp.gate.weight", 0, 0.5, experts, servableHidden)
		for e := range experts {
			mlp(fmt.Sprintf("%smlp.experts.%d.", p, e))
		}
	}
	head, _ := json.Marshal(header) // strings and numbers have an encoding
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	return append(append(out, head...), data...)
}
