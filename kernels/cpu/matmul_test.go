package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Element types by the numbers of tensor.DType.
const (
	f32 = iota + 1
	f16
	bf16
	q4_0
	q4_1
	q5_0
	q5_1
	q8_0
	q4K
	q5K
	q6K
	f16Float  = 64 // of F16 and BF16, multiplied as they are
	bf16Float = 65
)

type format struct {
	name         string
	dtype        int
	elems, bytes int
	scales       []int // offsets of the f16 scales in a group
}

var formats = []format{
	{"F32", f32, 1, 4, nil},
	{"F16", f16, 1, 2, nil},
	{"BF16", bf16, 1, 2, nil},
	{"Q4_0", q4_0, 32, 18, []int{0}},
	{"Q4_1", q4_1, 32, 20, []int{0, 2}},
	{"Q5_0", q5_0, 32, 22, []int{0}},
	{"Q5_1", q5_1, 32, 24, []int{0, 2}},
	{"Q8_0", q8_0, 32, 34, []int{0}},
	{"Q4_K", q4K, 256, 144, []int{0, 2}},
	{"Q5_K", q5K, 256, 176, []int{0, 2}},
	{"Q6_K", q6K, 256, 210, []int{208}},
	{"F16 as it is", f16Float, 1, 2, nil},
	{"BF16 as it is", bf16Float, 1, 2, nil},
}

// formatOf is the entry of an element type.
func formatOf(dtype int) format {
	return formats[slices.IndexFunc(formats, func(f format) bool { return f.dtype == dtype })]
}

// levels tells whether rows of k values are packed as integers with scales.
func (f format) levels(k int) bool {
	return f.elems > 1 || (f.dtype == f16 || f.dtype == bf16) && k%32 == 0
}

// eachForm calls f with the probe set to either form of activations, and with the one
// that a part of the format takes then: none for floats, 16 bits for levels of more than 8.
func eachForm(p *probe, f format, k int, do func(name string, form taken)) {
	for _, acts := range []Activations{Activations16, Activations8} {
		p.acts = acts
		form := takesFloats
		if f.levels(k) {
			form = takes16
		}
		if acts == Activations8 && f.elems > 1 {
			form = takes8
		}
		do(fmt.Sprintf("%s activations %d", f.name, acts.bits()), form)
	}
	p.acts = Activations16
}

// taken is the form of activations that a product reads.
type taken int

const (
	takesFloats taken = iota
	takes16
	takes8
)

// randomHalf returns the bits of a half of either sign around 2^-9..2^-5.
func randomHalf(r *rand.Rand) uint16 {
	return uint16(r.Uint32()&0x83ff) | uint16(6+r.IntN(4))<<10
}

// randomFile returns n random rows of k values in the bytes of a file.
func randomFile(r *rand.Rand, dtype, n, k int) []byte {
	f := formatOf(dtype)
	data := make([]byte, n*k/f.elems*f.bytes)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	for i := 0; i < len(data); i += f.bytes {
		group := data[i : i+f.bytes]
		switch dtype {
		case f32:
			binary.LittleEndian.PutUint32(group, math.Float32bits(float32(r.NormFloat64())))
		case f16, f16Float:
			binary.LittleEndian.PutUint16(group, randomHalf(r))
		case bf16, bf16Float:
			binary.LittleEndian.PutUint16(group, uint16(math.Float32bits(float32(r.NormFloat64()))>>16))
		}
		for _, off := range f.scales {
			binary.LittleEndian.PutUint16(group[off:], randomHalf(r))
		}
	}
	return data
}

func half(b []byte) float64 {
	h := binary.LittleEndian.Uint16(b)
	exp, man := int(h>>10&31), float64(h&0x3ff)
	v := math.Ldexp(1+man/1024, exp-15)
	switch exp {
	case 0:
		v = math.Ldexp(man, -24)
	case 31:
		v = math.Inf(1)
	}
	if h&0x8000 != 0 {
		return -v
	}
	return v
}

