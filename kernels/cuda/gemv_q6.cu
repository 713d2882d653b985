// Products with few rows of weights in format q6.
#include "gemv.cuh"

GEMV_ALL(FormatQ6, q6)
DEQUANT(FormatQ6, q6)
