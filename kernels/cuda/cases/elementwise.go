package cases

import (
	"fmt"
	"math"

	"tandem/kernels/cuda"
)

func embedCases() []Case {
	var all []Case
	for _, hidden := range []int{8, 64, 2056} {
		name := fmt.Sprintf("embed %d", hidden)
		r := rng(name)
		vocab, ids := 11, []int{3, 0, 10, -1, 11, 3}
		t := normal(r, BF16, vocab*hidden, 1)
		want := make([]float64, len(ids)*hidden)
		for i, id := range ids {
			if id >= 0 && id < vocab {
				copy(want[i*hidden:], t[id*hidden:(id+1)*hidden])
			}
		}
		all = append(all, Case{
			Name: name, Kernel: "td_embed", Launch: cuda.Embed(len(ids)),
			Args:  []Arg{blank(F32, len(want)), encode(BF16, t), ints(ids), i32(hidden), i32(vocab)},
			Wants: []Want{{Elem: F32, Values: want}},
			Host:  Lookup{Weight{Format: cuda.FormatBF16, Values: t}, vocab, hidden, ids, want},
		})
	}
	from := []int{-1, 2, 0, -1, 1}
	return append(all, Case{
		Name: "merge tokens", Kernel: "td_merge_tokens", Launch: cuda.MergeTokens(5),
		Args:  []Arg{blank(I32, 5), ints([]int{7, 8, 9, 10, 11}), ints(from), ints([]int{100, 101, 102}), i32(5)},
		Wants: []Want{{Elem: I32, Values: []float64{7, 102, 100, 10, 101}}},
	})
}

// rmsnorm is x/rms(x)*weight of a row.
func rmsnorm(x, weight []float64, eps float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	inv := 1 / math.Sqrt(sum/float64(len(x))+eps)
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * inv * weight[i]
	}
	return out
}

func normCases() []Case {
	var all []Case
	for _, cols := range []int{8, 72, 576, 2048, 4104} {
		for _, added := range []bool{false, true} {
			name := fmt.Sprintf("norm %d added %v", cols, added)
			r := rng(name)
			const rows, eps = 3, 1e-5
			x, w := normal(r, F32, rows*cols, 2), normal(r, F32, cols, 1)
			delta, sum := null(), append([]float64(nil), x...)
			if added {
				d := normal(r, F32, rows*cols, 1)
				delta = encode(F32, d)
				for i := range sum {
					sum[i] = rounded(F32, x[i]+d[i])
				}
			}
			var want []float64
			for i := range rows {
				want = append(want, rmsnorm(sum[i*cols:(i+1)*cols], w, eps)...)
			}
			all = append(all, Case{
				Name: name, Kernel: "td_rmsnorm", Launch: cuda.Norm(rows),
				Args:  []Arg{blank(BF16, len(x)), encode(F32, x), delta, encode(F32, w), i32(cols), f32(eps)},
				Wants: []Want{{0, BF16, want, bf16Rel, 1e-6}, {1, F32, sum, 0, 0}},
				Host:  Norm{rows, cols, sum, w, eps, want},
			})
			if added {
				continue
			}
			index := []int{2, 0}
			pick := append(append([]float64(nil), want[2*cols:3*cols]...), want[:cols]...)
			all = append(all, Case{
				Name: name + " rows", Kernel: "td_norm_rows", Launch: cuda.Norm(2),
				Args:  []Arg{blank(BF16, 2*cols), encode(F32, x), ints(index), encode(F32, w), i32(cols), f32(eps)},
				Wants: []Want{{0, BF16, pick, bf16Rel, 1e-6}},
			})
		}
	}
	return all
}

func activate(x float64, act int) float64 {
	switch act {
	case cuda.SiLU:
		return x / (1 + math.Exp(-x))
	case cuda.GELUTanh:
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return 0.5 * x * (1 + math.Erf(x/math.Sqrt2))
}

// gated is act(gate)*up of a row that interleaves them by eight.
func gated(row []float64, act int) []float64 {
	out := make([]float64, len(row)/2)
	for i := range out {
		at := i/8*16 + i%8
		out[i] = activate(row[at], act) * row[at+8]
	}
	return out
}

func actCases() []Case {
	var all []Case
	for _, inter := range []int{8, 56, 1032} {
		for act := range 3 {
			for _, e := range []Elem{F32, BF16} {
				name := fmt.Sprintf("act %d %d elem %d", inter, act, e)
				const rows = 3
				in := normal(rng(name), e, rows*2*inter, 3)
				in[0], in[1] = -40, 30 // exp overflows a float on neither side
				var want []float64
				for i := range rows {
					want = append(want, gated(in[i*2*inter:(i+1)*2*inter], act)...)
				}
				kernel := "td_act_mul_f32"
				if e == BF16 {
					kernel = "td_act_mul_bf16"
				}
				all = append(all, Case{
					Name: name, Kernel: kernel, Launch: cuda.ActMul(rows, inter),
					Args:  []Arg{blank(BF16, len(want)), encode(e, in), i32(inter), i32(act)},
					Wants: []Want{{0, BF16, want, bf16Rel, 2e-5}},
					Host:  Gate{rows, inter, act, in, want},
				})
			}
		}
	}
	return all
}

func sumCases() []Case {
	r := rng("sums")
	const rows, cols = 3, 340
	x, d, b := normal(r, F32, rows*cols, 1), normal(r, F32, rows*cols, 1), normal(r, F32, cols, 1)
	both, bias := make([]float64, len(x)), make([]float64, len(x))
	for i := range x {
		both[i] = x[i] + d[i] + b[i%cols]
		bias[i] = x[i] + b[i%cols]
	}
	odd := normal(r, F32, 2056, 10)
	return []Case{
		{
			Name: "add delta and bias", Kernel: "td_add", Launch: cuda.Each(rows*cols, 4),
			Args:  []Arg{encode(F32, x), encode(F32, d), encode(F32, b), i64(rows * cols), i32(cols)},
			Wants: []Want{{0, F32, both, f32Rel, 1e-6}},
		},
		{
			Name: "add bias", Kernel: "td_add", Launch: cuda.Each(rows*cols, 4),
			Args:  []Arg{encode(F32, x), null(), encode(F32, b), i64(rows * cols), i32(cols)},
			Wants: []Want{{0, F32, bias, f32Rel, 1e-6}},
		},
		{
			Name: "to bf16", Kernel: "td_to_bf16", Launch: cuda.Each(2056, 8),
			Args:  []Arg{blank(BF16, 2056), encode(F32, odd), i64(2056)},
			Wants: []Want{{0, BF16, odd, 1.0 / 256, 0}},
		},
	}
}
