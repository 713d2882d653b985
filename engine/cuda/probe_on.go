//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"tandem/engine/cuda/gpu"
)

// Built tells whether this program can use CUDA at all.
const Built = true

// Probe returns nil when there is a CUDA device to compute on, else an error that says why not.
// The first call starts the driver, which takes some hundred milliseconds where there is one.
func Probe() error {
	_, err := gpu.Devices()
	if err == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
