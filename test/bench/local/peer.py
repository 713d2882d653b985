"""Measures llama.cpp (through llama-cpp-python), or its fork ik_llama.cpp (through ik-llama-cpp-python) in a Python
that has that one, on request of the benchmark program.

Reads one command a line and answers one line, tokens per second:
    prefill TOKENS          one prompt, logits of its last token
    decode BATCH DEPTH STEPS   BATCH sequences, each DEPTH tokens deep, STEPS tokens each
"""
import ctypes
import sys
import time

try:
    import llama_cpp as L
    lib, version = L, getattr(L, "__version__", "?")
except ImportError:  # the fork's binding lacks some functions that its library has
    import ik_llama_cpp._ctypes_api as L
    lib, version = L._lib, "ik"

path, threads, flash = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fa"
silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)  # must outlive the library's use of it
lib.llama_log_set(silent, ctypes.c_void_p(0))
L.llama_backend_init()
how = L.llama_model_default_params()
if hasattr(how, "repack_tensors"):
    how.repack_tensors = True
model = L.llama_model_load_from_file(path.encode(), how)
vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))


def context(cells, seqs):
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = cells, 2048, 512, seqs
    p.n_threads = p.n_threads_batch = threads
    if hasattr(p, "kv_unified"):
        p.kv_unified = False  # a sequence then attends to its own cells only, which is faster
    if hasattr(p, "flash_attn_type"):
        p.flash_attn_type = 1 if flash else 0
    else:
        p.flash_attn = flash
    return L.llama_init_from_model(model, p)


def feed(ctx, rows):
    """rows: list of (token, position, sequence, wants logits)"""
    b = L.llama_batch_init(len(rows), 0, 1)
    b.n_tokens = len(rows)
    for i, (t, pos, seq, want) in enumerate(rows):
        b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = t, pos, 1, want
        b.seq_id[i][0] = seq
    start = time.perf_counter()
    if L.llama_decode(ctx, b) != 0:
        raise SystemExit("llama_decode failed")
    if rows[-1][3]:
        L.llama_get_logits_ith(ctx, len(rows) - 1)
    took = time.perf_counter() - start
    L.llama_batch_free(b)
    return took


def copy(ctx, seq):
    """gives a sequence the cache of sequence 0"""
    if hasattr(lib, "llama_get_memory"):
        lib.llama_memory_seq_cp(lib.llama_get_memory(ctx), 0, seq, -1, -1)
    else:
        lib.llama_kv_cache_seq_cp(ctypes.c_void_p(ctx), 0, seq, -1, -1)


def token(i):
    return 1000 + (i * 7919) % (vocab - 2000)


def prefill(n):
    ctx = context(n + 64, 1)
    took = feed(ctx, [(token(i), i, 0, i == n - 1) for i in range(n)])
    L.llama_free(ctx)
    return n / took


# A context that decode has filled once serves its repetitions: each goes on where the last one ended.
filled = {}


def decode(batch, depth, steps):
    key = batch, depth
    if key not in filled:
        for ctx, _ in filled.values():
            L.llama_free(ctx)
        filled.clear()
        ctx = context(batch * (depth + 12 * steps + 32), batch)
        for at in range(0, depth, 512):
            feed(ctx, [(token(i), i, 0, False) for i in range(at, min(depth, at + 512))])
        for s in range(1, batch):
            copy(ctx, s)
        # A step that is not measured: copies are made when a step needs them.
        feed(ctx, [(token(depth + s), depth, s, True) for s in range(batch)])
        depth += 1
        filled[key] = ctx, depth
    ctx, at = filled[key]
    took = sum(feed(ctx, [(token(at + k + s), at + k, s, True) for s in range(batch)]) for k in range(steps))
    filled[key] = ctx, at + steps
    return batch * steps / took


prefill(64)
print("ready", version, flush=True)
for line in sys.stdin:
    cmd, *args = line.split()
    print("%.2f" % {"prefill": prefill, "decode": decode}[cmd](*map(int, args)), flush=True)
