package cpu

import "tandem/engine/tensor"

// KeyLines is in how many lines the keys of a head lie in a block, by which blocks
// of one size can be made of those of another: see Packing. 0 = they cannot.
func KeyLines(kv tensor.KVShape) int {
	switch kv.DType {
	case tensor.F32, tensor.I8:
		return kv.HeadDim
	case tensor.BF16:
		return kv.HeadDim / 2
	}
	return 0
}
