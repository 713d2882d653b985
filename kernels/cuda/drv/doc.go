// Package drv stands between the program and the CUDA driver. It defines every function of the
// driver that the program names as a jump through a table, so that the linker needs no driver and
// the finished program needs only the C library. [Load] opens the driver and fills the table;
// until then, and where there is none, calls answer with an error code and cuInit with success,
// because the binding ends the process when cuInit fails.
//
// TANDEM_LIBCUDA names another library than libcuda.so.1, TANDEM_NO_CUDA=1 opens none.
// The package is empty without the build tag cuda.
package drv

//go:generate go run ./gen
