package cases

import (
	"fmt"
	"math"
	"math/rand/v2"

	"tandem/kernels/cuda"
)

var kvElem = map[cuda.KV]Elem{cuda.KVBF16: BF16, cuda.KVF16: F16, cuda.KVE4M3: E4M3}

// pool is the cache of one layer, with room for another layer's blocks between
// its own, which a kernel must leave alone.
type pool struct {
	kv                          cuda.KV
	kvHeads, tokens, dim, count int
	stride                      int // elements between blocks
	k, v                        Arg // what no token has written is a NaN
}

func newPool(kv cuda.KV, kvHeads, tokens, dim, count int) *pool {
	p := &pool{kv: kv, kvHeads: kvHeads, tokens: tokens, dim: dim, count: count}
	p.stride = kvHeads*tokens*dim + 64
	p.k, p.v = blank(kvElem[kv], count*p.stride), blank(kvElem[kv], count*p.stride)
	return p
}

// at is the element where a head's vector of a token of a block begins.
func (p *pool) at(block, head, token int) int {
	return block*p.stride + (head*p.tokens+token)*p.dim
}

func (p *pool) set(a Arg, at int, values []float64) {
	e := kvElem[p.kv]
	for i, v := range values {
		put(e, a.Data[(at+i)*e.size():], v)
	}
}

// sequences are contexts in a pool: the pages of each, in a random order.
type sequences struct {
	pages     [][]int
	k, v      [][][]float64 // [sequence][head][token*dim]
	pageStart []int
	flat      []int
}

func fill(r *rand.Rand, p *pool, lengths []int) *sequences {
	s := &sequences{}
	order := r.Perm(p.count)
	e := kvElem[p.kv]
	for _, n := range lengths {
		s.pageStart = append(s.pageStart, len(s.flat))
		pages := order[:(n+p.tokens-1)/p.tokens]
		order = order[len(pages):]
		s.pages = append(s.pages, pages)
		s.flat = append(s.flat, pages...)
		k, v := make([][]float64, p.kvHeads), make([][]float64, p.kvHeads)
		for h := range p.kvHeads {
			k[h], v[h] = normal(r, e, n*p.dim, 1), normal(r, e, n*p.dim, 1)
			for t := range n {
				at := p.at(pages[t/p.tokens], h, t%p.tokens)
				p.set(p.k, at, k[h][t*p.dim:(t+1)*p.dim])
				p.set(p.v, at, v[h][t*p.dim:(t+1)*p.dim])
			}
		}
		s.k, s.v = append(s.k, k), append(s.v, v)
	}
	return s
}

