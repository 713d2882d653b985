package tensor

import "fmt"

// Host is a tensor in host memory, in the bytes of the file it came from.
// Shape is outermost first: a weight of a linear layer is [out, in], rows are
// contiguous. Data is borrowed (often a file mapping) and must not be written.
type Host struct {
	Name  string
	DType DType
	Shape []int
	Data  []byte
}

// Elems returns the number of elements.
func (h Host) Elems() int {
	n := 1
	for _, d := range h.Shape {
		n *= d
	}
	return n
}

// Rows returns the product of all dimensions but the last; Cols the last.
func (h Host) Rows() int {
	if c := h.Cols(); c > 0 {
		return h.Elems() / c
	}
	return 0
}

// Cols returns the last dimension, 0 for a tensor without dimensions.
func (h Host) Cols() int {
	if len(h.Shape) == 0 {
		return 0
	}
	return h.Shape[len(h.Shape)-1]
}

// Validate checks that Data has exactly the bytes that Shape and DType need and
// that rows are whole groups. The error names the tensor.
func (h Host) Validate() error {
	if len(h.Shape) == 0 || h.Elems() <= 0 {
		return fmt.Errorf("tensor %q: shape %v is empty", h.Name, h.Shape)
	}
	row, err := h.DType.Bytes(h.Cols())
	if err != nil {
		return fmt.Errorf("tensor %q: %w", h.Name, err)
	}
	if want := row * h.Rows(); want != len(h.Data) {
		return fmt.Errorf("tensor %q: %v of %s needs %d bytes, has %d", h.Name, h.Shape, h.DType, want, len(h.Data))
	}
	return nil
}

// Row returns the bytes of row i of a tensor seen as [Rows, Cols].
func (h Host) Row(i int) []byte {
	n := len(h.Data) / h.Rows()
	return h.Data[i*n : (i+1)*n]
}

// RowRange returns rows [first, first+n) of a tensor seen as [Rows, Cols]. Its
// name tells the range, so that names stay unique.
func (h Host) RowRange(first, n int) Host {
	if first == 0 && n == h.Rows() {
		return h
	}
	size := len(h.Data) / h.Rows()
	return Host{
		Name: fmt.Sprintf("%s[%d:%d]", h.Name, first, first+n), DType: h.DType, Shape: []int{n, h.Cols()},
		Data: h.Data[first*size : (first+n)*size],
	}
}
