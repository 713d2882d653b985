//go:build !cuda

package cases

import (
	"encoding/binary"
	"math"
	"slices"

	"tandem/kernels/cpu"
	"tandem/kernels/cuda"
)

// place returns where an element of a token of a head lies in a block of the CPU's
// cache of one layer, see cpu.Packing.
func (m *machine) place(value bool, block, head, token, i int) []byte {
	kv, at := &m.kv, 0
	switch {
	case m.float32s() && !value:
		at = 4 * (i*kv.BlockTokens + token)
	case m.float32s():
		at = 4 * (token*kv.HeadDim + i)
	case !value:
		at = 2 * (i/2*2*kv.BlockTokens + 2*token + i%2)
	default:
		at = 2 * (token/2*2*kv.HeadDim + 2*i + token%2)
	}
	if value {
		head += kv.KVHeads
	}
	return kv.Pool.Bytes[block*kv.BlockBytes()+head*kv.TileBytes()+at:]
}

func (m *machine) float32s() bool { return m.kv.Type == cpu.KVFloat32 }

// kvType is the CPU's cache for a case. What it has not is float32 there.
func kvType(t cuda.KV) cpu.KVType {
	if t == cuda.KVBF16 {
		return cpu.KVBFloat16
	}
	return cpu.KVFloat32
}

func (m *machine) store(value bool, block, head, token, i int, v float64) {
	e := BF16
	if m.float32s() {
		e = F32
	}
	put(e, m.place(value, block, head, token, i), v)
}

