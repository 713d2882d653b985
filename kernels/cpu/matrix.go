package cpu

// #include <stdlib.h>
// #include "matmul.h"
// #include "program.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Part is one weight of a matrix: Rows rows of the matrix's columns in the
// bytes of a model file. DType is a tensor.DType.
type Part struct {
	DType int
	Rows  int
	Data  []byte
}

// Matrix is a packed weight matrix [Rows, Cols], quantised as in the file.
type Matrix struct {
	Rows, Cols  int
	Interleaved bool // packed as gate and up
	c           *C.tm_mat
	data        Region
}

// Pack packs parts of cols columns on all threads of the pool. Interleaved
// takes two parts of equal rows whose output columns alternate in panels, as
// gate and up. The data may be dropped afterwards.
func (p *Pool) Pack(parts []Part, cols int, interleaved bool) (*Matrix, error) {
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
	m := &Matrix{Cols: cols, Interleaved: interleaved, c: (*C.tm_mat)(C.calloc(1, C.sizeof_tm_mat))}
	if m.c == nil {
		return nil, fmt.Errorf("allocate a matrix: out of memory")
	}
	if C.tm_mat_layout(m.c, C.int(len(parts)), &dtypes[0], &rows[0], C.int(cols), cbool(interleaved)) != 0 {
		m.Close()
		return nil, fmt.Errorf("no kernels for %d parts of %d columns in these element types", len(parts), cols)
	}
	for _, part := range parts {
		m.Rows += part.Rows
	}
	var err error
	if m.data, err = NewRegion(int(m.c.bytes)); err != nil {
		m.Close()
		return nil, err
	}
	m.c.data = (*C.uint8_t)(unsafe.SliceData(m.data.Bytes))
	for i, part := range parts {
		C.tm_pack(p.c, m.c, C.int(i), (*C.uint8_t)(unsafe.SliceData(part.Data)))
	}
	return m, nil
}

// Bytes returns the memory the packed weights take.
func (m *Matrix) Bytes() int { return len(m.data.Bytes) }

// Close frees the matrix.
func (m *Matrix) Close() {
	m.data.Close()
	C.free(unsafe.Pointer(m.c))
	m.c = nil
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
