// Decode attention over a cache of e4m3 elements.
#include "attn_decode.cuh"

DECODE_ALL(KvE4m3, e4m3)
