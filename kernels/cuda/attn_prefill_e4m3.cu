// Prefill attention over a cache of e4m3 elements.
#include "attn_prefill.cuh"

PREFILL_ALL(KvE4m3, e4m3)
