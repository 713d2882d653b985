"""Writes dequant.json: random groups of every stored type and what the gguf
package of PyPI decodes them to. Run: python3 make.py (gguf==0.19.0, numpy)."""
import base64
import json
import pathlib

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
# Byte offsets of the half-precision scales, which must be ordinary numbers.
HALVES = {Q.F32: [], Q.F16: [0], Q.BF16: [], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0],
          Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208]}
rng = np.random.default_rng(3)
out = []
for t, halves in HALVES.items():
    elems, size = gguf.GGML_QUANT_SIZES[t]
    groups = 96 // elems if elems == 1 else 4
    raw = rng.integers(0, 256, (groups, size), dtype=np.uint8)
    if t == Q.F32:
        raw = rng.standard_normal((groups, 1), dtype=np.float32).view(np.uint8)
    if t == Q.BF16:
        raw[:, 1] = 0x3F
    for at in halves:
        raw[:, at : at + 2] = (rng.standard_normal((groups, 1)) * 0.1).astype(np.float16).view(np.uint8)
    values = gguf.quants.dequantize(raw.reshape(1, -1), t).astype("<f4").ravel()
    assert values.size == groups * elems and np.isfinite(values).all()
    out.append({"type": t.name, "raw": base64.b64encode(raw.tobytes()).decode(), "values": base64.b64encode(values.tobytes()).decode()})
(pathlib.Path(__file__).parent / "dequant.json").write_text(json.dumps(out, indent=1) + "\n")
