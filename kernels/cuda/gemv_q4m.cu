// Products with few rows of weights in format q4m.
#include "gemv.cuh"

GEMV_ALL(FormatQ4<true>, q4m)
DEQUANT(FormatQ4<true>, q4m)
