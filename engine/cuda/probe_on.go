//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"tandem/engine/cuda/gpu"
	kernels "tandem/kernels/cuda"
)

// Built tells whether this program can use CUDA at all.
const Built = true

// Probe returns nil when there is a CUDA device to compute on, else an error that says why not.
// The first call starts the driver, which takes some hundred milliseconds where there is one.
func Probe() error {
	devices, err := gpu.Devices()
	if err == nil {
		err = takes(&devices[0]) // the first that an engine uses; others it may not need
	}
	if err == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// takes tells why a device cannot run the kernels.
func takes(d *gpu.Info) error {
	if least := kernels.Driver; d.Driver < least {
		return fmt.Errorf("the driver supports CUDA %d.%d and the kernels need %d.%d: install driver %s or later",
			d.Driver/1000, d.Driver%1000/10, least/1000, least%1000/10, kernels.DriverRelease)
	}
	if least := kernels.Targets[0]; d.Capability < least {
		return fmt.Errorf("device %d, %s, has compute capability %d.%d and the kernels need %d.%d: let CUDA_VISIBLE_DEVICES name others",
			d.Ordinal, d.Name, d.Capability/10, d.Capability%10, least/10, least%10)
	}
	return nil
}
