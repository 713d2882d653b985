"""Starts llama.cpp's server of the package xllamacpp with the arguments of llama-server that benchmarks use."""
import argparse
import signal

import xllamacpp as x

a = argparse.ArgumentParser()
a.add_argument("-m", required=True)
a.add_argument("--host", required=True)
a.add_argument("--port", type=int, required=True)
a.add_argument("-t", type=int, default=0)
a.add_argument("-np", type=int, default=1)
a.add_argument("-c", type=int, default=0)
a.add_argument("-fa", choices=["on", "off", "auto"], default="auto")
for cache in "-ctk", "-ctv":
    a.add_argument(cache, choices=["f16", "q8_0"], default="f16")
o = a.parse_args()

p = x.CommonParams()
p.model.path, p.hostnames, p.port = o.m, [o.host], o.port
p.n_parallel, p.n_ctx = o.np, o.c
if o.t > 0:
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = o.t
kinds = {"f16": x.ggml_type.GGML_TYPE_F16, "q8_0": x.ggml_type.GGML_TYPE_Q8_0}
p.cache_type_k, p.cache_type_v = kinds[o.ctk], kinds[o.ctv]
flash = x.llama_flash_attn_type
p.flash_attn_type = {"on": flash.LLAMA_FLASH_ATTN_TYPE_ENABLED, "off": flash.LLAMA_FLASH_ATTN_TYPE_DISABLED,
                     "auto": flash.LLAMA_FLASH_ATTN_TYPE_AUTO}[o.fa]

signal.signal(signal.SIGTERM, signal.SIG_DFL)
server = x.Server(p)
print(server.listening_address, flush=True)
signal.pause()
