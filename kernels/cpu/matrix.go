package cpu

// #include "matmul.h"
// #include "program.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Part is one weight of a matrix: Rows rows of the matrix's columns in the
// bytes of a model file. DType is a tensor.DType.
type Part struct {
	DType int
	Rows  int
	Data  []byte
}

// Matrix is a packed weight matrix [Rows, Cols], quantised as in the file. It
// lives as long as the Weights it came from.
type Matrix struct {
	Rows, Cols  int
	Interleaved bool // packed as gate and up
	c           *C.tm_mat
}

// Bytes returns the memory that the matrix takes.
func (m *Matrix) Bytes() int { return int(m.c.bytes) }

// Weights holds the packed matrices and the vectors of a model, side by side in
// a few large regions, so that huge pages are filled. Goroutines may add to it
// at the same time. The zero value is empty.
type Weights struct {
	mu      sync.Mutex
	regions []Region
	free    []byte // rest of the last region
	used    int
}

// Bytes returns the memory that matrices and vectors take.
func (w *Weights) Bytes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}

// Close frees all matrices and vectors.
func (w *Weights) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.regions {
		w.regions[i].Close()
	}
	w.regions, w.free = nil, nil
}

// take returns size zeroed bytes on a 64-byte boundary. Memory of a region that
// nothing uses yet takes no pages.
func (w *Weights) take(size int) ([]byte, error) {
	const region, line = 256 << 20, 64
	w.mu.Lock()
	defer w.mu.Unlock()
	size = (size + line - 1) / line * line
	if size > len(w.free) {
		r, err := NewRegion(max(size, region))
		if err != nil {
			return nil, err
		}
		w.regions, w.free = append(w.regions, r), r.Bytes
	}
	taken := w.free[:size:size]
	w.free = w.free[size:]
	w.used += size
	return taken, nil
}

// Vector copies float32 values out of the Go heap. It must not be empty.
func (w *Weights) Vector(values []float32) ([]float32, error) {
	mem, err := w.take(4 * len(values))
	if err != nil {
		return nil, err
	}
	v := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), len(values))
	copy(v, values)
	return v, nil
}

// Pack packs parts of cols columns on all threads of the pool. Interleaved
// takes two parts of equal rows whose output columns alternate in panels, as
// gate and up. The data may be dropped afterwards.
func (w *Weights) Pack(pool *Pool, parts []Part, cols int, interleaved bool) (*Matrix, error) {
	if len(parts) == 0 || len(parts) > C.TM_SEGMENTS {
		return nil, fmt.Errorf("a matrix of %d parts: 1 to %d are possible", len(parts), int(C.TM_SEGMENTS))
	}
	var dtypes, rows [C.TM_SEGMENTS]C.int
	for i, part := range parts {
		dtypes[i], rows[i] = C.int(part.DType), C.int(part.Rows)
		if want := int(C.tm_row_bytes(dtypes[i], C.int(cols))) * part.Rows; want != len(part.Data) {
			return nil, fmt.Errorf("part %d of %d x %d values has %d bytes, needs %d", i, part.Rows, cols, len(part.Data), want)
		}
	}
	var layout C.tm_mat
	if C.tm_mat_layout(&layout, C.int(len(parts)), &dtypes[0], &rows[0], C.int(cols), cbool(interleaved)) != 0 {
		return nil, fmt.Errorf("no kernels for %d parts of %d columns in these element types", len(parts), cols)
	}
	head, err := w.take(C.sizeof_tm_mat)
	if err != nil {
		return nil, err
	}
	data, err := w.take(int(layout.bytes))
	if err != nil {
		return nil, err
	}
	m := &Matrix{Cols: cols, Interleaved: interleaved, c: (*C.tm_mat)(unsafe.Pointer(unsafe.SliceData(head)))}
	*m.c = layout
	m.c.data = (*C.uint8_t)(unsafe.SliceData(data))
	for _, part := range parts {
		m.Rows += part.Rows
	}
	for i, part := range parts {
		C.tm_pack(pool.c, m.c, C.int(i), (*C.uint8_t)(unsafe.SliceData(part.Data)))
	}
	return m, nil
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// RowBytes returns the file bytes of one row of k values of an element type,
// 0 when that is impossible.
func RowBytes(dtype, k int) int { return int(C.tm_row_bytes(C.int(dtype), C.int(k))) }
