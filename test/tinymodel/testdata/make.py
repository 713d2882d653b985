"""Writes the tiny models of this folder and the logits that `transformers`
computes for them in float32. Weights are random from fixed seeds.

Run: python3 make.py (transformers==5.24.0, torch==2.15.0, gguf==0.19.0).
For each model: NAME/ (a Hugging Face folder) or NAME.gguf, and NAME.json with
token sequences and, base64 of little-endian float32, logits [tokens, vocab].
"""
import base64
import json
import pathlib
import shutil

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers as tf

here = pathlib.Path(__file__).parent
VOCAB = 64
BASE = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, attn_implementation="eager")
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)


def build(seed, kind, scale=1.0, **changes):
    config_class, model_class = {
        "llama": (tf.LlamaConfig, tf.LlamaForCausalLM), "mistral": (tf.MistralConfig, tf.MistralForCausalLM),
        "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM), "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM),
        "gemma3": (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM),
        "qwen3_moe": (tf.Qwen3MoeConfig, tf.Qwen3MoeForCausalLM),
    }[kind]
    model = model_class(config_class(**{**BASE, **changes})).eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if name.endswith("norm.weight"):
                p.copy_((kind != "gemma3") + 0.2 * noise)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            elif name.endswith("mlp.gate.weight"):
                p.copy_(0.5 * scale * noise)
            elif "embed" in name or "lm_head" in name:
                p.copy_(0.5 * scale * noise)
            else:
                p.copy_(0.2 * scale * noise)
    model.generation_config.eos_token_id = [5, 2]
    return model.float()


def expect(name, model, seed, lengths=(48, 9, 1)):
    rng = np.random.default_rng(seed)
    out = []
    for n in lengths:
        tokens = rng.integers(0, VOCAB, n).tolist()
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].numpy().astype("<f4")
        out.append({"tokens": tokens, "logits": base64.b64encode(logits.tobytes()).decode()})
    (here / f"{name}.json").write_text(json.dumps({"vocab": VOCAB, "sequences": out}, indent=1) + "\n")


def folder(name, dtype, model, shard=None, **more):
    path = here / name
    shutil.rmtree(path, ignore_errors=True)
    kwargs = {"max_shard_size": shard} if shard else {}
    model.to(dtype).save_pretrained(path, **kwargs)
    # Loaded anew: casting the model would round its rotation frequencies too.
    loaded = tf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    expect(name, loaded.eval(), len(name), **more)


def fp8_folder(name, model):
    """Matrices in e4m3 with a scale for each block of 128 x 128, as DeepSeek and Qwen publish them. The logits are
    those of the weights that result."""
    path = here / name
    shutil.rmtree(path, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(path)
    tensors, plain = {}, {}
    for full, w in safetensors.torch.load_file(path / "model.safetensors").items():
        if w.ndim != 2 or full.endswith("mlp.gate.weight") or "embed" in full or "lm_head" in full:
            tensors[full] = plain[full] = w
            continue
        rows, cols = w.shape
        scales = torch.empty(-(-rows // 128), -(-cols // 128))
        out, plain[full] = torch.empty(w.shape, dtype=torch.float8_e4m3fn), torch.empty(w.shape)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
                scales[i, j] = w[at].float().abs().max() / 448
                out[at] = (w[at].float() / scales[i, j]).to(torch.float8_e4m3fn)
                plain[full][at] = out[at].float() * scales[i, j]
        tensors[full], tensors[full + "_scale_inv"] = out, scales
    safetensors.torch.save_file({k: v.float() for k, v in plain.items()}, path / "model.safetensors", metadata={"format": "pt"})
    loaded = tf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    expect(name, loaded.eval(), len(name))
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128])
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}


def gguf_name(name, arch):
    stem, end = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, n, part = stem.split(".", 3)
        part = "post_attention_norm" if arch == "gemma3" and part == "post_attention_layernorm" else GGUF_NAMES[part]
        return f"blk.{n}.{part}.{end}"
    return GGUF_NAMES[stem] + "." + end


def split_experts(params):
    """The weights by the names of GGUF; slices of stacked gate and up share memory with them."""
    out = {}
    for full, p in params.items():
        p = p.detach()
        if full.endswith("experts.gate_up_proj"):
            half = p.shape[1] // 2
            out[full.replace("gate_up_proj", "gate_proj.weight")] = p[:, :half]
            out[full.replace("gate_up_proj", "up_proj.weight")] = p[:, half:]
        elif full.endswith("experts.down_proj"):
            out[full + ".weight"] = p
        else:
            out[full] = p
    return out