func (m *machine) load(value bool, block, head, token, i int) float32 {
	b := m.place(value, block, head, token, i)
	if m.float32s() {
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}

// attend runs all sequences in one batch. Caches of types that the CPU has not are
// float32 there.
func (m *machine) attend(c *Attend) {
	blocks, width := 0, c.Heads*c.Dim
	for i := range c.Sequences {
		blocks += len(c.Sequences[i].K[0])/c.Dim/c.BlockTokens + 1
	}
	m.begin(cpu.KV{Layers: 1, KVHeads: c.KVHeads, HeadDim: c.Dim, BlockTokens: c.BlockTokens, Type: kvType(c.KV)}, blocks)
	in, out := m.buffer(width), m.buffer(width)
	m.op(cpu.Op{Kind: cpu.Attention, In: in, Out: out, Heads: c.Heads, Scale: float32(c.Scale)})
	b := cpu.Batch{RowStart: []int32{0}, PageStart: []int32{0}}
	order := rng("blocks").Perm(blocks)
	var q, want []float64
	for i := range c.Sequences {
		s := &c.Sequences[i]
		tokens := len(s.K[0]) / c.Dim
		pages := order[:tokens/c.BlockTokens+1]
		order = order[len(pages):]
		for h := range c.KVHeads {
			for j := range s.K[h] {
				t := j / c.Dim
				m.store(false, pages[t/c.BlockTokens], h, t%c.BlockTokens, j%c.Dim, s.K[h][j])
				m.store(true, pages[t/c.BlockTokens], h, t%c.BlockTokens, j%c.Dim, s.V[h][j])
			}
		}
		for _, p := range pages {
			b.Pages = append(b.Pages, int32(p))
		}
		q, want = append(q, s.Q...), append(want, s.Want...)
		b.PosStart = append(b.PosStart, int32(s.Position))
		b.RowStart, b.PageStart = append(b.RowStart, int32(len(q)/width)), append(b.PageStart, int32(len(b.Pages)))
	}
	if len(q) == 0 {
		m.Fatal("a case without rows")
	}
	b.Tokens = make([]int32, len(q)/width)
	m.set(in, q)
	m.prog.Run(&b, 0, 1)
	m.close("out", m.prog.Data(out, len(want)), want, cpuAttend, cpuAttend)
}

// heads runs a whole attention input, whose product gives the rows of the case. Every
// row is a sequence of its own.
func (m *machine) heads(c *Heads) {
	rows, width, tokens := len(c.Positions), (c.Heads+2*c.KVHeads)*c.Dim, 16
	m.begin(cpu.KV{Layers: 1, KVHeads: c.KVHeads, HeadDim: c.Dim, BlockTokens: tokens, Type: cpu.KVFloat32}, rows)
	norm, hidden, fill := m.units(rows, c.Eps)
	freq := make([]float32, len(c.Freq))
	for i, f := range c.Freq {
		freq[i] = float32(f)
	}
	rope, err := m.prog.Rope(c.Rope, c.Adjacent, 1, freq)
	m.must(err)
	in, out := m.buffer(hidden), m.buffer(c.Heads*c.Dim)
	m.op(cpu.Op{
		Kind: cpu.AttnInput, In: in, Out: out, Heads: c.Heads, Rope: rope, Eps: float32(c.Eps), Norm: norm, Bias: m.vector(c.Bias),
		QNorm: m.vector(c.QNorm), KNorm: m.vector(c.KNorm), W: m.matrix(hidden, false, plainPart(width, columns(c.X, rows, width, hidden))),
	})
	b := cpu.Batch{Tokens: make([]int32, rows), RowStart: []int32{0}, PageStart: []int32{0}}
	for i, p := range c.Positions {
		b.PosStart, b.RowStart = append(b.PosStart, int32(p)), append(b.RowStart, int32(i+1))
		b.Pages = append(b.Pages, slices.Repeat([]int32{int32(i)}, p/tokens+1)...)
		b.PageStart = append(b.PageStart, int32(len(b.Pages)))
	}
	fill(in)
	m.prog.Run(&b, 0, 1)
	q := m.prog.Data(out, rows*c.Heads*c.Dim)
	for r, p := range c.Positions {
		got := slices.Clone(q[r*c.Heads*c.Dim : (r+1)*c.Heads*c.Dim])
		for h := range 2 * c.KVHeads {
			for i := range c.Dim {
				got = append(got, m.load(h >= c.KVHeads, r, h%c.KVHeads, p%tokens, i))
			}
		}
		m.close("q|k|v", got, c.Want[r*width:(r+1)*width], cpuRel, cpuRel)
	}
}

// route runs a mixture of experts whose e-th expert answers with the e-th unit
// vector, so that a row's output is its experts' weights.
func (m *machine) route(c *Route) {
	rows := make([]int, 0, c.Rows)
	for r := range c.Rows {
		rows = append(rows, r)
	}
	if !slices.ContainsFunc(c.Logits, math.IsNaN) {
		m.routeRows(c, rows)
		return
	}
	for _, r := range rows { // a NaN in a weight is one for all rows
		m.routeRows(c, rows[r:r+1])
	}
}

func (m *machine) routeRows(c *Route, rows []int) {
	const inter = 16
	m.plain()
	hidden := max(16, c.Experts, len(rows))
	norm, x := slices.Repeat([]float64{1 / math.Sqrt(float64(hidden))}, hidden), make([]float64, len(rows)*hidden)
	router, want := make([]float64, c.Experts*hidden), make([]float64, len(rows)*hidden)
	for i, r := range rows {
		x[i*hidden+i] = 1
		for e := range c.Experts {
			router[e*hidden+i] = c.Logits[r*c.Experts+e]
		}
		for j := range c.Used {
			want[i*hidden+c.IDs[r*c.Used+j]] = c.Weights[r*c.Used+j]
		}
	}
	ones := plainPart(inter, slices.Repeat([]float64{1}, inter*hidden))
	gateUp := m.matrix(hidden, true, ones, ones)
	var gates, downs []*cpu.Matrix
	for e := range c.Experts {
		down := make([]float64, hidden*inter)
		down[e*inter] = 1 + math.Exp(-1) // silu(1)*1 is its inverse
		gates, downs = append(gates, gateUp), append(downs, m.matrix(inter, false, plainPart(hidden, down)))
	}
	in, out := m.buffer(hidden), m.buffer(hidden)
	experts, err := m.prog.Experts(c.Used, c.Renorm, 0, gates, downs)
	m.must(err)
	m.op(cpu.Op{Kind: cpu.MoE, In: in, Out: out, Experts: experts, Norm: m.vector(norm), W: m.matrix(hidden, false, plainPart(c.Experts, router))})
	m.set(in, x)
	m.rows(make([]int32, len(rows))...)
	m.close("weights", m.prog.Data(out, len(want)), want, cpuRel, 1e-6)
}
