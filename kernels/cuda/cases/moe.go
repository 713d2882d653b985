package cases

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"tandem/kernels/cuda"
)

func gemmCases() []Case {
	var all []Case
	for _, s := range []gemvShape{
		{1, 8, 8, cuda.OutStore, 0},
		{130, 136, 72, cuda.OutStore, 7},
		{5, 260, 320, cuda.OutAdd, 0},
		{129, 64, 136, cuda.OutGated, 2},
		{33, 144, 200, cuda.OutBF16, 0},
	} {
		c := gemvCase(cuda.FormatBF16, gemvShape{min(s.rows, 32), s.n, s.k, s.mode, s.gap})
		if s.rows > 32 {
			c = manyRows(s)
		}
		c.Name = fmt.Sprintf("gemm rows %d [%d, %d] mode %d", s.rows, s.n, s.k, s.mode)
		c.Kernel, c.Launch = "td_gemm_bf16", cuda.Gemm(s.rows, s.n)
		all = append(all, c)
	}
	return all
}

// manyRows is gemvCase for more rows than those kernels take.
func manyRows(s gemvShape) Case {
	r := rng(fmt.Sprint("gemm", s))
	w := randomWeight(r, cuda.FormatBF16, s.n, s.k)
	x, b := normal(r, BF16, s.rows*s.k, 1), normal(r, F32, s.n, 1)
	y := linear(x, w.Values, s.rows, s.n, s.k)
	for i := range y {
		y[i] += b[i%s.n]
	}
	host := Product{Rows: s.rows, N: s.n, K: s.k, X: x, Bias: b, W: w, Sums: slices.Clone(y)}
	out, want := output(r, s.mode, y, s.rows, s.n, cuda.SiLU)
	ldy := spread(&out, &want, s.rows, s.gap)
	return Case{
		Args:  []Arg{out, w.arg, encode(BF16, x), encode(F32, b), i32(s.rows), i32(s.n), i32(s.k), i32(s.mode), i32(cuda.SiLU), i32(ldy)},
		Wants: []Want{want}, Host: host,
	}
}

// route is the experts of a row, ascending, and their weights.
func route(logits []float64, used int, renorm bool) (ids []int, weights []float64) {
	clean := slices.Clone(logits)
	for i, l := range clean {
		if l != l {
			clean[i] = math.Inf(-1)
		}
	}
	order := make([]int, len(clean))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case clean[a] > clean[b]:
			return -1
		case clean[a] < clean[b]:
			return 1
		}
		return a - b
	})
	chosen, sum := order[:used], 0.0
	from := order
	if renorm {
		from = chosen
	}
	for _, e := range from {
		sum += math.Exp(clean[e] - clean[order[0]])
	}
	ids = slices.Sorted(slices.Values(chosen))
	for _, e := range ids {
		weights = append(weights, math.Exp(clean[e]-clean[order[0]])/sum)
	}
	return ids, weights
}

func routeCases() []Case {
	var all []Case
	for _, s := range []struct{ rows, experts, used int }{{1, 1, 1}, {5, 8, 2}, {9, 60, 4}, {3, 128, 8}, {2, 300, 64}} {
		for _, renorm := range []bool{false, true} {
			name := fmt.Sprintf("moe route %d of %d renorm %v", s.used, s.experts, renorm)
			logits := normal(rng(name), F32, s.rows*s.experts, 2)
			for i := range logits {
				if i%3 == 0 { // ties
					logits[i] = math.Round(logits[i])
				}
			}
			if renorm && s.experts > s.used {
				logits[1] = math.NaN()
			}
			var experts, weights []float64
			var chosen []int
			for i := range s.rows {
				ids, w := route(logits[i*s.experts:(i+1)*s.experts], s.used, renorm)
				weights, chosen = append(weights, w...), append(chosen, ids...)
				for _, id := range ids {
					experts = append(experts, float64(id))
				}
			}
			all = append(all, Case{
				Name: name, Kernel: "td_moe_route", Launch: cuda.MoERoute(s.rows),
				Args: []Arg{
					blank(I32, len(experts)), blank(F32, len(weights)), encode(F32, logits), i32(s.rows), i32(s.experts),
					i32(s.used), i32(b2i(renorm)),
				},
				Wants: []Want{{0, I32, experts, 0, 0}, {1, F32, weights, 1e-6, 1e-9}},
				Host:  Route{s.rows, s.experts, s.used, renorm, logits, chosen, weights},
			})
		}
	}
	return all
}

