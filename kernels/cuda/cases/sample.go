package cases

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"

	"tandem/kernels/cuda"
)

// ranking is the ids of a row with any probability, best first: logit
// descending, then id ascending.
func ranking(logits []float64) []int {
	var ids []int
	for id, l := range logits {
		if !math.IsInf(l, -1) {
			ids = append(ids, id)
		}
	}
	slices.SortStableFunc(ids, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return a - b
	})
	return ids
}

// Uniform is the number in [0, 1) that decides output token n of a stream.
func Uniform(seed, n uint64, stream uint32) float64 {
	c := [4]uint32{uint32(n), uint32(n >> 32), stream, 0}
	k := [2]uint32{uint32(seed), uint32(seed >> 32)}
	for range 10 {
		h0, l0 := bits.Mul32(0xD2511F53, c[0])
		h1, l1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0}
		k[0] += 0x9E3779B9
		k[1] += 0xBB67AE85
	}
	return float64(uint64(c[0]>>5)<<26+uint64(c[1]>>6)) / (1 << 53)
}

// Pick is the slow definition of sampling a row: it sorts, cuts and walks.
func Pick(logits []float64, p cuda.SampleRow) (token int, status int) {
	for _, l := range logits {
		if l != l || math.IsInf(l, 1) {
			return 0, cuda.StatusBad
		}
	}
	order := ranking(logits)
	if len(order) == 0 {
		return 0, cuda.StatusEmpty
	}
	if p.Temperature < 1e-5 {
		return order[0], cuda.StatusOK
	}
	top := logits[order[0]]
	weight := func(id int) float64 {
		x := (logits[id] - top) / p.Temperature
		if x < -708 {
			return 0
		}
		return math.Exp(x)
	}
	if p.TopK > 0 && int(p.TopK) < len(order) {
		order = order[:p.TopK]
	}
	if i := slices.IndexFunc(order, func(id int) bool { return weight(id) < p.MinP }); p.MinP > 0 && i >= 0 {
		order = order[:i]
	}
	total := 0.0
	for _, id := range order {
		total += weight(id)
	}
	if sum := 0.0; p.TopP < 1 {
		for i, id := range order {
			if sum += weight(id); sum >= p.TopP*total {
				order = order[:i+1]
				break
			}
		}
	}
	return walk(order, weight, Uniform(p.Seed, p.Index, p.Stream)), cuda.StatusOK
}

func walk(kept []int, weight func(int) float64, u float64) int {
	kept = slices.Sorted(slices.Values(kept))
	total, sum, last := 0.0, 0.0, 0
	for _, id := range kept {
		total += weight(id)
	}
	for _, id := range kept {
		if sum += weight(id); sum > u*total {
			return id
		}
		if weight(id) > 0 {
			last = id
		}
	}
	return last
}

// logprobs are those of the token, its rank, and the best alternatives.
func logprobs(logits []float64, token, want int) (own float64, rank int, ids []int, values []float64) {
	order := ranking(logits)
	top, sum := logits[order[0]], 0.0
	for _, id := range order {
		sum += math.Exp(logits[id] - top)
	}
	norm := top + math.Log(sum)
	for _, id := range order[:min(want, len(order))] {
		ids, values = append(ids, id), append(values, logits[id]-norm)
	}
	return logits[token] - norm, 1 + slices.Index(order, token), ids, values
}

func records(rows []cuda.SampleRow) Arg {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, rows); err != nil {
		panic(err)
	}
	return Arg{Data: b.Bytes()}
}

func plainRow() cuda.SampleRow {
	return cuda.SampleRow{Temperature: 1, TopP: 1, Repetition: 1, Logprobs: -1, Counts: -1}
}

