package cases

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"tandem/kernels/cuda"
)

// Weight is a weight [n, k]: the values, and how the device holds them.
type Weight struct {
	Format cuda.Format
	Values []float64
	Rows   []cuda.Row // what the values are made of; nil for plain ones
	arg    Arg
}

// randomWeight makes a weight in a format, with scales of every row and group.
func randomWeight(r *rand.Rand, f cuda.Format, n, k int) Weight {
	if f == cuda.FormatBF16 {
		v := normal(r, BF16, n*k, 0.5)
		return Weight{Format: f, Values: v, arg: encode(BF16, v)}
	}
	dst := make([]byte, f.Bytes(n, k))
	p, err := cuda.NewPacker(f, n, k, dst)
	if err != nil {
		panic(err) // the table is ours
	}
	values, rows := make([]float64, n*k), make([]cuda.Row, n)
	var scales []float64
	for i := range n {
		groups := (k + f.Group() - 1) / f.Group()
		if f != cuda.FormatF8 || i%8 == 0 {
			scales = make([]float64, groups)
			for g := range scales {
				scales[g] = rounded(F16, (r.Float64()+0.1)/16)
			}
		}
		row := cuda.Row{Codes: make([]byte, k), Scales: make([]float32, groups), Mins: make([]float32, groups)}
		for g := range groups {
			row.Scales[g] = float32(scales[g])
			row.Mins[g] = float32(rounded(F16, r.NormFloat64()/8))
		}
		for j := range k {
			row.Codes[j] = byte(r.Uint32())
			values[i*k+j] = value(f, &row.Codes[j], float64(row.Scales[j/f.Group()]), float64(row.Mins[j/f.Group()]))
		}
		p.Put(i, row)
		rows[i] = row
	}
	return Weight{f, values, rows, Arg{Data: dst}}
}

// value limits a code to those of the format and returns what it stands for.
func value(f cuda.Format, code *byte, scale, minimum float64) float64 {
	c := float64(0)
	switch f {
	case cuda.FormatQ4, cuda.FormatQ4M:
		*code &= 15
		c = float64(*code)
	case cuda.FormatQ5, cuda.FormatQ5M:
		*code &= 31
		c = float64(*code)
	case cuda.FormatQ6:
		*code &= 63
		c = float64(*code)
	case cuda.FormatQ8:
		return scale * float64(int8(*code))
	case cuda.FormatF8:
		if *code&0x7f == 0x7f {
			*code--
		}
		return scale * e4m3Value(*code)
	}
	switch f {
	case cuda.FormatQ4:
		return scale * (c - 8)
	case cuda.FormatQ5:
		return scale * (c - 16)
	case cuda.FormatQ6:
		return scale * (c - 32)
	}
	return scale*c + minimum
}

// linear is x·wᵀ of rows.
func linear(x, w []float64, rows, n, k int) []float64 {
	y := make([]float64, rows*n)
	for i := range rows {
		for j := range n {
			for l := range k {
				y[i*n+j] += x[i*k+l] * w[j*k+l]
			}
		}
	}
	return y
}

var allFormats = []cuda.Format{
	cuda.FormatBF16, cuda.FormatQ4, cuda.FormatQ4M, cuda.FormatQ5, cuda.FormatQ5M, cuda.FormatQ6, cuda.FormatQ8, cuda.FormatF8,
}

// gap is the elements between rows of y.
type gemvShape struct{ rows, n, k, mode, gap int }

func gemvCases() []Case {
	var all []Case
	for _, f := range allFormats {
		for _, s := range []gemvShape{
			{1, 16, 64, cuda.OutStore, 0},
			{3, 40, 96, cuda.OutAdd, 0},
			{8, 33, 608, cuda.OutBF16, 5},
			{1, 48, 1120, cuda.OutGated, 0},
			{13, 32, 160, cuda.OutGated, 24},
			{16, 17, 32, cuda.OutStore, 0},
			{29, 31, 192, cuda.OutAdd, 1},
		} {
			all = append(all, gemvCase(f, s))
		}
		all = append(all, dequantCases(f)...)
	}
	plain := gemvCase(cuda.FormatBF16, gemvShape{2, 24, 72, cuda.OutStore, 0})
	return append(all, plain)
}

