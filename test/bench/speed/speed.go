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

// Beside is two cells of a table: the median of the best of the peers, of which each
// has a list as long as mine, and how many times its speed ours is.
func Beside(mine []float64, peers [][]float64) string {
	var best []float64
	for _, list := range peers {
		if best == nil || Median(list) > Median(best) {
			best = list
		}
	}
	if len(best) == 0 {
		return " – | – |"
	}
	ratios := make([]float64, len(best))
	for i, v := range best {
		ratios[i] = mine[i] / v
	}
	return fmt.Sprintf(" %.1f | %.2f (%.2f–%.2f) |", Median(best), Median(ratios), slices.Min(ratios), slices.Max(ratios))
}

// Median of values in any order, the higher of two in the middle.
func Median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
