package main

import (
	"context"

	"tandem/engine/tensor"
	"tandem/test/bench/profile"
)

// interruptible stops a device between batches.
type interruptible struct {
	ctx context.Context
	profile.Device
}

func (i interruptible) Run(b *tensor.Batch) ([]float32, error) {
	if err := i.ctx.Err(); err != nil {
		return nil, err
	}
	return i.Device.Run(b)
}
