// Package cpu is the C side of the CPU backend: a thread pool, packed weight
// matrices, and programs that replay a recorded forward pass over ragged
// batches. It knows nothing of models or requests. Lengths and ids are the
// caller's to check (engine/cpu does); the C code trusts them.
//
// Every kernel exists as portable C and, on x86-64, for AVX2 and AVX-512, products
// of many rows also for AMX, one level being chosen at run time. Within a level
// the bits of a row's results depend on its own tokens and positions only.
package cpu
