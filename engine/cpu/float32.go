package cpu

import (
	"encoding/binary"
	"math"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// part is a tensor as the kernels take it.
func (b *Backend) part(h tensor.Host) (kernels.Part, error) {
	p := kernels.Part{DType: int(h.DType), Rows: h.Rows(), Data: h.Data, Release: b.cfg.Release}
	switch h.DType {
	case tensor.F32:
		dtype, data := shorten(h.Data)
		if data == nil {
			break
		}
		if p.Release != nil {
			p.Release(h.Data)
		}
		p.DType, p.Data, p.Release = dtype, data, nil
	case tensor.F8_S:
		short, err := native(h)
		if err != nil {
			return p, err
		}
		p.DType, p.Data = int(short.DType), short.Data
	}
	return p, nil
}

// shorten halves weights in F32 that all are numbers of BF16 or of F16, as those of
// checkpoints that were made in these types: products are the same to the bit, and
// half as much is read for them. It returns nil for others.
func shorten(data []byte) (dtype int, short []byte) {
	le := binary.LittleEndian
	var low, lost uint32 // bits beyond BF16, and whether one is beyond F16
	for i := 0; i < len(data) && (low == 0 || lost == 0); i += 4 {
		v := le.Uint32(data[i:])
		low |= v & 0xffff
		if _, ok := toHalf(v); !ok {
			lost = 1
		}
	}
	switch {
	case low == 0:
		short = make([]byte, len(data)/2)
		for i := range len(short) / 2 {
			copy(short[2*i:2*i+2], data[4*i+2:])
		}
		return kernels.BF16Float, short
	case lost == 0:
		short = make([]byte, len(data)/2)
		for i := range len(short) / 2 {
			bits, _ := toHalf(le.Uint32(data[4*i:]))
			le.PutUint16(short[2*i:], bits)
		}
		return kernels.F16Float, short
	}
	return 0, nil
}

// toHalf returns the bits in F16 of a number given by its bits in F32, and whether
// it is one there.
func toHalf(v uint32) (bits uint16, ok bool) {
	sign, exp, frac := uint16(v>>16&0x8000), int(v>>23&255), v&0x7fffff
	switch {
	case exp >= 113 && exp <= 142:
		return sign | uint16(exp-112)<<10 | uint16(frac>>13), frac&0x1fff == 0
	case exp >= 103 && exp < 113: // a multiple of 2^-24
		shift := 126 - exp
		whole := frac | 1<<23
		return sign | uint16(whole>>shift), whole&(1<<shift-1) == 0
	}
	return sign, math.Float32frombits(v) == 0
}
