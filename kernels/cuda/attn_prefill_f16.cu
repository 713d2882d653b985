// Prefill attention over a cache of f16 elements.
#include "attn_prefill.cuh"

PREFILL_ALL(KvF16, f16)
