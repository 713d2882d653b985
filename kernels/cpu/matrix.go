package cpu

// #include "matmul.h"
// #include "program.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Element types beside those of tensor.DType: F16 and BF16 that are multiplied as
// they are, in float32, and not as levels.
const (
	F16Float  = C.TM_F16_FLOAT
	BF16Float = C.TM_BF16_FLOAT
)

// Activations is what products with quantised weights turn activations into.
type Activations int

// The forms. Activations8 is for weights of at most 8 bits: from AVX2 on products that
// wait for arithmetic are faster with it, and they are less exact.
const (
	Activations16 Activations = iota // integers of 16 bits with a scale per row
	Activations8                     // integers of 8 bits with a scale per 32 values of a row, and its outliers as they are
)

func (a Activations) bits() C.int {
	if a == Activations8 {
		return 8
	}
	return 16
}

// Part is one weight of a matrix: Rows rows of the matrix's columns in the
// bytes of a model file. DType is a tensor.DType, or one of those above.
type Part struct {
	DType int
	Rows  int
	Data  []byte
	// Release, if set, is called with pieces of Data as soon as they are packed, so
	// that the two forms of a large part need not be in memory together.
	Release func([]byte)
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

// Data is the packed form, which must not be changed.
func (m *Matrix) Data() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(m.c.data)), m.Bytes())
}

// Parts returns element type and rows of each part.
func (m *Matrix) Parts() (dtypes, rows []int) {
	for i := range int(m.c.segs) {
		dtypes, rows = append(dtypes, int(m.c.seg[i].dtype)), append(rows, int(m.c.seg[i].n))
	}
	return dtypes, rows
}

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

// Layout numbers the packed form: it is raised whenever packing the same parts
// gives other bytes, so that those kept in files are known to be of no use.
const Layout = 3

// Pack packs parts of cols columns on all threads of the pool. Interleaved
// takes two parts of equal rows whose output columns alternate in panels, as
// gate and up. The data may be dropped afterwards.
func (w *Weights) Pack(pool *Pool, parts []Part, cols int, interleaved bool) (*Matrix, error) {
	for i, part := range parts {
		if want := RowBytes(part.DType, cols) * part.Rows; want != len(part.Data) {
			return nil, fmt.Errorf("part %d of %d x %d values has %d bytes, needs %d", i, part.Rows, cols, len(part.Data), want)
		}
	}
	m, err := w.layout(parts, cols, interleaved)
	if err != nil {
		return nil, err
	}
	data, err := w.take(m.Bytes())
	if err != nil {
		return nil, err
	}
	m.c.data = (*C.uint8_t)(unsafe.SliceData(data))
	for i, part := range parts {
		m.pack(pool, i, part, RowBytes(part.DType, cols))
	}
	return m, nil
}

// pack packs one part, piece by piece.
func (m *Matrix) pack(pool *Pool, i int, part Part, rowBytes int) {
	const piece = 32 << 20
	panels := int(m.c.seg[i].panels)
	step := max(piece/(rowBytes*C.TM_PANEL), 1)
	if part.Release == nil {
		step = panels
	}
	for p := 0; p < panels; p += step {
		end := min(p+step, panels)
		C.tm_pack(pool.c, m.c, C.int(i), (*C.uint8_t)(unsafe.SliceData(part.Data)), C.int(p), C.int(end))
		if part.Release != nil {
			part.Release(part.Data[p*C.TM_PANEL*rowBytes : min(end*C.TM_PANEL, part.Rows)*rowBytes])
		}
	}
}

// Map makes a matrix of what Pack has made before of parts with these element
// types and rows: data is its Data, on a 64-byte boundary, and must outlive w.
func (w *Weights) Map(parts []Part, cols int, interleaved bool, data []byte) (*Matrix, error) {
	m, err := w.layout(parts, cols, interleaved)
	if err != nil {
		return nil, err
	}
	if len(data) != m.Bytes() || uintptr(unsafe.Pointer(unsafe.SliceData(data)))%cacheLine != 0 {
		return nil, fmt.Errorf("%d bytes of a packed matrix, needs %d on a boundary of %d", len(data), m.Bytes(), cacheLine)
	}
	m.c.data = (*C.uint8_t)(unsafe.SliceData(data))
	w.mu.Lock()
	w.used += len(data)
	w.mu.Unlock()
	return m, nil
}

// layout makes a matrix without data.
func (w *Weights) layout(parts []Part, cols int, interleaved bool) (*Matrix, error) {
	if len(parts) == 0 || len(parts) > C.TM_SEGMENTS {
		return nil, fmt.Errorf("a matrix of %d parts: 1 to %d are possible", len(parts), int(C.TM_SEGMENTS))
	}
	var dtypes, rows [C.TM_SEGMENTS]C.int
	all := 0
	for i, part := range parts {
		dtypes[i], rows[i] = C.int(part.DType), C.int(part.Rows)
		all += part.Rows
	}
	var layout C.tm_mat
	if C.tm_mat_layout(&layout, C.int(len(parts)), &dtypes[0], &rows[0], C.int(cols), cbool(interleaved)) != 0 {
		return nil, fmt.Errorf("no kernels for %d parts of %d columns in these element types", len(parts), cols)
	}
	head, err := w.take(C.sizeof_tm_mat)
	if err != nil {
		return nil, err
	}
	m := &Matrix{Rows: all, Cols: cols, Interleaved: interleaved, c: (*C.tm_mat)(unsafe.Pointer(unsafe.SliceData(head)))}
	*m.c = layout
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
