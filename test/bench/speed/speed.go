// Package speed measures prefill and decode of a model on this machine: our CPU
// backend without scheduler, and llama.cpp through its Python binding on the same
// file.
package speed

import (
	"fmt"
	"slices"
)

// Row is one line of a table: Batch sequences, each Depth tokens deep. Prefill
// has no Steps.
type Row struct {
	Batch, Depth, Steps int
}

// String names the row.
func (r Row) String() string {
	if r.Steps == 0 {
		return fmt.Sprintf("prefill %d", r.Depth)
	}
	return fmt.Sprintf("decode batch %d depth %d", r.Batch, r.Depth)
}

// Median of values in any order, the higher of two in the middle.
func Median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
