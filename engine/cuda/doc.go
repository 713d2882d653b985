// Package cuda computes on NVIDIA devices. [Probe] says in every build whether it can; the rest needs
// the build tag cuda, which needs no driver and no toolkit to compile and test.
package cuda

import "tandem/kernels/cuda/drv"

// ErrUnavailable is in every error of [Probe]: this program, on this machine, cannot use CUDA.
var ErrUnavailable = drv.ErrAbsent
