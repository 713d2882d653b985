// Package drv stands between the program and the CUDA driver. It defines every function of the
// driver that the program names as a jump through a table, so that the linker needs no driver and
// the finished program needs only the C library. [Load] opens the driver and fills the table;
// until then, and where there is none, calls answer with an error code and cuInit with success,
// because the binding ends the process when cuInit fails.
//
// TANDEM_LIBCUDA names another library than libcuda.so.1, TANDEM_NO_CUDA=1 opens none.
// Without the build tag cuda the package has the error only.
package drv

import "errors"

// ErrAbsent is in every error of [Load]: this machine, as it is set up, has no usable CUDA device.
var ErrAbsent = errors.New("no CUDA device")

//go:generate go run ./gen