// groupParts returns scale, level and min of element i of a group: its value is
// scale*level + min.
func groupParts(dtype int, b []byte, i int) (scale float64, level int, min float64) {
	nibble := func(qs []byte) int { return int(qs[i%16] >> (i / 16 * 4) & 15) }
	high := func(qh []byte) int { return int(binary.LittleEndian.Uint32(qh)>>i&1) << 4 }
	switch dtype {
	case q4_0:
		return half(b), nibble(b[2:]) - 8, 0
	case q4_1:
		return half(b), nibble(b[4:]), half(b[2:])
	case q5_0:
		return half(b), nibble(b[6:]) + high(b[2:]) - 16, 0
	case q5_1:
		return half(b), nibble(b[8:]) + high(b[4:]), half(b[2:])
	case q8_0:
		return half(b), int(int8(b[2+i])), 0
	case q6K:
		n, l, q := i/128, i%32, i%128/32
		low := int(b[n*64+q%2*32+l]>>(q/2*4)) & 15
		level = low + int(b[128+n*32+l]>>(2*q)&3)<<4 - 32
		return half(b[208:]) * float64(int8(b[192+i/16])), level, 0
	}
	j, s := i/32, b[4:16]
	var sc, mn byte
	if j < 4 {
		sc, mn = s[j]&63, s[j+4]&63
	} else {
		sc, mn = s[j+4]&15|s[j-4]>>6<<4, s[j+4]>>4|s[j]>>6<<4
	}
	qs := b[16:]
	if dtype == q5K {
		qs = b[48:]
		level = int(b[16+i%32]>>j&1) << 4
	}
	level += int(qs[j/2*32+i%32]>>(j%2*4)) & 15
	return half(b) * float64(sc), level, -half(b[2:]) * float64(mn)
}

// round12 rounds each group of 32 values to 12 bits: to multiples of 2^-10 times the
// power of two that its greatest begins with.
func round12(values []float64) {
	for ; len(values) > 0; values = values[32:] {
		top := 0.0
		for _, v := range values[:32] {
			top = max(top, math.Abs(v))
		}
		_, exp := math.Frexp(top)
		for i, v := range values[:32] {
			values[i] = math.Ldexp(math.RoundToEven(math.Ldexp(v, 11-exp)), exp-11)
		}
	}
}

// dequantise returns the values that a file of rows of k stands for, in double
// precision.
func dequantise(dtype, k int, data []byte) []float64 {
	f := formatOf(dtype)
	out := make([]float64, 0, len(data)/f.bytes*f.elems)
	for ; len(data) > 0; data = data[f.bytes:] {
		for i := range f.elems {
			switch dtype {
			case f32:
				out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(data))))
			case f16, f16Float:
				out = append(out, half(data))
			case bf16, bf16Float:
				out = append(out, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data))<<16)))
			default:
				s, q, m := groupParts(dtype, data, i)
				out = append(out, s*float64(q)+m)
			}
		}
	}
	if f.elems == 1 && f.levels(k) {
		round12(out)
	}
	return out
}

func randomRows(r *rand.Rand, rows, k int) []float32 {
	x := make([]float32, rows*k)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for i := 7; i < len(x); i += 97 {
		x[i] *= 20 // outliers, as real activations have
	}
	return x
}

func isas() []int {
	all := make([]int, bestISA()+1)
	for i := range all {
		all[i] = i
	}
	if bestISA() >= int(AVX512) {
		all = append(all, int(AMXModel))
	}
	return all
}

// product multiplies all rows in one call.
func product(p *probe, isa int, x []float32, rows int) []float32 {
	run := p.newRun(isa, rows)
	defer run.close()
	run.fill(x, 0, rows)
	run.multiply(0, p.panels(), false)
	return append([]float32(nil), run.out...)
}

