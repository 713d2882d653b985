"""Writes small.gguf and small.json: a file with every value type and every
supported element type, and what a second implementation (the gguf package of
PyPI, numpy) reads from it. Run: python3 make.py (needs gguf==0.19.0, numpy)."""
import hashlib
import json
import pathlib

import gguf
import numpy as np

here = pathlib.Path(__file__).parent
T, Q = gguf.GGUFValueType, gguf.GGMLQuantizationType
w = gguf.GGUFWriter(here / "small.gguf", "llama")
w.add_uint8("v.u8", 200)
w.add_int8("v.i8", -100)
w.add_uint16("v.u16", 60000)
w.add_int16("v.i16", -30000)
w.add_uint32("v.u32", 4000000000)
w.add_int32("v.i32", -2000000000)
w.add_float32("v.f32", 0.15625)
w.add_bool("v.yes", True)
w.add_bool("v.no", False)
w.add_string("v.str", "Grüße, 世界\x00!")
w.add_uint64("v.u64", 2**64 - 1)
w.add_int64("v.i64", -(2**62))
w.add_float64("v.f64", 1e-300)
w.add_key_value("a.i32", [1, -2, 3], T.ARRAY, sub_type=T.INT32)
w.add_key_value("a.u64", [0, 2**63], T.ARRAY, sub_type=T.UINT64)
w.add_key_value("a.f32", [0.5, -1.5], T.ARRAY, sub_type=T.FLOAT32)
w.add_key_value("a.bool", [True, False, True], T.ARRAY, sub_type=T.BOOL)
w.add_array("a.str", ["a", "bc", "", "Ġd"])

rng = np.random.default_rng(7)
for i, t in enumerate([Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q4_K, Q.Q5_K, Q.Q6_K]):
    group, size = gguf.GGML_QUANT_SIZES[t]
    rows, cols = 3, 256 if group == 256 else 64
    name = "t." + t.name
    if t == Q.F32:
        w.add_tensor(name, rng.standard_normal((2, rows, cols), dtype=np.float32))
    elif t == Q.F16:
        w.add_tensor(name, rng.standard_normal((rows, cols)).astype(np.float16))
    else:
        raw = rng.integers(0, 256, (rows, cols // group * size), dtype=np.uint8)
        w.add_tensor(name, raw, raw_dtype=t)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

r = gguf.GGUFReader(here / "small.gguf")
out = {
    "keys": [k for k in r.fields if not k.startswith("GGUF.")],
    "tensors": [
        {
            "name": t.name,
            "type": t.tensor_type.name,
            "shape": [int(d) for d in reversed(t.shape)],
            "sha256": hashlib.sha256(t.data.tobytes()).hexdigest(),
        }
        for t in r.tensors
    ],
}
(here / "small.json").write_text(json.dumps(out, indent=1) + "\n")
