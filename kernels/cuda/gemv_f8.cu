// Products with few rows of weights in format f8.
#include "gemv.cuh"

GEMV_ALL(FormatF8, f8)
DEQUANT(FormatF8, f8)