def adjacent(w, heads):
    """Rows of each head from halves (i, i+d/2) to neighbours (2i, 2i+1)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def write_gguf(name, model, types, divisors=None, **more):
    """types: quantisation types given to the matrices in turn."""
    c, arch = model.config, model.config.model_type.replace("_text", "").replace("_", "")
    w = gguf.GGUFWriter(here / f"{name}.gguf", arch)
    w.add_name(name)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    if arch == "qwen3moe":
        w.add_expert_count(c.num_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    if arch == "gemma3":
        w.add_sliding_window(c.sliding_window)
    else:
        w.add_rope_freq_base(10000.0)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([f"t{i}" for i in range(VOCAB)])
    w.add_token_types([3 if i < 3 else 1 for i in range(VOCAB)])
    w.add_token_merges(["t 1", "t 2"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template("{{ messages[0].content }}")
    if divisors is not None:
        w.add_tensor("rope_freqs.weight", divisors)
    turn = 0
    for full, p in split_experts(dict(model.named_parameters())).items():
        x = p.float().contiguous().numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(full.split(".")[-2])
        swap = arch == "llama" and heads
        if swap:
            x = adjacent(x, heads)
        if x.ndim == 1 or full.endswith("mlp.gate.weight"):
            w.add_tensor(gguf_name(full, arch), x + (arch == "gemma3"))
            continue
        t = types[turn % len(types)]
        turn += 1
        raw = gguf.quants.quantize(x, t)
        w.add_tensor(gguf_name(full, arch), raw, raw_dtype=t)
        y = torch.from_numpy(gguf.quants.dequantize(raw, t).reshape(x.shape).copy())
        if swap:
            y = y.reshape(heads, -1, 2, x.shape[1]).transpose(1, 2).reshape(x.shape)
        with torch.no_grad():
            p.copy_(y)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    expect(name, model, len(name), **more)


Q = gguf.GGMLQuantizationType
folder("llama-llama3", torch.float32, build(1, "llama", rope_parameters=LLAMA3))
folder("llama-tied-linear", torch.bfloat16,
       build(2, "llama", tie_word_embeddings=True, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
       shard="40KB")
folder("llama-bias-yarn", torch.bfloat16, build(3, "llama", attention_bias=True, rope_parameters=YARN))
folder("mistral", torch.float16, build(4, "mistral", sliding_window=None))
folder("qwen2-tied", torch.bfloat16, build(5, "qwen2", tie_word_embeddings=True))
folder("qwen3", torch.bfloat16, build(6, "qwen3"))
llama3 = build(7, "llama", rope_parameters=LLAMA3)
plain = 10000.0 ** -(np.arange(0, 32, 2) / 32)
write_gguf("gguf-llama3", llama3, [Q.F16, Q.BF16], (plain / llama3.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
write_gguf("gguf-llama-quant", build(8, "llama", tie_word_embeddings=True), [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1])
write_gguf("gguf-qwen2", build(9, "qwen2"), [Q.Q8_0])
write_gguf("gguf-qwen3", build(10, "qwen3", tie_word_embeddings=True), [Q.Q8_0, Q.F32])
# Experts: seven of which three are used, with a dense layer and weights that
# need not sum to one; then, as converters write them, stacked and with a sum of one.
MOE = dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=32)
folder("qwen3moe-mixed", torch.bfloat16, build(11, "qwen3_moe", norm_topk_prob=False, mlp_only_layers=[0], **MOE))
write_gguf("gguf-qwen3moe-quant", build(12, "qwen3_moe", norm_topk_prob=True, tie_word_embeddings=True, **MOE),
           [Q.Q8_0, Q.Q4_1, Q.Q4_0, Q.Q5_0, Q.Q5_1])
# Heads and widths that ranks cannot divide evenly.
folder("qwen2-odd", torch.bfloat16, build(13, "qwen2", hidden_size=48, intermediate_size=40, num_attention_heads=9,
                                          num_key_value_heads=3, head_dim=16))
# Blocks of scales that are cut off at the edges, and experts. The wider, the smaller each weight.
FP8 = dict(scale=0.4, num_hidden_layers=1, hidden_size=192, intermediate_size=192)
fp8_folder("qwen3-fp8", build(14, "qwen3", **FP8))
fp8_folder("qwen3moe-fp8", build(16, "qwen3_moe", norm_topk_prob=True, **{**MOE, **FP8, "num_experts": 3, "num_experts_per_tok": 2,
                                                                     "hidden_size": 128, "moe_intermediate_size": 64}))
# Sliding windows, prompts several times as long: in all layers, in some, and with the rest of Gemma 3.
LONG = dict(lengths=(70, 40, 17))
folder("mistral-window", torch.bfloat16, build(17, "mistral", sliding_window=20), **LONG)
folder("qwen2-window", torch.bfloat16,
       build(18, "qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=16, max_window_layers=1), **LONG)
GEMMA = dict(sliding_window=13, num_hidden_layers=6, query_pre_attn_scalar=24, rms_norm_eps=1e-6)
folder("gemma3", torch.bfloat16, build(19, "gemma3", scale=0.5, rope_parameters=dict(
    sliding_attention=dict(rope_type="default", rope_theta=10000.0),
    full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0)), **GEMMA), **LONG)
write_gguf("gguf-gemma3", build(20, "gemma3", scale=0.5, **{**GEMMA, "query_pre_attn_scalar": 32}), [Q.Q8_0, Q.F32], **LONG)
