// Products with few rows of weights in format bf16.
#include "gemv.cuh"

GEMV_ALL(FormatBF16, bf16)
