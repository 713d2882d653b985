//go:build cuda

package cuda

import (
	"encoding/binary"
	"math"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// quantRow takes a row of a quantised tensor apart into the codes, scales and
// minima that value = scale*(code-zero) or scale*code+minimum is made of. The
// products of scales of the K types are rounded to half precision when packed.
func quantRow(h tensor.Host, row int) kernels.Row {
	data, size, cols := h.Row(row), h.DType.GroupBytes(), h.Cols()
	r := kernels.Row{Codes: make([]byte, 0, cols)}
	split := splitters[h.DType]
	for ; len(data) > 0; data = data[size:] {
		split(&r, data[:size])
	}
	return r
}

// splitters take one group of a type apart.
var splitters = map[tensor.DType]func(*kernels.Row, []byte){
	tensor.Q4_0: func(r *kernels.Row, b []byte) { group32(r, half(b), 0, b[2:], nil) },
	tensor.Q4_1: func(r *kernels.Row, b []byte) { group32(r, half(b), half(b[2:]), b[4:], nil) },
	tensor.Q5_0: func(r *kernels.Row, b []byte) { group32(r, half(b), 0, b[6:], b[2:6]) },
	tensor.Q5_1: func(r *kernels.Row, b []byte) { group32(r, half(b), half(b[2:]), b[8:], b[4:8]) },
	tensor.Q8_0: func(r *kernels.Row, b []byte) {
		r.Codes = append(r.Codes, b[2:34]...)
		r.Scales = append(r.Scales, half(b))
	},
	tensor.Q4_K: func(r *kernels.Row, b []byte) { superblock(r, b, nil, b[16:144]) },
	tensor.Q5_K: func(r *kernels.Row, b []byte) { superblock(r, b, b[16:48], b[48:176]) },
	tensor.Q6_K: sixBits,
	tensor.F8_S: func(r *kernels.Row, b []byte) {
		r.Codes = append(r.Codes, b[4:]...)
		r.Scales = append(r.Scales, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	},
}

// group32 adds 32 values of nibbles, the low halves of 16 bytes first, and, unless
// nil, a fifth bit each.
func group32(r *kernels.Row, scale, minimum float32, nibbles, fifth []byte) {
	for j := range 32 {
		code := nibbles[j%16] >> (4 * (j / 16)) & 15
		if fifth != nil {
			code |= byte(binary.LittleEndian.Uint32(fifth)>>j&1) << 4
		}
		r.Codes = append(r.Codes, code)
	}
	r.Scales, r.Mins = append(r.Scales, scale), append(r.Mins, minimum)
}

// superblock adds 256 values of Q4_K, or with high bits Q5_K: eight groups of 32
// with 6-bit scales and minima.
func superblock(r *kernels.Row, b, high, low []byte) {
	d, dmin, scales := half(b), half(b[2:]), b[4:16]
	for j := range 256 {
		code := low[j/64*32+j%32] >> (4 * (j / 32 % 2)) & 15
		if high != nil {
			code |= high[j%32] >> (j / 32) & 1 << 4
		}
		r.Codes = append(r.Codes, code)
	}
	for g := range 8 {
		scale, minimum := scales[g%4]&63, scales[g%4+4]&63
		if g >= 4 {
			scale = scales[g+4]&15 | scales[g-4]>>6<<4
			minimum = scales[g+4]>>4 | scales[g]>>6<<4
		}
		r.Scales, r.Mins = append(r.Scales, d*float32(scale)), append(r.Mins, -dmin*float32(minimum))
	}
}

// sixBits adds 256 values of Q6_K: sixteen groups of 16 with 8-bit scales.
func sixBits(r *kernels.Row, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for j := range 256 {
		n, quarter, l := j/128, j%128/32, j%32
		lo := low[64*n+32*(quarter%2)+l] >> (4 * (quarter / 2)) & 15
		hi := high[32*n+l] >> (2 * quarter) & 3
		r.Codes = append(r.Codes, lo|hi<<4)
	}
	for g := range 16 {
		r.Scales = append(r.Scales, d*float32(int8(scales[g])))
	}
}

func half(b []byte) float32 { return tensor.F16ToF32(binary.LittleEndian.Uint16(b)) }
