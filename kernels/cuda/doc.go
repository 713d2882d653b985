// Package cuda holds the kernels of the CUDA backend: their sources (*.cu), the
// PTX made of them by `make kernels`, embedded, and what a caller must know of
// each: parameters, launch geometry, layouts of packed weights. It needs neither
// a GPU nor the toolkit, and has no build tag.
//
// Each kernel's shapes and units stand above it in its source. Throughout: the
// residual stream and logits are float32; what enters a matrix product is
// bfloat16; sizes are int32, strides int64; rows are contiguous. Buffers that
// kernels read 16 bytes at a time start at multiples of 16, as all allocations
// of a device do.
//
// All kernels may be launched to overlap the end of the kernel in front
// (programmatic dependent launch): each waits for its results itself, from compute
// capability 9.0 on, and products fetch their first weights before.
package cuda
