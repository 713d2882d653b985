"""Writes rope.json: rotation frequencies that transformers computes for
configurations in today's and in older spelling. Run: python3 rope.py
(transformers==5.24.0)."""
import json
import pathlib

import transformers as tf
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = dict(model_type="llama", num_hidden_layers=1, hidden_size=256, intermediate_size=32, num_attention_heads=4,
            vocab_size=64, max_position_embeddings=8192, rms_norm_eps=1e-5)
L3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
CASES = {
    "plain": dict(rope_theta=100000.0),
    "linear, old spelling": dict(rope_theta=10000.0, rope_scaling=dict(type="linear", factor=4.0)),
    "llama3, old": dict(rope_theta=500000.0, max_position_embeddings=131072, rope_scaling=dict(rope_type="llama3", **L3)),
    "llama3, new": dict(max_position_embeddings=131072, rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, **L3)),
    "yarn": dict(rope_theta=1000000.0, max_position_embeddings=32768,
                 rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "yarn, attention factor": dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=16.0, attention_factor=1.5,
                                   original_max_position_embeddings=4096, beta_fast=16.0, beta_slow=2.0)),
    "yarn, mscale, fractional": dict(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, mscale=1.0,
                                     mscale_all_dim=0.7, original_max_position_embeddings=4096, truncate=False)),
    "dynamic": dict(rope_theta=10000.0, rope_scaling=dict(type="dynamic", factor=2.0)),
}
out = []
for name, extra in CASES.items():
    config = {**BASE, **extra}
    rotary = LlamaRotaryEmbedding(tf.LlamaConfig(**json.loads(json.dumps({k: v for k, v in config.items() if k != "model_type"}))))
    out.append({"name": name, "config": config, "inv_freq": [float(x) for x in rotary.inv_freq],
                "scale": float(rotary.attention_scaling)})
(pathlib.Path(__file__).parent / "rope.json").write_text(json.dumps(out, indent=1) + "\n")
