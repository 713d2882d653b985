package model

import (
	"fmt"
	"strings"
)

// The canonical tensor names are those of GGUF: they are short and one scheme
// covers all architectures. A layer's tensors are "blk.N." plus a part.
var hfNames = map[string]string{
	"token_embd.weight":  "model.embed_tokens.weight",
	"output_norm.weight": "model.norm.weight",
	"output.weight":      "lm_head.weight",
}

var hfParts = map[string]string{
	"attn_norm":   "input_layernorm",
	"attn_q":      "self_attn.q_proj",
	"attn_k":      "self_attn.k_proj",
	"attn_v":      "self_attn.v_proj",
	"attn_q_norm": "self_attn.q_norm",
	"attn_k_norm": "self_attn.k_norm",
	"attn_output": "self_attn.o_proj",
	"ffn_norm":    "post_attention_layernorm",
	"ffn_gate":    "mlp.gate_proj",
	"ffn_up":      "mlp.up_proj",
	"ffn_down":    "mlp.down_proj",

	"ffn_gate_inp": "mlp.gate",
}

// hfGemma has the parts that Gemma 3 names otherwise.
var hfGemma = map[string]string{
	"post_attention_norm": "post_attention_layernorm",
	"ffn_norm":            "pre_feedforward_layernorm",
	"post_ffw_norm":       "post_feedforward_layernorm",
}

// hfExperts maps the stacked weights of a layer's experts to what a Hugging Face
// folder calls one expert's: "mlp.experts.E." plus this.
var hfExperts = map[string]string{
	"ffn_gate_exps": "gate_proj",
	"ffn_up_exps":   "up_proj",
	"ffn_down_exps": "down_proj",
}

// hfExpertName returns the name of one expert's part of a canonical name such
// as "blk.0.ffn_up_exps.weight".
func hfExpertName(name string, expert int) string {
	fields := strings.Split(name, ".")
	if len(fields) == 4 && fields[0] == "blk" {
		if part, ok := hfExperts[fields[2]]; ok {
			return fmt.Sprintf("model.layers.%s.mlp.experts.%d.%s.%s", fields[1], expert, part, fields[3])
		}
	}
	return name
}

// hfName returns the name a Hugging Face folder uses for a canonical name, or
// the name itself when there is none.
func hfName(arch, name string) string {
	if n, ok := hfNames[name]; ok {
		return n
	}
	fields := strings.Split(name, ".") // blk N part weight|bias
	if len(fields) == 4 && fields[0] == "blk" {
		part, ok := hfParts[fields[2]]
		if other, renamed := hfGemma[fields[2]]; renamed && arch == archGemma3 {
			part, ok = other, true
		}
		if ok {
			return "model.layers." + fields[1] + "." + part + "." + fields[3]
		}
	}
	return name
}
