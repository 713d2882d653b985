//go:build cuda

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// stack is tensors stacked along rows, as a weight of the device wants them.
type stack struct {
	parts      []tensor.Host
	rows, cols int
	gateUp     bool // eight rows of the one and of the other part take turns
}

func newStack(parts []tensor.Host, gateUp bool) (*stack, error) {
	if len(parts) == 0 {
		return nil, fmt.Errorf("a matrix needs at least one tensor")
	}
	s := &stack{parts: parts, cols: parts[0].Cols(), gateUp: gateUp}
	for _, h := range parts {
		if err := h.Validate(); err != nil {
			return nil, err
		}
		if h.Cols() != s.cols {
			return nil, fmt.Errorf("tensors %q and %q: %d and %d columns, must be equal", parts[0].Name, h.Name, s.cols, h.Cols())
		}
		s.rows += h.Rows()
		if s.rows > math.MaxInt32/2 || s.cols > math.MaxInt32/2 {
			return nil, fmt.Errorf("tensor %q: %v is too large", h.Name, h.Shape)
		}
	}
	return s, nil
}

// formats are the packed forms of quantised types; the others become bf16.
var formats = map[tensor.DType]kernels.Format{
	tensor.Q4_0: kernels.FormatQ4, tensor.Q4_1: kernels.FormatQ4M, tensor.Q5_0: kernels.FormatQ5, tensor.Q5_1: kernels.FormatQ5M,
	tensor.Q8_0: kernels.FormatQ8, tensor.Q4_K: kernels.FormatQ4M, tensor.Q5_K: kernels.FormatQ5M, tensor.Q6_K: kernels.FormatQ6,
	tensor.F8_S: kernels.FormatF8,
}

// format keeps the quantisation if all parts have the same.
func (s *stack) format() kernels.Format {
	f := formats[s.parts[0].DType]
	for _, h := range s.parts[1:] {
		if formats[h.DType] != f {
			return kernels.FormatBF16
		}
	}
	if f == kernels.FormatF8 && !s.eights() {
		return kernels.FormatBF16
	}
	return f
}

// eights tells whether eight rows that the device keeps together have the same
// factors, as blocks of many rows give them.
func (s *stack) eights() bool {
	group := tensor.F8_S.GroupBytes()
	return s.each(func(i int, h tensor.Host, row int) error {
		if i%8 == 0 {
			return nil
		}
		first, at := s.row(i - i%8)
		one, other := first.Row(at), h.Row(row)
		for j := 0; j < len(one); j += group {
			if !bytes.Equal(one[j:j+4], other[j:j+4]) {
				return errUneven
			}
		}
		return nil
	}) == nil
}

var errUneven = errors.New("rows of one tile have different factors")

// byFormat groups tensors that stand together and have the same format.
func byFormat(parts []tensor.Host) (groups [][]tensor.Host) {
	for i, h := range parts {
		if i == 0 || formats[h.DType] != formats[parts[i-1].DType] {
			groups = append(groups, nil)
		}
		last := len(groups) - 1
		groups[last] = append(groups[last], h)
	}
	return groups
}

// row finds row i of the weight.
func (s *stack) row(i int) (tensor.Host, int) {
	if s.gateUp {
		i = kernels.InterleaveGateUp(i, s.rows/2)
	}
	for _, h := range s.parts {
		if i < h.Rows() {
			return h, i
		}
		i -= h.Rows()
	}
	panic("cuda: a row beyond the stack")
}

// pack makes the bytes for the device.
func (s *stack) pack(f kernels.Format) ([]byte, error) {
	out := make([]byte, f.Bytes(s.rows, s.cols))
	if f == kernels.FormatBF16 {
		return out, s.each(func(i int, h tensor.Host, row int) error {
			return bf16Row(out[2*i*s.cols:2*(i+1)*s.cols], h, row)
		})
	}
	p, err := kernels.NewPacker(f, s.rows, s.cols, out)
	if err != nil {
		return nil, err
	}
	return out, s.each(func(i int, h tensor.Host, row int) error {
		p.Put(i, quantRow(h, row))
		return nil
	})
}

// each calls fn for every row, rows of one tile of 16 by the same goroutine.
func (s *stack) each(fn func(i int, h tensor.Host, row int) error) error {
	const tile = 16
	workers := min(runtime.GOMAXPROCS(0), (s.rows+tile-1)/tile)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for at := w * tile; at < s.rows && errs[w] == nil; at += workers * tile {
				for i := at; i < min(at+tile, s.rows) && errs[w] == nil; i++ {
					h, row := s.row(i)
					errs[w] = fn(i, h, row)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// bf16Row rounds a row to the nearest bf16, ties to even.
func bf16Row(dst []byte, h tensor.Host, row int) error {
	data := h.Row(row)
	if h.DType == tensor.BF16 {
		copy(dst, data)
		return nil
	}
	values := make([]float32, h.Cols())
	if err := tensor.Dequantize(values, tensor.Host{Name: h.Name, DType: h.DType, Shape: []int{h.Cols()}, Data: data}); err != nil {
		return err
	}
	for i, v := range values {
		binary.LittleEndian.PutUint16(dst[2*i:], tensor.F32ToBF16(v))
	}
	return nil
}