func mustProbe(t testing.TB, dtypes, rows []int, k int, interleaved bool, files [][]byte, step int) *probe {
	t.Helper()
	p, err := newProbe(dtypes, rows, k, interleaved, files, step)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// The greatest error allowed relative to sum |w*x|: float32 accumulation, and
// for quantised weights half a step: 1/32639 of the row's greatest value, or 1/127
// of the group's.
const floatTol = 3e-6

func checkProduct(t *testing.T, what string, got, x []float32, w []float64, rows, n, k int, form taken) {
	t.Helper()
	group, levels := k, 32639.0
	if form == takes8 {
		group, levels = 32, 127
		checkLevels8(t, what, got, x, w, rows, n, k)
	}
	for r := range rows {
		tops := make([]float64, (k+group-1)/group)
		for i, v := range x[r*k : (r+1)*k] {
			tops[i/group] = max(tops[i/group], math.Abs(float64(v)))
		}
		for c := range n {
			var want, size, step float64
			for i := range k {
				want += float64(x[r*k+i]) * w[c*k+i]
				size += math.Abs(float64(x[r*k+i]) * w[c*k+i])
				step += math.Abs(w[c*k+i]) * tops[i/group] / levels
			}
			tol := floatTol * size
			if form != takesFloats {
				tol += step * 0.51
			}
			if diff := math.Abs(float64(got[r*n+c]) - want); !(diff <= tol) {
				t.Fatalf("%s: row %d column %d is %v, want %v (off by %g, allowed %g)", what, r, c, got[r*n+c], want, diff, tol)
			}
		}
	}
}

// roundGroups rounds a row as products with activations of 8 bits take it: groups of 32 to
// multiples of a 127th of their greatest, but for values of more than eight times the
// row's mean magnitude, which stay as they are and out of their groups.
func roundGroups(x []float32) []float64 {
	var sums [16]float32
	for i, v := range x {
		sums[i%16] += max(v, -v)
	}
	for n := 8; n > 0; n /= 2 {
		for i := range n {
			sums[i] += sums[i+n]
		}
	}
	bound := sums[0] * (8 / float32(len(x)))
	rounded := make([]float64, len(x))
	for i, v := range x {
		top := float32(0)
		for _, u := range x[i/32*32 : i/32*32+32] {
			if u = max(u, -u); u <= bound {
				top = max(top, u)
			}
		}
		switch {
		case max(v, -v) > bound:
			rounded[i] = float64(v)
		case top > 0:
			rounded[i] = math.RoundToEven(float64(v*(127/top))) * float64(top/127)
		}
	}
	return rounded
}

// checkLevels8 compares with products of activations that are rounded as they should
// be: half a step of 8 bits would hide errors of the kernels.
func checkLevels8(t *testing.T, what string, got, x []float32, w []float64, rows, n, k int) {
	t.Helper()
	for r := range rows {
		level := roundGroups(x[r*k : (r+1)*k])
		for c := range n {
			var want, size float64
			for i := range k {
				want += level[i] * w[c*k+i]
				size += math.Abs(level[i] * w[c*k+i])
			}
			if diff := math.Abs(float64(got[r*n+c]) - want); !(diff <= floatTol*size) {
				t.Fatalf("%s: row %d column %d is %v, want %v of rounded activations (off by %g, allowed %g)",
					what, r, c, got[r*n+c], want, diff, floatTol*size)
			}
		}
	}
}

func TestProductsMatchDoublePrecision(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, f := range formats {
		shapes := [][2]int{{16, 256}, {1, 256}, {37, 512}, {83, 768}}
		if f.elems < 256 {
			shapes = append(shapes, [2]int{48, 32}, [2]int{21, 96}, [2]int{64, 576})
		}
		if f.elems == 1 {
			shapes = append(shapes, [2]int{5, 1}, [2]int{70, 33}, [2]int{129, 258})
		}
		for _, s := range shapes {
			n, k := s[0], s[1]
			file := randomFile(r, f.dtype, n, k)
			w := dequantise(f.dtype, k, file)
			p := mustProbe(t, []int{f.dtype}, []int{n}, k, false, [][]byte{file}, 2)
			for _, rows := range []int{1, 2, 3, 6, 7, 17} {
				x := randomRows(r, rows, k)
				eachForm(p, f, k, func(name string, form taken) {
					for _, isa := range isas() {
						what := fmt.Sprintf("%s %dx%d rows %d %s", name, n, k, rows, isaName(isa))
						checkProduct(t, what, product(p, isa, x, rows), x, w, rows, n, k, form)
					}
				})
			}
		}
	}
}

// Levels share one definition down to the order of roundings, so they agree in
// every bit; so do rows alone and in any company, and panels in any split.
func TestBitsDependOnTheRowAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const n, k, most = 83, 512, 64
	for _, f := range formats {
		p := mustProbe(t, []int{f.dtype}, []int{n}, k, false, [][]byte{randomFile(r, f.dtype, n, k)}, 100)
		x := randomRows(r, most, k)
		eachForm(p, f, k, func(name string, _ taken) { checkRowAlone(t, name, p, x, n, k, most) })
	}
}

