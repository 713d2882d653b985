// Decode attention over a cache of bf16 elements.
#include "attn_decode.cuh"

DECODE_ALL(KvBf16, bf16)
