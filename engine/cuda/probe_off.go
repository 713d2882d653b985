//go:build !cuda

package cuda

import "fmt"

// Built tells whether this program can use CUDA at all.
const Built = false

// Probe returns nil when there is a CUDA device to compute on, else an error that says why not.
func Probe() error {
	return fmt.Errorf("%w: this binary was built without CUDA support (make build-cuda builds one with it)", ErrUnavailable)
}
