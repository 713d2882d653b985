// Package gemm multiplies matrices on CUDA devices by cuBLASLt, which is opened at run time:
// libcublasLt.so.13, .12 or .11, or the library that TANDEM_CUBLASLT names. A [Multiplier] belongs
// to one device and is used on that device's thread only. Without the build tag cuda the package is
// empty.
package gemm