func checkRowAlone(t *testing.T, name string, p *probe, x []float32, n, k, most int) {
	t.Helper()
	want := product(p, 0, x[:k], 1)
	for i := 1; i < most; i++ {
		want = append(want, product(p, 0, x[i*k:(i+1)*k], 1)...)
	}
	for _, isa := range isas() {
		for _, rows := range []int{1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 18, 64} {
			what := fmt.Sprintf("%s %s rows %d", name, isaName(isa), rows)
			sameBits(t, what, product(p, isa, x, rows), want[:rows*n])
		}
		run := p.newRun(isa, 17)
		for i := 16; i >= 0; i-- {
			run.fill(x, i, i+1)
		}
		for i := p.panels() - 1; i >= 0; i-- {
			run.multiply(i, i+1, false)
		}
		sameBits(t, name+" by row and panel", run.out, want[:17*n])
		run.multiply(0, 3, true)
		run.multiply(3, p.panels(), true)
		for i, v := range want[:17*n] {
			want[i] = v + v
		}
		sameBits(t, name+" accumulated", run.out, want[:17*n])
		for i, v := range want[:17*n] {
			want[i] = v / 2
		}
		run.close()
	}
}

func TestRowsComeBackExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		parts := rapid.IntRange(1, 4).Draw(rt, "parts")
		interleaved := parts == 2 && rapid.Bool().Draw(rt, "interleaved")
		k := 256 * rapid.IntRange(1, 3).Draw(rt, "k")
		var dtypes, rows []int
		var files [][]byte
		for i := range parts {
			n := rapid.IntRange(1, 50).Draw(rt, "n")
			if interleaved && i == 1 {
				n = rows[0]
			}
			d := formats[rapid.IntRange(0, len(formats)-1).Draw(rt, "format")].dtype
			dtypes, rows, files = append(dtypes, d), append(rows, n), append(files, randomFile(r, d, n, k))
		}
		p, err := newProbe(dtypes, rows, k, interleaved, files, rapid.IntRange(1, 4).Draw(rt, "step"))
		if err != nil {
			rt.Fatal(err)
		}
		defer p.close()
		p.acts = Activations(rapid.IntRange(0, 1).Draw(rt, "activations"))
		batch := rapid.SampledFrom([]int{7, 70}).Draw(rt, "batch")
		x := randomRows(r, batch, k)
		out := product(p, bestISA(), x, batch)
		col := 0
		for i := range parts {
			want := dequantise(dtypes[i], k, files[i])
			alone, err := newProbe(dtypes[i:i+1], rows[i:i+1], k, false, files[i:i+1], 9)
			if err != nil {
				rt.Fatal(err)
			}
			alone.acts = p.acts
			single := product(alone, 0, x, batch)
			alone.close()
			for c := range rows[i] {
				at := col + c
				if interleaved {
					at = (c/16*2+i)*16 + c%16
				}
				for j, v := range p.row(at) {
					if w := want[c*k+j]; math.Abs(float64(v)-w) > 1.3e-7*math.Abs(w)+1e-9 {
						rt.Fatalf("part %d (%s) row %d: weight %d is %v, want %v", i, formatOf(dtypes[i]).name, c, j, v, w)
					}
				}
				for y := range batch {
					if out[y*p.cols()+at] != single[y*rows[i]+c] {
						rt.Fatalf("part %d row %d differs in a stacked matrix", i, c)
					}
				}
			}
			col += rows[i]
		}
	})
}

