package cases

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"tandem/kernels/cuda"
)

// poison fills what a kernel must not use, or must write: a NaN in every type.
const poison = 0xff

// rng makes a case's inputs; the same name gives the same inputs.
func rng(name string) *rand.Rand {
	var seed uint64
	for _, c := range name {
		seed = seed*1099511628211 + uint64(c)
	}
	return rand.New(rand.NewPCG(seed, 1))
}

func blank(e Elem, n int) Arg {
	b := make([]byte, n*e.size())
	for i := range b {
		b[i] = poison
	}
	return Arg{Data: b}
}

func zeros(n int) Arg { return Arg{Data: make([]byte, 4*n)} }

func null() Arg { return Arg{} }

func i32(v int) Arg { return Arg{Scalar: uint64(uint32(int32(v)))} }

func i64(v int) Arg { return Arg{Scalar: uint64(int64(v))} }

func f32(v float64) Arg { return Arg{Scalar: uint64(math.Float32bits(float32(v)))} }

// encode stores values, which are rounded to the element type.
func encode(e Elem, values []float64) Arg {
	b := make([]byte, len(values)*e.size())
	for i, v := range values {
		put(e, b[i*e.size():], v)
	}
	return Arg{Data: b}
}

func put(e Elem, b []byte, v float64) {
	switch e {
	case F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
	case BF16:
		binary.LittleEndian.PutUint16(b, bf16Bits(v))
	case F16:
		binary.LittleEndian.PutUint16(b, cuda.F16Bits(float32(v)))
	case E4M3:
		b[0] = e4m3Bits(v)
	case I32:
		binary.LittleEndian.PutUint32(b, uint32(int32(v)))
	case F64:
		binary.LittleEndian.PutUint64(b, math.Float64bits(v))
	default:
		b[0] = byte(v)
	}
}

func ints(values []int) Arg {
	b := make([]byte, 4*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(int32(v)))
	}
	return Arg{Data: b}
}

// normal returns n numbers of the element type around zero with the deviation.
func normal(r *rand.Rand, e Elem, n int, deviation float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = rounded(e, r.NormFloat64()*deviation)
	}
	return v
}

func rounded(e Elem, v float64) float64 {
	var b [8]byte
	put(e, b[:], v)
	return decode(e, b[:e.size()])
}

func bf16Bits(v float64) uint16 {
	b := math.Float32bits(float32(v))
	if v != v {
		return 0x7fff
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func f16Value(h uint16) float64 {
	frac, exp := float64(h&0x3ff), int(h>>10&31)
	v := math.Ldexp(1024+frac, exp-25)
	switch {
	case exp == 0:
		v = math.Ldexp(frac, -24)
	case exp == 31 && frac == 0:
		v = math.Inf(1)
	case exp == 31:
		v = math.NaN()
	}
	if h>>15 == 1 {
		return -v
	}
	return v
}

func e4m3Value(b byte) float64 {
	frac, exp := float64(b&7), int(b>>3&15)
	v := math.Ldexp(8+frac, exp-10)
	switch {
	case exp == 0:
		v = math.Ldexp(frac, -9)
	case exp == 15 && frac == 7:
		v = math.NaN()
	}
	if b>>7 == 1 {
		return -v
	}
	return v
}

// e4m3Bits rounds to the nearest number, ties to even; beyond 448 it is 448.
func e4m3Bits(v float64) byte {
	sign, a := byte(0), math.Abs(v)
	if math.Signbit(v) {
		sign = 0x80
	}
	if v != v {
		return sign | 0x7f
	}
	// Steps are 2^(e-3) from 2^e on, with the least e at -6; codes count them.
	e := max(math.Ilogb(max(a, 1.0/64)), -6)
	code := math.RoundToEven(math.Ldexp(a, 3-e)) + float64(8*(e+6))
	return sign | byte(min(code, 0x7e))
}
