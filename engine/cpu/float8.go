package cpu

import (
	"encoding/binary"

	"tandem/engine/tensor"
)

// native returns a weight in an element type that the kernels have. FP8 becomes
// bf16: twice the bytes, and a rounding in the eighth bit where FP8 has four.
func native(h tensor.Host) (tensor.Host, error) {
	if h.DType != tensor.F8_S {
		return h, nil
	}
	out := tensor.Host{Name: h.Name, DType: tensor.BF16, Shape: h.Shape, Data: make([]byte, 2*h.Elems())}
	values := make([]float32, h.Cols())
	for i := range h.Rows() {
		one := tensor.Host{Name: h.Name, DType: h.DType, Shape: []int{1, h.Cols()}, Data: h.Row(i)}
		if err := tensor.Dequantize(values, one); err != nil {
			return out, err
		}
		to := out.Row(i)
		for j, v := range values {
			binary.LittleEndian.PutUint16(to[2*j:], tensor.F32ToBF16(v))
		}
	}
	return out, nil
}
