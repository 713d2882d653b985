//go:build !cuda

package runner

import "tandem/engine/cuda"

// openCUDA is not reached: Probe has refused before.
func openCUDA(*LoadOptions) (devices, error) { return nil, cuda.Probe() }