// sampleCase samples rows of logits and compares everything that comes out.
func sampleCase(name string, logits [][]float64, rows []cuda.SampleRow) Case {
	vocab, n, slots := len(logits[0]), len(rows), 0
	for _, p := range rows {
		slots = max(slots, int(p.Counts)+1)
	}
	nan := func(n int) []float64 { return slices.Repeat([]float64{math.NaN()}, n) }
	tokens, status := make([]float64, n), make([]float64, n)
	host := Draw{Logits: logits, Rows: rows}
	own, rank, top, tops := nan(n), nan(n), nan(n*cuda.MaxTopLogprobs), nan(n*cuda.MaxTopLogprobs)
	counts := make([]float64, max(slots, 1)*vocab)
	for i, p := range rows {
		token, s := Pick(logits[i], p)
		tokens[i], status[i] = float64(token), float64(s)
		host.Tokens, host.Status = append(host.Tokens, token), append(host.Status, s)
		if s != cuda.StatusOK {
			continue
		}
		if p.Counts >= 0 {
			counts[int(p.Counts)*vocab+token] += 2
		}
		if p.Logprobs < 0 {
			continue
		}
		l, r, ids, values := logprobs(logits[i], token, int(p.Logprobs))
		own[i], rank[i] = l, float64(r)
		for j := range cuda.MaxTopLogprobs {
			top[i*cuda.MaxTopLogprobs+j] = -1
			if j < len(ids) {
				top[i*cuda.MaxTopLogprobs+j], tops[i*cuda.MaxTopLogprobs+j] = float64(ids[j]), values[j]
			}
		}
	}
	return Case{
		Name: name, Kernel: "td_sample", Launch: cuda.PerRow(n),
		Args: []Arg{
			blank(I32, n), blank(I32, n), encode(F32, slices.Concat(logits...)), records(rows), zeros(len(counts)),
			blank(F64, n), blank(I32, n), blank(I32, n*cuda.MaxTopLogprobs), blank(F64, n*cuda.MaxTopLogprobs), i32(vocab),
		},
		Wants: []Want{
			{0, I32, tokens, 0, 0},
			{1, I32, status, 0, 0},
			{4, I32, counts, 0, 0},
			{5, F64, own, 1e-12, 1e-12},
			{6, I32, rank, 0, 0},
			{7, I32, top, 0, 0},
			{8, F64, tops, 1e-12, 1e-12},
		},
		Host: host,
	}
}

// vectorCase draws the published sequences: one row of eight logits, twelve tokens.
func vectorCase() Case {
	row := []float64{2, 1, .5, 0, -1, 3, 3, -2}
	var logits [][]float64
	var rows []cuda.SampleRow
	for _, set := range []func(*cuda.SampleRow){
		func(*cuda.SampleRow) {},
		func(p *cuda.SampleRow) { p.Temperature, p.TopK = .7, 3 },
		func(p *cuda.SampleRow) { p.TopP = .8 },
		func(p *cuda.SampleRow) { p.MinP = .3 },
		func(p *cuda.SampleRow) { p.Seed = 7 },
		func(p *cuda.SampleRow) { p.Temperature = 0 },
	} {
		for n := range 12 {
			p := plainRow()
			p.Seed, p.Index = 42, uint64(n)
			set(&p)
			rows, logits = append(rows, p), append(logits, row)
		}
	}
	return sampleCase("sample vectors", logits, rows)
}

// randomRow has few distinct logits when steps is positive, so that many tie.
func randomRow(r *rand.Rand, vocab, steps int) []float64 {
	row := normal(r, F32, vocab, 3)
	for i := range row {
		if steps > 0 {
			row[i] = rounded(F32, math.Round(row[i]*float64(steps))/float64(steps))
		}
		if r.IntN(10) == 0 {
			row[i] = math.Inf(-1)
		}
	}
	row[r.IntN(vocab)] = 4
	return row
}

func sampleCases() []Case {
	all := []Case{vectorCase()}
	for _, vocab := range []int{1, 5, 64, 1003, 6001} {
		for _, steps := range []int{0, 1} {
			name := fmt.Sprintf("sample %d steps %d", vocab, steps)
			r := rng(name)
			var logits [][]float64
			var rows []cuda.SampleRow
			for i := range 12 {
				p := plainRow()
				p.Seed, p.Index, p.Stream = r.Uint64(), uint64(i), uint32(i%3)
				p.Temperature = []float64{0, 1, .5, 1.7}[i%4]
				p.TopK = []int32{0, 1, 3, 40, 1500, 4000}[i%6]
				p.TopP = []float64{1, .9, .3, .999}[r.IntN(4)]
				p.MinP = []float64{0, 0, .02, .2}[r.IntN(4)]
				p.Logprobs = []int32{-1, 0, 5, 20}[r.IntN(4)]
				p.Counts = []int32{-1, 0, 2}[i%3]
				rows, logits = append(rows, p), append(logits, randomRow(r, vocab, steps))
			}
			all = append(all, sampleCase(name, logits, rows))
		}
	}
	return append(all, flatCase(), brokenCase(), greedyCase())
}

// flatCase has more equal logits than are sorted at once.
func flatCase() Case {
	flat := slices.Repeat([]float64{-1.5}, 5000)
	var logits [][]float64
	var rows []cuda.SampleRow
	for i := range 6 {
		p := plainRow()
		p.Seed, p.Logprobs = uint64(i), 3
		p.TopK = []int32{0, 3100, 1, 0, 4999, 2}[i]
		p.TopP = []float64{.77, 1, 1, .9999, .5, 1}[i]
		rows, logits = append(rows, p), append(logits, flat)
	}
	return sampleCase("sample equal logits", logits, rows)
}

