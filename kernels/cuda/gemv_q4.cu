// Products with few rows of weights in format q4.
#include "gemv.cuh"

GEMV_ALL(FormatQ4<false>, q4)
DEQUANT(FormatQ4<false>, q4)
