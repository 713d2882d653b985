package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// floatFile writes values as F16 or BF16, which have them exactly.
func floatFile(dtype int, values []float64) (file []byte) {
	for _, v := range values {
		bits := uint16(math.Float32bits(float32(v)) >> 16)
		if dtype == f16 {
			for bits = 0; half(binary.LittleEndian.AppendUint16(nil, bits)) != math.Abs(v); bits++ {
			}
			if math.Signbit(v) {
				bits |= 0x8000
			}
		}
		file = binary.LittleEndian.AppendUint16(file, bits)
	}
	return file
}

// What levels of 12 bits keep of a group: BF16 down to an eighth of the greatest
// magnitude to the bit, and half a level of everything.
func TestLevelsKeepWhatBF16Says(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	const n, k = 24, 96
	for _, dtype := range []int{f16, bf16} {
		for range 50 {
			file := randomFile(r, dtype, n, k)
			p := mustProbe(t, []int{dtype}, []int{n}, k, false, [][]byte{file}, 2)
			for c := range n {
				want := dequantise(dtype, 1, file[c*k*2:(c+1)*k*2]) // unrounded
				for i, v := range p.row(c) {
					top := 0.0
					for _, w := range want[i/32*32 : i/32*32+32] {
						top = max(top, math.Abs(w))
					}
					off := math.Abs(float64(v) - want[i])
					if off > top/2048 || dtype == bf16 && math.Abs(want[i]) >= top/8 && off != 0 || math.Abs(want[i]) == top && off != 0 {
						t.Fatalf("%s row %d: weight %d is %g, want %g, the greatest is %g", formatOf(dtype).name, c, i, v, want[i], top)
					}
				}
			}
		}
	}
}

// The greatest sums that there are, next to those of the least scales: a row of 2047
// levels times activations that are all the greatest.
func TestGreatestLevelsFit(t *testing.T) {
	const n, k = 17, 64
	for _, dtype := range []int{f16, bf16} {
		for _, top := range []float64{2047.0 / 1024, -2047.0 / 1024} {
			if dtype == bf16 {
				top = top / 2047 * 2040
			}
			values := make([]float64, n*k)
			for i := range values {
				values[i] = top
			}
			file := floatFile(dtype, values)
			p := mustProbe(t, []int{dtype}, []int{n}, k, false, [][]byte{file}, 1)
			x := make([]float32, 7*k)
			for i := range x {
				x[i] = float32(1 - 2*(i/k%2))
			}
			for _, isa := range isas() {
				for _, rows := range []int{1, 7} {
					what := fmt.Sprintf("%s of %g %s", formatOf(dtype).name, top, isaName(isa))
					checkProduct(t, what, product(p, isa, x, rows), x, values, rows, n, k, takes16)
				}
			}
		}
	}
}

// Groups of any magnitude that the types have, zeros, and values that are no numbers,
// which must not look like numbers afterwards, nor touch other rows.
func TestLevelsOfStrangeGroups(t *testing.T) {
	const k = 32
	inf, nan := math.Inf(1), math.NaN()
	rows := [][2]float64{ // the first value and all others
		{0, 0},
		{inf, 1},
		{1, -inf},
		{nan, 1},
		{0, nan},
		{math.Ldexp(1.9921875, 100), 1},
		{math.Ldexp(1, -126), 0},
		{math.Ldexp(1, -110), math.Ldexp(1, -113)},
		{1, math.Ldexp(1, -12)},
		{-1, 1},
	}
	file := []byte{}
	for _, row := range rows {
		for i := range k {
			file = append(file, floatFile(bf16, []float64{row[min(i, 1)]})...)
		}
	}
	p := mustProbe(t, []int{bf16}, []int{len(rows)}, k, false, [][]byte{file}, 1)
	x := make([]float32, 2*k)
	for i := range x {
		x[i] = math.Float32frombits(math.Float32bits(1) - uint32(i%2)) // no group sums to zero by chance
	}
	for _, isa := range isas() {
		out := product(p, isa, x, 2)
		for c, row := range rows {
			got := p.row(c)
			if strange := math.IsNaN(row[0]*0 + row[1]*0); strange {
				if !math.IsNaN(float64(out[c])) || !math.IsNaN(float64(got[0])) {
					t.Errorf("%s: row of %g and %g gives %g, its weight is %g", isaName(isa), row[0], row[1], out[c], got[0])
				}
				continue
			}
			want := row[0] + (k-1)*row[1]
			if math.Abs(row[1]) < math.Abs(row[0])/2048 {
				want = row[0] // less than half a level
			}
			if off := math.Abs(float64(out[c]) - want); off > math.Abs(want)*1e-4 || math.Abs(float64(got[0])-row[0]) > math.Abs(row[0])*1e-7 {
				t.Errorf("%s: row of %g and %g gives %g, want %g", isaName(isa), row[0], row[1], out[c], want)
			}
		}
	}
}

// A weight that is in BF16 or F16 and one of the same value in F32 give the same bits
// where none of them becomes levels.
func TestShortFloatsAreTheSameFloats(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 4))
	const n, k, rows = 37, 67, 9
	for _, dtype := range []int{f16Float, bf16Float} {
		file, long := randomFile(r, dtype, n, k), []byte(nil)
		for _, v := range dequantise(dtype, k, file) {
			long = binary.LittleEndian.AppendUint32(long, math.Float32bits(float32(v)))
		}
		x := randomRows(r, rows, k)
		short := mustProbe(t, []int{dtype}, []int{n}, k, false, [][]byte{file}, 2)
		want := mustProbe(t, []int{f32}, []int{n}, k, false, [][]byte{long}, 2)
		for _, isa := range isas() {
			sameBits(t, formatOf(dtype).name+" "+isaName(isa), product(short, isa, x, rows), product(want, isa, x, rows))
		}
	}
}