func gemvCase(f cuda.Format, s gemvShape) Case {
	name := fmt.Sprintf("gemv %s rows %d [%d, %d] mode %d", f, s.rows, s.n, s.k, s.mode)
	r := rng(name)
	w := randomWeight(r, f, s.n, s.k)
	x := normal(r, BF16, s.rows*s.k, 1)
	bias, b := null(), make([]float64, s.n)
	if s.rows%2 == 1 {
		b = normal(r, F32, s.n, 1)
		bias = encode(F32, b)
	}
	y := linear(x, w.Values, s.rows, s.n, s.k)
	for i := range y {
		y[i] += b[i%s.n]
	}
	host := Product{Rows: s.rows, N: s.n, K: s.k, X: x, Bias: b, W: w, Sums: slices.Clone(y)}
	out, want := output(r, s.mode, y, s.rows, s.n, cuda.SiLU)
	ldy := spread(&out, &want, s.rows, s.gap)
	per, err := cuda.GemvRows(s.rows)
	if err != nil {
		panic(err)
	}
	return Case{
		Name: name, Kernel: fmt.Sprintf("td_gemv_%s_r%d", f, per), Launch: cuda.Gemv(s.n),
		Args:  []Arg{out, w.arg, encode(BF16, x), bias, i32(s.rows), i32(s.n), i32(s.k), i32(s.mode), i32(cuda.SiLU), i32(ldy)},
		Wants: []Want{want}, Host: host,
	}
}

// output makes the buffer y of a product and what it holds afterwards.
func output(r *rand.Rand, mode int, y []float64, rows, n, act int) (Arg, Want) {
	switch mode {
	case cuda.OutAdd:
		before := normal(r, F32, len(y), 1)
		for i := range y {
			y[i] += before[i]
		}
		return encode(F32, before), Want{0, F32, y, f32Rel, 1e-3}
	case cuda.OutGated:
		var g []float64
		for i := range rows {
			g = append(g, gated(y[i*n:(i+1)*n], act)...)
		}
		return blank(BF16, len(g)), Want{0, BF16, g, bf16Rel, 2e-3}
	case cuda.OutBF16:
		return blank(BF16, len(y)), Want{0, BF16, y, bf16Rel, 1e-3}
	}
	return blank(F32, len(y)), Want{0, F32, y, f32Rel, 1e-3}
}

// spread puts gaps between the rows of an output and returns the parameter ldy.
func spread(out *Arg, want *Want, rows, gap int) int {
	if gap == 0 {
		return 0
	}
	width, size := len(want.Values)/rows, want.Elem.size()
	wide, values := blank(want.Elem, rows*(width+gap)), make([]float64, rows*(width+gap))
	for i := range values {
		values[i] = math.NaN()
	}
	for i := range rows {
		at := i * (width + gap)
		copy(wide.Data[at*size:], out.Data[i*width*size:(i+1)*width*size])
		copy(values[at:], want.Values[i*width:(i+1)*width])
	}
	*out, want.Values = wide, values
	return width + gap
}

func dequantCases(f cuda.Format) []Case {
	if f == cuda.FormatBF16 {
		return nil
	}
	const n, k = 41, 608
	name := fmt.Sprintf("dequant %s", f)
	w := randomWeight(rng(name), f, n, k)
	ids := []int{40, 0, 15, 24, -1, 41, 16}
	rows := make([]float64, len(ids)*k)
	for i, id := range ids {
		if id >= 0 && id < n {
			copy(rows[i*k:], w.Values[id*k:(id+1)*k])
		}
	}
	return []Case{
		{
			Name: name, Kernel: "td_dequant_" + f.String(), Launch: cuda.Dequant(n, k),
			Args:  []Arg{blank(BF16, n*k), w.arg, i32(n), i32(k)},
			Wants: []Want{{0, BF16, w.Values, 1.0 / 250, 1e-6}},
		},
		{
			Name: "embed " + f.String(), Kernel: "td_embed_" + f.String(), Launch: cuda.EmbedPacked(len(ids)),
			Args:  []Arg{blank(F32, len(rows)), w.arg, ints(ids), i32(n), i32(k)},
			Wants: []Want{{0, F32, rows, 1e-6, 1e-6}},
			Host:  Lookup{w, n, k, ids, rows},
		},
	}
}
