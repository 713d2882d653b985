package cpu

import (
	"encoding/binary"
	"math"
	"testing"

	kernels "tandem/kernels/cpu"
)

// What is shortened is the same numbers, and nothing else is.
func TestShorten(t *testing.T) {
	le := binary.LittleEndian
	file := func(values ...float32) (data []byte) {
		for _, v := range values {
			data = le.AppendUint32(data, math.Float32bits(v))
		}
		return data
	}
	var halves []float32
	for bits := range 1 << 16 {
		v := halfToFloat(uint16(bits))
		if bits>>10&31 == 31 {
			if _, ok := toHalf(math.Float32bits(v)); ok {
				t.Fatalf("%g is a number", v)
			}
			continue
		}
		halves = append(halves, v)
	}
	dtype, short := shorten(file(halves...))
	if dtype != kernels.F16Float || len(short) != 2*len(halves) {
		t.Fatalf("all of F16: type %d, %d bytes", dtype, len(short))
	}
	for i, v := range halves {
		if got := halfToFloat(le.Uint16(short[2*i:])); math.Float32bits(got) != math.Float32bits(v) {
			t.Fatalf("%g became %g", v, got)
		}
	}
	for _, tc := range []struct {
		name  string
		data  []byte
		dtype int
	}{
		{"BF16", file(1, -0x1.7ep-90, 0, float32(math.Inf(1)), 0x1.fep127), kernels.BF16Float},
		{"both", file(1, 2, -3), kernels.BF16Float},
		{"BF16 and then F16", file(0x1.02p-90, 0x1.004p0), 0},
		{"a bit beyond F16", file(0x1.004p0, 0x1.002p0), 0},
		{"too small for F16", file(0x1.004p0, 0x1p-25), 0},
		{"a subnormal with too many bits", file(0x1.004p0, 0x1.8p-24), 0},
		{"too large for F16", file(0x1.004p0, 65536), 0},
		{"subnormal", file(0x1.004p0, 0x1p-149), 0},
	} {
		dtype, short := shorten(tc.data)
		if dtype != tc.dtype || (short != nil) != (dtype != 0) || dtype != 0 && len(short) != len(tc.data)/2 {
			t.Errorf("%s: type %d and %d bytes, want type %d", tc.name, dtype, len(short), tc.dtype)
		}
		if dtype != kernels.BF16Float {
			continue
		}
		for i := 0; i < len(tc.data); i += 4 {
			if le.Uint32(tc.data[i:]) != uint32(le.Uint16(short[i/2:]))<<16 {
				t.Errorf("%s: value %d differs", tc.name, i/4)
			}
		}
	}
}