func routerCases() []Case {
	var all []Case
	for _, s := range []struct{ rows, experts, hidden int }{{1, 1, 4}, {5, 8, 72}, {16, 130, 256}, {70, 66, 100}} {
		name := fmt.Sprintf("router rows %d experts %d hidden %d", s.rows, s.experts, s.hidden)
		r := rng(name)
		const eps = 1e-6
		x, norm, w := normal(r, F32, s.rows*s.hidden, 2), normal(r, F32, s.hidden, 1), normal(r, F32, s.experts*s.hidden, 1)
		var normed []float64
		for i := range s.rows {
			normed = append(normed, rmsnorm(x[i*s.hidden:(i+1)*s.hidden], norm, eps)...)
		}
		want := linear(normed, w, s.rows, s.experts, s.hidden)
		kernel, l := cuda.Router(s.rows, s.experts)
		all = append(all, Case{
			Name: name, Kernel: kernel, Launch: l,
			Args: []Arg{
				blank(F32, len(want)), encode(F32, x), encode(F32, norm), encode(F32, w), i32(s.rows), i32(s.experts),
				i32(s.hidden), f32(eps),
			},
			Wants: []Want{{0, F32, want, 1e-5, 1e-5}},
			Host:  Router{s.rows, s.experts, s.hidden, x, norm, w, eps, want},
		})
	}
	return all
}

func sortCases() []Case {
	var all []Case
	for _, s := range []struct{ rows, used, experts, first, held, per int }{
		{1, 1, 1, 0, 1, 8},
		{7, 2, 8, 0, 8, 8},
		{300, 8, 64, 16, 32, 32},
		{40, 4, 1100, 0, 1100, 8},
		{5, 2, 4, 2, 1, 128}, // perhaps none is held
	} {
		all = append(all, sortCase(s.rows, s.used, s.experts, s.first, s.held, s.per))
	}
	return all
}

func sortCase(rows, used, experts, first, held, per int) Case {
	name := fmt.Sprintf("moe sort %d rows %d of %d held %d+%d", rows, used, experts, first, held)
	r := rng(name)
	var entries []int
	for range rows {
		entries = append(entries, slices.Sorted(slices.Values(r.Perm(experts)[:used]))...)
	}
	n := len(entries)
	return Case{
		Name: name, Kernel: "td_moe_sort", Launch: cuda.MoESort(),
		Args: []Arg{
			blank(I32, n), blank(I32, n), blank(I32, 4*cuda.MaxRuns(n, held, per)), blank(I32, 1), ints(entries), i32(n),
			i32(used), i32(first), i32(held), i32(per),
		},
		Wants: []Want{{Arg: 0}, {Arg: 1}, {Arg: 2}, {Arg: 3}},
		Verify: func(after [][]byte) error {
			return checkSort(entries, used, first, held, per, after)
		},
	}
}

