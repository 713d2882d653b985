// Prefill attention over a cache of bf16 elements.
#include "attn_prefill.cuh"

PREFILL_ALL(KvBf16, bf16)
