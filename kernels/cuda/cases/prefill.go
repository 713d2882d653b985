package cases

import (
	"fmt"
	"math"

	"tandem/kernels/cuda"
)

type prefillShape struct {
	kv                          cuda.KV
	heads, kvHeads, dim, tokens int
	rows, positions             []int32 // of each sequence
	seqs                        []int32 // those to run
}

func prefillCases() []Case {
	bf, hf, e4 := cuda.KVBF16, cuda.KVF16, cuda.KVE4M3
	one, two := []int32{0}, []int32{1, 0}
	var all []Case
	for _, s := range []prefillShape{
		{bf, 1, 1, 64, 16, []int32{1}, []int32{0}, one},
		{bf, 9, 3, 64, 16, []int32{50, 3}, []int32{0, 61}, two},
		{bf, 8, 2, 128, 32, []int32{70, 9}, []int32{0, 130}, two},
		{bf, 2, 2, 128, 64, []int32{129}, []int32{65}, one},
		{bf, 4, 2, 256, 32, []int32{40, 33}, []int32{31, 0}, []int32{1}},
		{bf, 7, 1, 80, 16, []int32{21}, []int32{10}, one},
		{bf, 6, 3, 16, 16, []int32{17, 64}, []int32{64, 0}, two},
		{hf, 4, 2, 128, 16, []int32{35}, []int32{40}, one},
		{hf, 2, 1, 256, 32, []int32{5}, []int32{70}, one},
		{hf, 3, 1, 64, 32, []int32{50}, []int32{7}, one},
		{e4, 4, 2, 64, 32, []int32{35}, []int32{100}, one},
		{e4, 8, 2, 128, 16, []int32{20, 40}, []int32{120, 0}, two},
		{e4, 2, 1, 200, 16, []int32{20}, []int32{50}, one},
	} {
		all = append(all, prefillCase(s))
	}
	return all
}

func prefillCase(s prefillShape) Case {
	name := fmt.Sprintf("prefill %s heads %d/%d dim %d block %d rows %v from %v", s.kv, s.heads, s.kvHeads, s.dim, s.tokens, s.rows, s.positions)
	r := rng(name)
	rowStart, lengths, blocks := []int{0}, []int{}, 2
	for i, n := range s.rows {
		rowStart = append(rowStart, rowStart[i]+int(n))
		lengths = append(lengths, int(s.positions[i]+n))
		blocks += (lengths[i] + s.tokens - 1) / s.tokens
	}
	p := newPool(s.kv, s.kvHeads, s.tokens, s.dim, blocks)
	seqs := fill(r, p, lengths)
	width := s.heads * s.dim
	q := normal(r, BF16, rowStart[len(s.rows)]*width, 1)
	want := make([]float64, len(q))
	for i := range want {
		want[i] = math.NaN()
	}
	scale, vScale := 1.5/math.Sqrt(float64(s.dim)), 0.5
	host := Attend{KV: s.kv, Heads: s.heads, KVHeads: s.kvHeads, Dim: s.dim, BlockTokens: s.tokens, Scale: scale}
	for _, i := range s.seqs {
		from, to := rowStart[i]*width, rowStart[i+1]*width
		seq := Sequence{K: seqs.k[i], V: seqs.v[i], Position: int(s.positions[i]), Q: q[from:to]}
		for row := range int(s.rows[i]) {
			for h := range s.heads {
				at := (rowStart[i]+row)*width + h*s.dim
				head := h / (s.heads / s.kvHeads)
				o := attend(q[at:at+s.dim], seqs.k[i][head], seqs.v[i][head], int(s.positions[i])+row+1, scale)
				seq.Want = append(seq.Want, o...)
				for j := range o {
					want[at+j] = o[j] * vScale
				}
			}
		}
		host.Sequences = append(host.Sequences, seq)
	}
	k, err := cuda.PrefillKernel(s.kv, s.dim, s.heads/s.kvHeads)
	if err != nil {
		panic(err) // the table is ours
	}
	tiles := k.Tiles(nil, s.seqs, s.rows, s.positions)
	return Case{
		Name: name, Kernel: k.Name, Launch: k.Launch(len(tiles)/2, s.kvHeads),
		Args: []Arg{
			blank(BF16, len(q)), encode(BF16, q), p.k, p.v, int32s(tiles), ints(rowStart), int32s(s.positions),
			ints(seqs.pageStart), ints(seqs.flat), i32(s.heads), i32(s.kvHeads), i32(s.dim), i32(s.tokens), i64(p.stride),
			f32(scale), f32(vScale),
		},
		Wants: []Want{{0, BF16, want, bf16Rel, 0.01}},
		Host:  host,
	}
}