func readInts(b []byte) []int {
	out := make([]int, len(b)/4)
	for i := range out {
		out[i] = int(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return out
}

// checkSort takes any order of an expert's slots.
func checkSort(entries []int, used, first, held, per int, after [][]byte) error {
	slot, row, runs, count := readInts(after[0]), readInts(after[1]), readInts(after[2]), readInts(after[3])[0]
	expert, next, seen := map[int]int{}, 0, map[int]bool{}
	for i := range count {
		e, from, n := runs[4*i], runs[4*i+1], runs[4*i+2]
		if from != next || n < 1 || n > per || e < 0 || e >= held || i > 0 && e < runs[4*i-4] {
			return fmt.Errorf("run %d is %v, the next slot is %d", i, runs[4*i:4*i+4], next)
		}
		if i > 0 && e == runs[4*i-4] && runs[4*i-2] != per {
			return fmt.Errorf("run %d of expert %d is not full", i-1, e)
		}
		for s := from; s < from+n; s++ {
			expert[s] = e
		}
		next += n
	}
	for i, e := range entries {
		here := e >= first && e < first+held
		if here != (slot[i] >= 0) {
			return fmt.Errorf("entry %d of expert %d has slot %d", i, e, slot[i])
		}
		if !here {
			continue
		}
		if expert[slot[i]] != e-first || row[slot[i]] != i/used || seen[slot[i]] {
			return fmt.Errorf("entry %d of expert %d has slot %d, which is of row %d, expert %d", i, e, slot[i], row[slot[i]], expert[slot[i]]+first)
		}
		seen[slot[i]] = true
	}
	if len(seen) != next {
		return fmt.Errorf("%d slots of %d entries", next, len(seen))
	}
	return nil
}

func combineCases() []Case {
	var all []Case
	for _, hidden := range []int{8, 72, 1032} {
		for i, e := range []Elem{F32, BF16} {
			name := fmt.Sprintf("moe combine %d elem %d", hidden, e)
			r := rng(name)
			const rows, used = 3, 4
			slot := r.Perm(rows * used)
			slot[2], slot[5] = -1, -1
			y, x, w := normal(r, e, rows*used*hidden, 1), normal(r, F32, rows*hidden, 1), normal(r, F32, rows*used, 1)
			want := make([]float64, len(x))
			for j := range want {
				if i == 1 {
					want[j] = x[j]
				}
				for k := range used {
					at := j/hidden*used + k
					if slot[at] >= 0 {
						want[j] += w[at] * y[slot[at]*hidden+j%hidden]
					}
				}
			}
			all = append(all, Case{
				Name: name, Kernel: []string{"td_moe_combine_f32", "td_moe_combine_bf16"}[i], Launch: cuda.MoECombine(rows, hidden),
				Args:  []Arg{encode(F32, x), encode(e, y), ints(slot), encode(F32, w), i32(used), i32(hidden), i32(i)},
				Wants: []Want{{0, F32, want, 1e-5, 1e-5}},
			})
		}
	}
	return all
}

// expertCases run the products of some experts over runs of slots.
func expertCases() []Case {
	var all []Case
	for _, f := range allFormats {
		for i, mode := range []int{cuda.OutGated, cuda.OutStore, cuda.OutBF16} {
			per := []int{8, 16, 32}[i]
			all = append(all, expertCase(f, fmt.Sprintf("td_moe_gemv_%s_r%d", f, per), mode, per, mode == cuda.OutGated))
		}
	}
	return append(all,
		expertCase(cuda.FormatBF16, "td_moe_gemm_bf16", cuda.OutGated, cuda.GemmRows, true),
		expertCase(cuda.FormatBF16, "td_moe_gemm_bf16", cuda.OutBF16, cuda.GemmRows, false))
}

func expertCase(f cuda.Format, kernel string, mode, per int, indexed bool) Case {
	const n, k, experts, rows = 48, 96, 3, 20
	name := fmt.Sprintf("experts %s mode %d", kernel, mode)
	r := rng(name)
	weights := make([]Weight, experts)
	var packed []byte
	for e := range weights {
		weights[e] = randomWeight(r, f, n, k)
		packed = append(packed, weights[e].arg.Data...)
	}
	counts := []int{per + 3, 0, 5} // two runs, none, one
	var runs, xRow []int
	var of []int // expert of a slot
	for e, c := range counts {
		for at := 0; at < c; at += per {
			runs = append(runs, e, len(of)+at, min(per, c-at), 0)
		}
		of = append(of, slices.Repeat([]int{e}, c)...)
	}
	x := normal(r, BF16, max(len(of), rows)*k, 1)
	row := null()
	if indexed {
		x = x[:rows*k]
		for range of {
			xRow = append(xRow, r.IntN(rows))
		}
		row = ints(xRow)
	}
	var y []float64
	for s, e := range of {
		from := s
		if indexed {
			from = xRow[s]
		}
		y = append(y, linear(x[from*k:(from+1)*k], weights[e].Values, 1, n, k)...)
	}
	out, want := output(r, mode, y, len(of), n, cuda.SiLU)
	l := cuda.MoEGemv(n, cuda.MaxRuns(len(of), experts, per)+1)
	if kernel == "td_moe_gemm_bf16" {
		l = cuda.MoEGemm(n, cuda.MaxRuns(len(of), experts, per)+1)
	}
	return Case{
		Name: name, Kernel: kernel, Launch: l,
		Args: []Arg{
			out,
			{Data: packed},
			encode(BF16, x), row, ints(runs), ints([]int{len(runs) / 4}), i64(len(packed) / experts),
			i32(n), i32(k), i32(mode), i32(cuda.SiLU),
		},
		Wants: []Want{want},
	}
}
