// Products with few rows of weights in format q5.
#include "gemv.cuh"

GEMV_ALL(FormatQ5<false>, q5)
DEQUANT(FormatQ5<false>, q5)
