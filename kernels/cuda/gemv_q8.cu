// Products with few rows of weights in format q8.
#include "gemv.cuh"

GEMV_ALL(FormatQ8, q8)
DEQUANT(FormatQ8, q8)
