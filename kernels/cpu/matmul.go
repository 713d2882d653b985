package cpu

// #include "matmul.h"
import "C"

// ISA returns the name of the instruction set level that the kernels use on
// this machine: "portable", "avx2" or "avx512".
func ISA() string { return C.GoString(C.tm_isa_name(C.tm_isa_best())) }