func TestExtremesDoNotSaturate(t *testing.T) {
	const n, k = 16, 256
	for _, f := range formats {
		for _, fill := range []byte{0xff, 0x00, 0x80, 0x7f, 0x3f, 0xbf} {
			file := make([]byte, n*k/f.elems*f.bytes)
			for i := range file {
				file[i] = fill
			}
			if !f.levels(k) || f.elems == 1 && fill&0x7f == 0x7f {
				continue // floats, or no numbers
			}
			for i := 0; i < len(file); i += f.bytes {
				for _, off := range f.scales {
					binary.LittleEndian.PutUint16(file[i+off:], 0x3c00)
				}
			}
			p := mustProbe(t, []int{f.dtype}, []int{n}, k, false, [][]byte{file}, 1)
			w := dequantise(f.dtype, k, file)
			x := make([]float32, 8*k)
			for i := range x {
				x[i] = 1
				if i/k%2 == 1 {
					x[i] = -1
				}
			}
			eachForm(p, f, k, func(name string, form taken) {
				for _, isa := range isas() {
					checkProduct(t, name+" "+isaName(isa), product(p, isa, x, 8), x, w, 8, n, k, form)
					checkProduct(t, name+" "+isaName(isa), product(p, isa, x[k:], 1), x[k:], w, 1, n, k, form)
				}
			})
		}
	}
}

func TestStrangeActivations(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const n, k = 20, 256
	for _, f := range formats {
		p := mustProbe(t, []int{f.dtype}, []int{n}, k, false, [][]byte{randomFile(r, f.dtype, n, k)}, 1)
		x := randomRows(r, 5, k)
		clear(x[:k])
		x[k+3] = float32(math.NaN())
		x[2*k+9] = float32(math.Inf(-1))
		clear(x[3*k : 4*k])
		x[3*k] = 1e-38
		eachForm(p, f, k, func(name string, _ taken) {
			last := product(p, 0, x[4*k:], 1)
			for _, isa := range isas() {
				got := product(p, isa, x, 5)
				for c := range n {
					nan, inf := float64(got[n+c]), float64(got[2*n+c])
					if got[c] != 0 || !math.IsNaN(nan) || !(math.IsNaN(inf) || math.IsInf(inf, 0)) || math.Abs(float64(got[3*n+c])) > 1e-35 {
						t.Fatalf("%s %s column %d: zero row %v, not a number %v, infinity %v, tiny %v",
							name, isaName(isa), c, got[c], nan, inf, got[3*n+c])
					}
				}
				sameBits(t, name+" "+isaName(isa)+" beside them", got[4*n:], last)
			}
		})
	}
}

// With a scale per group, one of zeros, a tiny or a huge one beside others are rounded
// as if they were alone.
func TestGroupsOfActivationsAreScaledAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	const n, k, rows = 37, 256, 9
	for _, f := range formats {
		file := randomFile(r, f.dtype, n, k)
		p := mustProbe(t, []int{f.dtype}, []int{n}, k, false, [][]byte{file}, 2)
		x := randomRows(r, rows, k)
		for i := range x {
			x[i] *= []float32{1, 0, 1e-20, 1e20, 1e-3, 1, 1e3, -1}[(i/32+i/k)%8]
		}
		p.acts = Activations8
		if f.elems == 1 {
			continue
		}
		for _, isa := range isas() {
			checkProduct(t, f.name+" "+isaName(isa), product(p, isa, x, rows), x, dequantise(f.dtype, k, file), rows, n, k, takes8)
		}
	}
}

func TestLayoutRefusesWhatItCannotPack(t *testing.T) {
	for _, c := range []struct {
		name         string
		dtypes, rows []int
		k            int
		interleaved  bool
	}{
		{"no parts", nil, nil, 32, false},
		{"k no whole group", []int{q4_0}, []int{16}, 48, false},
		{"k no whole super-block", []int{q6K}, []int{16}, 288, false},
		{"no rows", []int{f32}, []int{0}, 32, false},
		{"negative k", []int{f32}, []int{4}, -32, false},
		{"unknown type", []int{99}, []int{4}, 32, false},
		{"unequal gate and up", []int{f32, f32}, []int{16, 32}, 32, true},
		{"too many parts", []int{f32, f32, f32, f32, f32}, []int{1, 1, 1, 1, 1}, 32, false},
	} {
		if p, err := newProbe(c.dtypes, c.rows, c.k, c.interleaved, nil, 1); err == nil {
			p.close()
			t.Errorf("%s: got a layout", c.name)
		}
	}
}