// attend is softmax(q·k*scale)·v over the first n tokens.
func attend(q, k, v []float64, n int, scale float64) []float64 {
	dim := len(q)
	weights, top := make([]float64, n), math.Inf(-1)
	for t := range n {
		for i, x := range q {
			weights[t] += x * k[t*dim+i] * scale
		}
		top = max(top, weights[t])
	}
	sum, out := 0.0, make([]float64, dim)
	for t := range n {
		w := math.Exp(weights[t] - top)
		sum += w
		for i := range out {
			out[i] += w * v[t*dim+i]
		}
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

type decodeShape struct {
	kv                          cuda.KV
	heads, kvHeads, dim, tokens int
	lengths                     []int
	sms                         int
}

func decodeCases() []Case {
	bf, hf, e4 := cuda.KVBF16, cuda.KVF16, cuda.KVE4M3
	var all []Case
	for _, s := range []decodeShape{
		{bf, 1, 1, 64, 16, []int{1}, 1},
		{bf, 9, 3, 64, 16, []int{17, 63, 64, 65}, 2},
		{bf, 8, 2, 128, 32, []int{300, 1, 129}, 3},
		{bf, 8, 1, 128, 64, []int{257}, 4},
		{bf, 12, 1, 64, 32, []int{100, 31}, 2},
		{bf, 16, 1, 128, 16, []int{190}, 2},
		{bf, 40, 2, 64, 16, []int{70, 3}, 2}, // more heads than one pass takes
		{bf, 4, 2, 256, 32, []int{90, 33}, 2},
		{bf, 6, 3, 16, 16, []int{40, 0, 7}, 2}, // a sequence without work
		{bf, 4, 4, 80, 32, []int{77}, 2},
		{bf, 4, 2, 40, 16, []int{5, 150}, 1},
		{hf, 4, 2, 128, 16, []int{130, 16}, 2},
		{hf, 12, 1, 96, 32, []int{66}, 1},
		{hf, 2, 1, 64, 16, []int{81, 2}, 1},
		{hf, 10, 1, 48, 16, []int{70}, 1},
		{hf, 2, 1, 256, 32, []int{20}, 1},
		{e4, 4, 2, 64, 32, []int{130, 16}, 2},
		{e4, 8, 2, 128, 16, []int{300}, 2},
		{e4, 12, 1, 128, 64, []int{65}, 1},
		{e4, 9, 1, 64, 16, []int{33}, 2},
		{e4, 2, 1, 200, 16, []int{20}, 1},
	} {
		all = append(all, decodeCase(s))
	}
	return all
}

func decodeCase(s decodeShape) Case {
	name := fmt.Sprintf("decode %s heads %d/%d dim %d block %d lengths %v", s.kv, s.heads, s.kvHeads, s.dim, s.tokens, s.lengths)
	r := rng(name)
	blocks, group := 3, s.heads/s.kvHeads
	lengths := make([]int32, len(s.lengths))
	for i, n := range s.lengths {
		blocks += (n + s.tokens - 1) / s.tokens
		lengths[i] = int32(n)
	}
	p := newPool(s.kv, s.kvHeads, s.tokens, s.dim, blocks)
	seqs := fill(r, p, s.lengths)
	rows := 2*len(s.lengths) + 1
	q := normal(r, BF16, rows*s.heads*s.dim, 1)
	want := make([]float64, len(q))
	for i := range want {
		want[i] = math.NaN()
	}
	scale, vScale := 1.5/math.Sqrt(float64(s.dim)), 2.0
	row, width := make([]int, len(s.lengths)), s.heads*s.dim
	host := Attend{KV: s.kv, Heads: s.heads, KVHeads: s.kvHeads, Dim: s.dim, BlockTokens: s.tokens, Scale: scale}
	for i, n := range s.lengths {
		row[i] = 2*i + 1
		seq := Sequence{K: seqs.k[i], V: seqs.v[i], Position: n - 1, Q: q[row[i]*width : (row[i]+1)*width]}
		for h := range s.heads {
			if n == 0 {
				break
			}
			at := (row[i]*s.heads + h) * s.dim
			o := attend(q[at:at+s.dim], seqs.k[i][h/group], seqs.v[i][h/group], n, scale)
			seq.Want = append(seq.Want, o...)
			for j := range o {
				want[at+j] = o[j] * vScale
			}
		}
		if n > 0 {
			host.Sequences = append(host.Sequences, seq)
		}
	}
	d, err := cuda.DecodeKernel(s.kv, s.dim, group)
	if err != nil {
		panic(err) // the table is ours
	}
	l := d.Launch(s.sms)
	return Case{
		Name: name, Kernel: d.Name, Launch: l,
		Args: []Arg{
			blank(BF16, len(q)), encode(BF16, q), p.k, p.v, ints(row), int32s(lengths), ints(seqs.pageStart),
			ints(seqs.flat), int32s(cuda.DecodeTiles(nil, lengths)), blank(Bytes, d.Partial(l)),
			zeros(d.Counters(len(lengths), s.heads, s.kvHeads)), i32(len(lengths)), i32(s.heads), i32(s.kvHeads),
			i32(s.dim), i32(s.tokens), i64(p.stride), f32(scale), f32(vScale),
		},
		Wants: []Want{
			{0, BF16, want, bf16Rel, 0.01},
			{10, I32, make([]float64, d.Counters(len(lengths), s.heads, s.kvHeads)), 0, 0},
		},
		Host: host,
	}
}

func int32s(v []int32) Arg {
	out := make([]int, len(v))
	for i, x := range v {
		out[i] = int(x)
	}
	return ints(out)
}

type qkvShape struct {
	kv                                cuda.KV
	heads, kvHeads, dim, rope, tokens int
	adjacent, bias, norm              bool
}

func qkvCases() []Case {
	bf := cuda.KVBF16
	var all []Case
	for _, s := range []qkvShape{
		{bf, 1, 1, 8, 8, 16, false, false, false},
		{bf, 9, 3, 64, 64, 16, true, true, false},
		{bf, 8, 2, 128, 128, 32, false, false, true},
		{bf, 4, 4, 80, 32, 64, false, true, true},
		{cuda.KVF16, 6, 2, 256, 256, 16, true, false, true},
		{cuda.KVE4M3, 4, 2, 64, 64, 32, false, true, false},
	} {
		all = append(all, qkvCase(s))
	}
	for _, dims := range []int{8, 32, 64, 256} {
		all = append(all, ropeTableCase(dims))
	}
	return all
}

func ropeTable(positions []int, freq []float64, scale float64) []float64 {
	var out []float64
	for _, p := range positions {
		for _, f := range freq {
			out = append(out, math.Cos(float64(p)*f)*scale, math.Sin(float64(p)*f)*scale)
		}
	}
	return out
}

func frequencies(dims int) []float64 {
	f := make([]float64, dims/2)
	for i := range f {
		f[i] = rounded(F32, math.Pow(10000, -2*float64(i)/float64(dims)))
	}
	return f
}

func ropeTableCase(dims int) Case {
	positions, freq := []int{0, 1, 77, 131071, 1000003}, frequencies(dims)
	return Case{
		Name: fmt.Sprintf("rope table %d", dims), Kernel: "td_rope_table", Launch: cuda.RopeTable(len(positions), dims/2),
		Args: []Arg{
			blank(F32, len(positions)*dims), ints(positions), encode(F32, freq), i32(len(positions)), i32(dims / 2), f32(1.25),
		},
		Wants: []Want{{0, F32, ropeTable(positions, freq, 1.25), 1e-6, 1e-6}},
	}
}

func qkvCase(s qkvShape) Case {
	name := fmt.Sprintf("qkv %s heads %d/%d dim %d rope %d adjacent %v", s.kv, s.heads, s.kvHeads, s.dim, s.rope, s.adjacent)
	r := rng(name)
	const eps = 1e-6
	positions, slots := []int{3, 0, 1000, 9}, []int{17, 0, -1, 3*s.tokens - 1}
	rows, width := len(positions), (s.heads+2*s.kvHeads)*s.dim
	x, freq := normal(r, F32, rows*width, 1), frequencies(s.rope)
	table := ropeTable(positions, freq, 1)
	p := newPool(s.kv, s.kvHeads, s.tokens, s.dim, 4)
	bias, b, w := null(), make([]float64, width), [2][]float64{}
	if s.bias {
		b = normal(r, F32, width, 1)
		bias = encode(F32, b)
	}
	if s.norm {
		w = [2][]float64{normal(r, F32, s.dim, 1), normal(r, F32, s.dim, 1)}
	}
	kScale, vScale := 1.0, 1.0
	if s.kv == cuda.KVE4M3 {
		kScale, vScale = 4, 0.5
	}
	host := Heads{
		Heads: s.heads, KVHeads: s.kvHeads, Dim: s.dim, Rope: s.rope, Adjacent: s.adjacent, X: x, Bias: b,
		QNorm: w[0], KNorm: w[1], Eps: eps, Positions: positions, Freq: freq,
	}
	q, k, v := make([]float64, rows*s.heads*s.dim), unchanged(p), unchanged(p)
	for i := range rows {
		for h := range s.heads + 2*s.kvHeads {
			y := make([]float64, s.dim)
			for j := range y {
				y[j] = x[i*width+h*s.dim+j] + b[h*s.dim+j]
			}
			kind := min(max((h-s.heads)/s.kvHeads+1, 0), 2)
			if h < s.heads {
				kind = 0
			}
			if kind < 2 {
				if s.norm {
					y = rmsnorm(y, w[kind], eps)
				}
				rotate(y, table[i*s.rope:(i+1)*s.rope], s.adjacent)
			}
			host.Want = append(host.Want, y...)
			if kind == 0 {
				copy(q[(i*s.heads+h)*s.dim:], y)
				continue
			}
			if slots[i] < 0 {
				continue
			}
			at, to, factor := p.at(slots[i]/s.tokens, (h-s.heads)%s.kvHeads, slots[i]%s.tokens), k, kScale
			if kind == 2 {
				to, factor = v, vScale
			}
			for j := range y {
				to[at+j] = y[j] * factor
			}
		}
	}
	rel := bf16Rel
	if s.kv == cuda.KVE4M3 {
		rel = 1.0 / 12
	}
	return Case{
		Name: name, Kernel: "td_qkv", Launch: cuda.QKV(rows, s.heads, s.kvHeads),
		Args: []Arg{
			blank(BF16, len(q)), p.k, p.v, encode(F32, x), bias, optional(w[0]), optional(w[1]), encode(F32, table), ints(slots),
			i32(s.heads), i32(s.kvHeads), i32(s.dim), i32(s.rope), i32(b2i(s.adjacent)), i32(s.tokens), i64(p.stride),
			i32(int(s.kv)), f32(eps), f32(kScale), f32(vScale),
		},
		Wants: []Want{
			{0, BF16, q, bf16Rel, 1e-5},
			{1, kvElem[s.kv], k, rel, 0.003},
			{2, kvElem[s.kv], v, rel, 0.003},
		},
		Host: host,
	}
}

// optional is a null pointer for no values.
func optional(values []float64) Arg {
	if values == nil {
		return null()
	}
	return encode(F32, values)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func unchanged(p *pool) []float64 {
	v := make([]float64, p.count*p.stride)
	for i := range v {
		v[i] = math.NaN()
	}
	return v
}

func rotate(x, cosSin []float64, adjacent bool) {
	half := len(cosSin) / 2
	for i := range half {
		a, b := i, i+half
		if adjacent {
			a, b = 2*i, 2*i+1
		}
		c, s := cosSin[2*i], cosSin[2*i+1]
		x[a], x[b] = x[a]*c-x[b]*s, x[b]*c+x[a]*s
	}
}
