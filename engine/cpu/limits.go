package cpu

import (
	"fmt"
	"slices"

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
	r, err := NewReader(threads, max(1, slices.Max(sizes)))
	if err != nil {
		return l, err
	}
	defer r.Close()
	for i, n := range sizes { // one after the other, so that what fits a cache is there
		for range repetitions {
			l.Read[i] = max(l.Read[i], r.pool.ReadRate(r.mem.Bytes[:n]))
		}
	}
	for range repetitions {
		l.Float32 = max(l.Float32, r.pool.ComputeRate(kernels.Float32))
		l.Int16 = max(l.Int16, r.pool.ComputeRate(kernels.Int16))
		l.Int8 = max(l.Int8, r.pool.ComputeRate(kernels.Int8))
	}
	return l, nil
}

// Reader reads memory of its own and does nothing with it: what something else is
// compared with that reads as much in turns, where the limit changes with what others
// do on the machine.
type Reader struct {
	pool *kernels.Pool
	mem  kernels.Region
}

// NewReader makes a reader of that many bytes, at least one. Its owner closes it.
func NewReader(threads, bytes int) (*Reader, error) {
	pool, err := kernels.NewPool(threads, nil)
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	mem, err := kernels.NewRegion(bytes)
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("limits: %w", err)
	}
	for i := 0; i < len(mem.Bytes); i += 4096 { // pages of zeros only are one page
		mem.Bytes[i] = 1
	}
	return &Reader{pool, mem}, nil
}

// Rate reads all of it, each thread a part, and returns bytes per second.
func (r *Reader) Rate() float64 { return r.pool.ReadRate(r.mem.Bytes) }

// Close ends the threads and frees the memory.
func (r *Reader) Close() {
	r.pool.Close()
	r.mem.Close()
}
