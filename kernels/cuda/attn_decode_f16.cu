// Decode attention over a cache of f16 elements.
#include "attn_decode.cuh"

DECODE_ALL(KvF16, f16)
