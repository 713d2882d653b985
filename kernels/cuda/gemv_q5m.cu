// Products with few rows of weights in format q5m.
#include "gemv.cuh"

GEMV_ALL(FormatQ5<true>, q5m)
DEQUANT(FormatQ5<true>, q5m)
