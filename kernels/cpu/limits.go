package cpu

// #include "isa.h"
// #include "limits.h"
import "C"

import "unsafe"

// Arithmetic is a kind of multiply-adds.
type Arithmetic int

// The kinds that kernels use, and bytes, which they could.
const (
	Float32 Arithmetic = C.TM_LIMIT_F32
	Int16   Arithmetic = C.TM_LIMIT_INT16
	Int8    Arithmetic = C.TM_LIMIT_INT8
)

// ReadRate lets all threads read memory, each its part, a small one several times,
// and returns bytes per second. It must not be empty.
func (p *Pool) ReadRate(memory []byte) float64 {
	return float64(C.tm_limit_read(p.c, unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory))))
}

// ComputeRate does arithmetic in registers on all threads, for some milliseconds,
// and returns operations per second, two a multiply-add; 0 where the machine has
// no instructions for it.
func (p *Pool) ComputeRate(kind Arithmetic) float64 {
	return float64(C.tm_limit_compute(p.c, C.tm_isa_best(), C.int(kind)))
}
