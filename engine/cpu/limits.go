package cpu

import (
	"fmt"

	kernels "tandem/kernels/cpu"
)

// Limits is what the machine can do at most with some threads: what measurements
// of the kernels are compared with. Rates are per second.
type Limits struct {
	Read                 []float64 // bytes, of the sizes asked for
	Float32, Int16, Int8 float64   // operations, two a multiply-add; 0 = no instructions
}

// TileRows is how many rows of a product are the fewest for which tiles are used on a
// machine with AMX.
const TileRows = kernels.TileRows

// TileGain measures for some milliseconds how many times as fast a product of rows
// with 4-bit weights is in tiles as without, on one thread; 0 on a machine without AMX.
func TileGain(rows int) float64 {
	if kernels.ISA() != kernels.AMX.String() {
		return 0
	}
	return kernels.TileGain(kernels.AMX, rows)
}

// MeasureLimits takes the best of some repetitions. Memory is as kernels have it,
// in huge pages where the system gives them.
func MeasureLimits(threads int, sizes []int, repetitions int) (Limits, error) {
	l := Limits{Read: make([]float64, len(sizes))}
	pool, err := kernels.NewPool(threads, nil)
	if err != nil {
		return l, fmt.Errorf("limits: %w", err)
	}
	defer pool.Close()
	largest := 1
	for _, n := range sizes {
		largest = max(largest, n)
	}
	mem, err := kernels.NewRegion(largest)
	if err != nil {
		return l, fmt.Errorf("limits: %w", err)
	}
	defer mem.Close()
	for i := 0; i < len(mem.Bytes); i += 4096 { // pages of zeros only are one page
		mem.Bytes[i] = 1
	}
	for i, n := range sizes { // one after the other, so that what fits a cache is there
		for range repetitions {
			l.Read[i] = max(l.Read[i], pool.ReadRate(mem.Bytes[:n]))
		}
	}
	for range repetitions {
		l.Float32 = max(l.Float32, pool.ComputeRate(kernels.Float32))
		l.Int16 = max(l.Int16, pool.ComputeRate(kernels.Int16))
		l.Int8 = max(l.Int8, pool.ComputeRate(kernels.Int8))
	}
	return l, nil
}