func brokenRows() [][]float64 {
	var all [][]float64
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1} {
		row := slices.Repeat([]float64{math.Inf(-1)}, 700)
		row[513] = bad
		all = append(all, row)
	}
	return all
}

func brokenCase() Case {
	return sampleCase("sample broken rows", brokenRows(), slices.Repeat([]cuda.SampleRow{plainRow()}, 4))
}

func greedyCase() Case {
	rows := append(brokenRows(), make([]float64, 700), randomRow(rng("greedy"), 700, 1))
	tokens, status := make([]float64, len(rows)), make([]float64, len(rows))
	for i, row := range rows {
		token, s := Pick(row, cuda.SampleRow{})
		tokens[i], status[i] = float64(token), float64(s)
	}
	return Case{
		Name: "argmax", Kernel: "td_argmax", Launch: cuda.PerRow(len(rows)),
		Args:  []Arg{blank(I32, len(rows)), blank(I32, len(rows)), encode(F32, slices.Concat(rows...)), i32(700)},
		Wants: []Want{{0, I32, tokens, 0, 0}, {1, I32, status, 0, 0}},
	}
}

// Shape is the slow definition of bans, biases and penalties; a count is twice
// the occurrences in the output, plus one if the prompt has the token.
func Shape(logits []float64, p cuda.SampleRow, counts []int, bans []int, biases map[int]float64) {
	for _, id := range bans {
		if logits[id] == logits[id] {
			logits[id] = math.Inf(-1)
		}
	}
	for id, b := range biases {
		logits[id] = rounded(F32, logits[id]+b)
	}
	for id, c := range counts {
		if c == 0 {
			continue
		}
		l := logits[id]
		if l > 0 {
			l /= p.Repetition
		} else {
			l *= p.Repetition
		}
		if c > 1 {
			l = rounded(F32, l) - (float64(p.Frequency*float64(c/2)) + p.Presence)
		}
		logits[id] = rounded(F32, l)
	}
}

func shapeCases() []Case {
	const vocab, slots = 1001, 2
	r := rng("shape")
	counts := make([]int, slots*vocab)
	for i := range counts {
		if r.IntN(3) == 0 {
			counts[i] = r.IntN(9)
		}
	}
	bans, biasIDs, biases := []int{5, 900, 17, 18}, []int{3, 17, 1000, 44}, []float64{-100, 2.5, 7, 0.125}
	var rows []cuda.SampleRow
	var logits, want []float64
	for i := range 4 {
		p := plainRow()
		p.Repetition, p.Frequency, p.Presence = 1.3, .4, -.7
		p.Counts = []int32{-1, 0, 1, 1}[i]
		p.BanFirst, p.BanCount, p.BiasFirst, p.BiasCount = int32(i%2), int32(2+i%2), int32(i), int32(min(2, 4-i))
		rows = append(rows, p)
		row := randomRow(r, vocab, 0)
		row[17] = []float64{1, math.NaN()}[i/2]
		logits = append(logits, row...)
		bias := map[int]float64{}
		for j := p.BiasFirst; j < p.BiasFirst+p.BiasCount; j++ {
			bias[biasIDs[j]] = biases[j]
		}
		var seen []int
		if p.Counts >= 0 {
			seen = counts[int(p.Counts)*vocab:][:vocab]
		}
		shaped := slices.Clone(row)
		Shape(shaped, p, seen, bans[p.BanFirst:p.BanFirst+p.BanCount], bias)
		want = append(want, shaped...)
	}
	shape := Case{
		Name: "shape logits", Kernel: "td_shape_logits", Launch: cuda.PerRow(4),
		Args:  []Arg{encode(F32, logits), records(rows), ints(counts), ints(biasIDs), encode(F64, biases), ints(bans), i32(vocab)},
		Wants: []Want{{0, F32, want, 0, 0}},
	}
	after := make([]float64, 3*10)
	for _, at := range []int{4, 23, 4, 29} {
		after[at] += 2
	}
	seen := make([]float64, 3*10)
	seen[4], seen[23], seen[29] = 1, 1, 1
	slot, ids := []int{0, 2, 0, 2, -1, 1}, []int{4, 3, 4, 9, 3, 10}
	return []Case{
		shape,
		{
			Name: "count output", Kernel: "td_count", Launch: cuda.MergeTokens(6),
			Args:  []Arg{zeros(30), ints(slot), ints(ids), i32(6), i32(10), i32(1)},
			Wants: []Want{{0, I32, after, 0, 0}},
		},
		{
			Name: "count prompt", Kernel: "td_count", Launch: cuda.MergeTokens(6),
			Args:  []Arg{zeros(30), ints(slot), ints(ids), i32(6), i32(10), i32(0)},
			Wants: []Want{{0, I32, seen, 0, 0}},
		},
	}
}
