package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dequantize decodes all elements of h to dst in row-major order. It is the
// plain definition of every stored type, for loading as float32 and as the
// oracle of faster code. dst must have h.Elems() elements; errors name the tensor.
func Dequantize(dst []float32, h Host) error {
	if err := h.Validate(); err != nil {
		return err
	}
	if len(dst) != h.Elems() {
		return fmt.Errorf("tensor %q: %d elements into %d", h.Name, h.Elems(), len(dst))
	}
	var decode func([]float32, []byte)
	if int(h.DType) < len(decoders) {
		decode = decoders[h.DType]
	}
	if decode == nil {
		return fmt.Errorf("tensor %q: element type %s cannot be decoded", h.Name, h.DType)
	}
	elems, size := h.DType.GroupElems(), h.DType.GroupBytes()
	for data := h.Data; len(data) > 0; data, dst = data[size:], dst[elems:] {
		decode(dst[:elems], data[:size])
	}
	return nil
}

// decoders decode one group each.
var decoders = [...]func(dst []float32, b []byte){
	F32: func(dst []float32, b []byte) { dst[0] = math.Float32frombits(binary.LittleEndian.Uint32(b)) },
	F16: func(dst []float32, b []byte) { dst[0] = half(b) },
	BF16: func(dst []float32, b []byte) {
		dst[0] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
	},
	Q4_0: decodeQ4_0, Q4_1: decodeQ4_1, Q5_0: decodeQ5_0, Q5_1: decodeQ5_1, Q8_0: decodeQ8_0,
	Q4_K: decodeQ4_K, Q5_K: decodeQ5_K, Q6_K: decodeQ6_K, F8_S: decodeF8S,
}

// F16ToF32 converts the bits of an IEEE half to float32; it is exact.
func F16ToF32(bits uint16) float32 {
	sign := uint32(bits&0x8000) << 16
	exp, frac := uint32(bits>>10&0x1f), uint32(bits&0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac * 2^-24
		x := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(x) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// F32ToBF16 rounds to the nearest bits of a bfloat16, ties to even; a NaN stays one.
func F32ToBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func half(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }

// F8ToF32 converts the bits of an E4M3 number, the kind without infinities, to
// float32; it is exact.
func F8ToF32(bits uint8) float32 {
	sign, exp, frac := uint32(bits&0x80)<<24, uint32(bits>>3&15), uint32(bits&7)
	switch {
	case bits&0x7f == 0x7f:
		return float32(math.NaN())
	case exp == 0: // zero or subnormal: frac * 2^-9
		return math.Float32frombits(math.Float32bits(float32(frac)/512) | sign)
	}
	return math.Float32frombits(sign | (exp+127-7)<<23 | frac<<20)
}

func decodeF8S(dst []float32, b []byte) {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(b))
	for j := range dst {
		dst[j] = scale * F8ToF32(b[4+j])
	}
}

// nibble returns the 4-bit code of element j of 32: the low halves of 16 bytes,
// then the high halves.
func nibble(q []byte, j int) float32 {
	if j < 16 {
		return float32(q[j] & 15)
	}
	return float32(q[j-16] >> 4)
}

func decodeQ4_0(dst []float32, b []byte) {
	d := half(b)
	for j := range dst {
		dst[j] = d * (nibble(b[2:], j) - 8)
	}
}

func decodeQ4_1(dst []float32, b []byte) {
	d, m := half(b), half(b[2:])
	for j := range dst {
		dst[j] = d*nibble(b[4:], j) + m
	}
}

// fifth returns 16 when bit j of the 32 high bits at b is set.
func fifth(b []byte, j int) float32 {
	return float32(binary.LittleEndian.Uint32(b) >> j & 1 << 4)
}

func decodeQ5_0(dst []float32, b []byte) {
	d := half(b)
	for j := range dst {
		dst[j] = d * (nibble(b[6:], j) + fifth(b[2:], j) - 16)
	}
}

func decodeQ5_1(dst []float32, b []byte) {
	d, m := half(b), half(b[2:])
	for j := range dst {
		dst[j] = d*(nibble(b[8:], j)+fifth(b[4:], j)) + m
	}
}

func decodeQ8_0(dst []float32, b []byte) {
	d := half(b)
	for j := range dst {
		dst[j] = d * float32(int8(b[2+j]))
	}
}

// scaleMin unpacks the 6-bit scale and minimum of sub-block j of 8 from the 12
// bytes that Q4_K and Q5_K share.
func scaleMin(p []byte, j int) (scale, minimum float32) {
	if j < 4 {
		return float32(p[j] & 63), float32(p[j+4] & 63)
	}
	return float32(p[j+4]&15 | p[j-4]>>6<<4), float32(p[j+4]>>4 | p[j]>>6<<4)
}

func decodeQ4_K(dst []float32, b []byte) {
	d, dmin, scales, q := half(b), half(b[2:]), b[4:16], b[16:144]
	for j := range dst {
		s, m := scaleMin(scales, j/32)
		code := q[j/64*32+j%32] >> (4 * (j / 32 % 2)) & 15
		dst[j] = d*s*float32(code) - dmin*m
	}
}

func decodeQ5_K(dst []float32, b []byte) {
	d, dmin, scales, high, q := half(b), half(b[2:]), b[4:16], b[16:48], b[48:176]
	for j := range dst {
		s, m := scaleMin(scales, j/32)
		code := q[j/64*32+j%32]>>(4*(j/32%2))&15 | high[j%32]>>(j/32)&1<<4
		dst[j] = d*s*float32(code) - dmin*m
	}
}

func decodeQ6_K(dst []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for j := range dst {
		n, quarter, l := j/128, j%128/32, j%32 // half of the group, quarter of that half
		lo := low[64*n+32*(quarter%2)+l] >> (4 * (quarter / 2)) & 15
		hi := high[32*n+l] >> (2 * quarter) & 3
		code := int(lo|hi<<4) - 32
		dst[j] = d * float32(int8(scales[j/16])) * float32(code)
	}
}
