package tensor

import "fmt"

// DType is the element type of a tensor as a model file stores it. Quantised
// types store groups of elements along the last dimension, each group in a
// fixed number of bytes.
type DType uint8

// The element types the project reads. The quantised ones are those of GGUF, but
// for F8_S, which no file has: it is made of weights and scales that stand apart.
const (
	Invalid DType = iota
	F32
	F16
	BF16
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q4_K
	Q5_K
	Q6_K
	F8   // E4M3: of a KV cache, or codes without their scales
	F8_S // 64 codes of E4M3 behind their float32 scale
	I8   // signed bytes of a KV cache: KVShape tells where their scales are
)

type dtypeInfo struct {
	name  string
	elems int // elements of one group
	bytes int // bytes of one group
}

var dtypes = [...]dtypeInfo{
	Invalid: {"invalid", 0, 0},
	F32:     {"F32", 1, 4},
	F16:     {"F16", 1, 2},
	BF16:    {"BF16", 1, 2},
	Q4_0:    {"Q4_0", 32, 18},
	Q4_1:    {"Q4_1", 32, 20},
	Q5_0:    {"Q5_0", 32, 22},
	Q5_1:    {"Q5_1", 32, 24},
	Q8_0:    {"Q8_0", 32, 34},
	Q4_K:    {"Q4_K", 256, 144},
	Q5_K:    {"Q5_K", 256, 176},
	Q6_K:    {"Q6_K", 256, 210},
	F8:      {"F8", 1, 1},
	F8_S:    {"F8_S", 64, 68},
	I8:      {"I8", 1, 1},
}

// String returns the type's field-standard name, such as "Q4_1".
func (d DType) String() string {
	if int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// GroupElems returns how many elements one stored group has (1 for plain types).
func (d DType) GroupElems() int { return dtypes[d].elems }

// GroupBytes returns how many bytes one stored group takes.
func (d DType) GroupBytes() int { return dtypes[d].bytes }

// Bytes returns the stored size of n elements, or an error when n is no whole
// number of groups or does not fit an int.
func (d DType) Bytes(n int) (int, error) {
	info := dtypes[d]
	if info.elems == 0 {
		return 0, fmt.Errorf("element type %s has no size", d)
	}
	if n < 0 || n%info.elems != 0 {
		return 0, fmt.Errorf("%d elements are no whole number of %s groups of %d", n, d, info.elems)
	}
	const maxInt = int(^uint(0) >> 1)
	if n/info.elems > maxInt/info.bytes {
		return 0, fmt.Errorf("%d elements of %s overflow the address space", n, d)
	}
	return n / info.elems * info.bytes, nil
}
