//go:build !cuda

package cases

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"testing"

	"tandem/engine/request"
	"tandem/engine/sampler"
	"tandem/engine/tensor"
	"tandem/kernels/cpu"
	"tandem/kernels/cuda"
)

// The cases of operations that the CPU backend has are run by its kernels too, with
// its tolerances: activations and results are float32 there, sums of float32 and, of
// quantised weights, activations of 16 bits.

// A product's error relative to the sum of |w*x|, and what a step of a quantised
// activation adds to it, relative to its row's greatest value.
const (
	cpuSum  = 3e-6
	cpuStep = 0.51 / 32639
	// cpuRel is the error of single values: norms, rotations, activations.
	cpuRel = 1e-5
	// cpuAttend is that of attention over a cache that holds the case's values.
	cpuAttend = 1e-4
)

// tally counts the cases of a kind: those that ran, and those for which the CPU
// backend has no operation or size.
type tally struct{ ran, left int }

// onCPU is what the table has for it. A case that comes or goes changes a number
// here; one that is left out needs a reason in runOnCPU.
var onCPU = map[string]tally{
	"cases.Attend": {31, 3}, "cases.Draw": {13, 0}, "cases.Gate": {6, 12}, "cases.Heads": {5, 1}, "cases.Lookup": {10, 0},
	"cases.Norm": {10, 0}, "cases.Product": {62, 0}, "cases.Route": {10, 0}, "cases.Router": {4, 0}, onDevices: {0, 65},
}

const onDevices = "what only devices do"

func TestCasesOnTheCPU(t *testing.T) {
	for level := cpu.Portable; ; level++ {
		got, all := map[string]tally{}, true
		for _, c := range All() {
			if c.Host == nil {
				got[onDevices] = tally{left: got[onDevices].left + 1}
				continue
			}
			kind, entered := fmt.Sprintf("%T", c.Host), false
			t.Run(fmt.Sprintf("%s/%s", level, c.Name), func(t *testing.T) {
				n := got[kind]
				entered = true
				if runOnCPU(newCPU(t, level), c.Host) {
					n.ran++
				} else {
					n.left++
				}
				got[kind] = n
			})
			all = all && entered // not so with -run
		}
		if all && !maps.Equal(got, onCPU) && !t.Failed() {
			t.Errorf("%s: cases that ran and that were left out: %v, want %v", level, got, onCPU)
		}
		if level.String() == cpu.ISA() {
			break
		}
	}
}

func runOnCPU(m *machine, host any) bool {
	switch c := host.(type) {
	case Lookup:
		m.lookup(&c)
	case Norm:
		m.norm(&c)
	case Router:
		m.router(&c)
	case Gate:
		if c.Act != cuda.SiLU {
			return false
		}
		m.gate(&c)
	case Product:
		m.product(&c)
	case Heads:
		if c.Dim%16 != 0 {
			return false
		}
		m.heads(&c)
	case Attend:
		if c.Dim%16 != 0 {
			return false
		}
		m.attend(&c)
	case Route:
		m.route(&c)
	case Draw:
		m.draw(&c)
	default:
		m.Fatalf("nothing here runs a %T", c)
	}
	return true
}

// machine runs one op of the CPU backend.
type machine struct {
	*testing.T
	level   cpu.Level
	pool    *cpu.Pool
	weights cpu.Weights
	kv      cpu.KV
	prog    *cpu.Program
	max     int // rows
}

func newCPU(t *testing.T, level cpu.Level) *machine {
	t.Helper()
	m := &machine{T: t, level: level, max: 160}
	var err error
	m.pool, err = cpu.NewPool(2, nil)
	m.must(err)
	t.Cleanup(m.pool.Close)
	t.Cleanup(m.weights.Close)
	return m
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// begin makes a program over a cache.
func (m *machine) begin(kv cpu.KV, blocks int) {
	m.Helper()
	var err error
	kv.Pool, err = cpu.NewRegion(kv.BlockBytes() * blocks)
	m.must(err)
	m.Cleanup(kv.Pool.Close)
	m.kv = kv
	m.prog, err = cpu.NewProgram(m.pool, m.level, kv, m.max, 0)
	m.must(err)
	m.Cleanup(m.prog.Close)
}

// plain begins a program that needs no cache.
func (m *machine) plain() { m.begin(cpu.KV{Layers: 1, KVHeads: 1, HeadDim: 16, BlockTokens: 16}, 16) }

func (m *machine) buffer(width int) int {
	i, err := m.prog.Buffer(width, false)
	m.must(err)
	return i
}

// op adds the only op and seals.
func (m *machine) op(op cpu.Op) {
	m.Helper()
	op.Cuts = cpu.NoCuts
	m.must(m.prog.Add(op))
	m.must(m.prog.Seal())
}

// rows runs the op on rows of one sequence, whose tokens and logits are the rows.
func (m *machine) rows(tokens ...int32) {
	n := int32(len(tokens))
	logits, pages := make([]int32, n), make([]int32, 16)
	for i := range logits {
		logits[i] = int32(i)
	}
	m.prog.Run(&cpu.Batch{
		Tokens: tokens, RowStart: []int32{0, n}, PosStart: []int32{0}, PageStart: []int32{0, 16}, Pages: pages, LogitRows: logits,
	}, 0, 1)
}

// set fills a buffer.
func (m *machine) set(buffer int, values []float64) {
	to := m.prog.Data(buffer, len(values))
	for i, v := range values {
		to[i] = float32(v)
	}
}

func (m *machine) vector(values []float64) []float32 {
	if values == nil {
		return nil
	}
	f := make([]float32, len(values))
	for i, v := range values {
		f[i] = float32(v)
	}
	v, err := m.weights.Vector(f)
	m.must(err)
	return v
}

func (m *machine) matrix(cols int, interleaved bool, parts ...cpu.Part) *cpu.Matrix {
	m.Helper()
	w, err := m.weights.Pack(m.pool, parts, cols, interleaved)
	m.must(err)
	return w
}

func plainPart(rows int, values []float64) cpu.Part {
	return cpu.Part{DType: int(tensor.F32), Rows: rows, Data: encode(F32, values).Data}
}

// filePart is a weight in the bytes of a model file. Formats that the table has in
// groups of another size than files come as float32, which holds their values.
func filePart(w *Weight, n, k int) cpu.Part {
	types := map[cuda.Format]tensor.DType{
		cuda.FormatQ4: tensor.Q4_0, cuda.FormatQ4M: tensor.Q4_1, cuda.FormatQ5: tensor.Q5_0, cuda.FormatQ5M: tensor.Q5_1, cuda.FormatQ8: tensor.Q8_0,
	}
	d, ok := types[w.Format]
	switch {
	case w.Format == cuda.FormatBF16:
		return cpu.Part{DType: cpu.BF16Float, Rows: n, Data: encode(BF16, w.Values).Data}
	case !ok:
		return plainPart(n, w.Values)
	}
	var data []byte
	half := func(v float32) { data = binary.LittleEndian.AppendUint16(data, cuda.F16Bits(v)) }
	for _, row := range w.Rows {
		for g := range k / 32 {
			codes := row.Codes[32*g : 32*g+32]
			half(row.Scales[g])
			if d == tensor.Q4_1 || d == tensor.Q5_1 {
				half(row.Mins[g])
			}
			if d == tensor.Q8_0 {
				data = append(data, codes...)
				continue
			}
			if d == tensor.Q5_0 || d == tensor.Q5_1 {
				high := uint32(0)
				for j, c := range codes {
					high |= uint32(c>>4) << j
				}
				data = binary.LittleEndian.AppendUint32(data, high)
			}
			for j := range 16 {
				data = append(data, codes[j]&15|codes[j+16]<<4)
			}
		}
	}
	return cpu.Part{DType: int(d), Rows: n, Data: data}
}

func (m *machine) close(what string, got []float32, want []float64, rel, abs float64) {
	m.Helper()
	for i, w := range want {
		if g := float64(got[i]); g != w && !(math.Abs(g-w) <= rel*math.Abs(w)+abs) {
			m.Fatalf("%s[%d] = %v, want %v (tolerance %v relative + %v)", what, i, g, w, rel, abs)
		}
	}
}

func (m *machine) lookup(c *Lookup) {
	m.plain()
	out := m.buffer(c.Hidden)
	m.op(cpu.Op{Kind: cpu.Embed, In: out, Out: out, W: m.matrix(c.Hidden, false, filePart(&c.Table, c.Vocab, c.Hidden))})
	var ids []int32
	var want []float64
	for i, id := range c.IDs {
		if id >= 0 && id < c.Vocab { // the backend refuses others before
			ids, want = append(ids, int32(id)), append(want, c.Want[i*c.Hidden:(i+1)*c.Hidden]...)
		}
	}
	m.rows(ids...)
	m.close("out", m.prog.Data(out, len(want)), want, 1e-6, 1e-6)
}

// norm runs the one of the logits, whose product picks columns.
func (m *machine) norm(c *Norm) {
	n := min(c.Cols, 96)
	pick, want := make([]float64, n*c.Cols), make([]float64, c.Rows*n)
	for i := range n {
		col := i * (c.Cols - 1) / max(1, n-1)
		pick[i*c.Cols+col] = 1
		for r := range c.Rows {
			want[r*n+i] = c.Want[r*c.Cols+col]
		}
	}
	m.logits(c.Rows, c.Cols, n, c.X, c.Weight, pick, c.Eps)
	m.close("norm", m.prog.Logits(len(want)), want, cpuRel, 1e-6)
}

func (m *machine) router(c *Router) {
	m.logits(c.Rows, c.Hidden, c.Experts, c.X, c.Norm, c.W, c.Eps)
	m.close("logits", m.prog.Logits(len(c.Want)), c.Want, cpuRel, cpuRel)
}

func (m *machine) logits(rows, cols, n int, x, norm, w []float64, eps float64) {
	m.plain()
	in := m.buffer(cols)
	m.op(cpu.Op{Kind: cpu.Logits, In: in, W: m.matrix(cols, false, plainPart(n, w)), Norm: m.vector(norm), Eps: float32(eps)})
	m.set(in, x)
	m.rows(make([]int32, rows)...)
}

func (m *machine) product(c *Product) {
	m.plain()
	in, out := m.buffer(c.K), m.buffer(c.N)
	m.op(cpu.Op{
		Kind: cpu.AddLinear, In: in, Out: out, W: m.matrix(c.K, false, filePart(&c.W, c.N, c.K)), Bias: m.vector(c.Bias),
	})
	m.set(in, c.X)
	m.rows(make([]int32, c.Rows)...)
	got := m.prog.Data(out, c.Rows*c.N)
	for r := range c.Rows {
		x, top := c.X[r*c.K:(r+1)*c.K], 0.0
		for _, v := range x {
			top = max(top, math.Abs(v))
		}
		for i := range c.N {
			tol := cpuSum * math.Abs(c.Bias[i])
			for j, v := range x {
				w := math.Abs(c.W.Values[i*c.K+j])
				tol += cpuSum * w * math.Abs(v)
				if c.W.Rows != nil {
					tol += cpuStep * w * top
				}
			}
			m.close("y", got[r*c.N+i:r*c.N+i+1], c.Sums[r*c.N+i:r*c.N+i+1], 0, tol)
		}
	}
}

// columns is the transpose of rows [n, width], with `hidden` columns.
func columns(rows []float64, n, width, hidden int) []float64 {
	w := make([]float64, width*hidden)
	for i := range n {
		for j := range width {
			w[j*hidden+i] = rows[i*width+j]
		}
	}
	return w
}

// units makes the norm of row i the i-th unit vector of `hidden` dimensions, so that
// a product with columns that are rows of a table gives these. fill sets the input
// of the sealed op, whose norm has eps.
func (m *machine) units(rows int, eps float64) (norm []float32, hidden int, fill func(in int)) {
	hidden = max(16, rows)
	w := make([]float64, hidden)
	for i := range w {
		w[i] = math.Sqrt(1/float64(hidden) + eps)
	}
	return m.vector(w), hidden, func(in int) {
		x := make([]float64, rows*hidden)
		for i := range rows {
			x[i*hidden+i] = 1
		}
		m.set(in, x)
	}
}

func (m *machine) gate(c *Gate) {
	m.plain()
	norm, hidden, fill := m.units(c.Rows, 0)
	gate, up := make([]float64, c.Rows*c.Inter), make([]float64, c.Rows*c.Inter)
	for r := range c.Rows {
		for i := range c.Inter {
			at := r*2*c.Inter + i/8*16 + i%8
			gate[r*c.Inter+i], up[r*c.Inter+i] = c.In[at], c.In[at+8]
		}
	}
	in, out := m.buffer(hidden), m.buffer(c.Inter)
	m.op(cpu.Op{
		Kind: cpu.GatedMLP, In: in, Out: out, Norm: norm, W: m.matrix(hidden, true,
			plainPart(c.Inter, columns(gate, c.Rows, c.Inter, hidden)), plainPart(c.Inter, columns(up, c.Rows, c.Inter, hidden))),
	})
	fill(in)
	m.rows(make([]int32, c.Rows)...)
	m.close("out", m.prog.Data(out, len(c.Want)), c.Want, cpuRel, 1e-6)
}

// draw is the sampler, which is the CPU backend's.
func (m *machine) draw(c *Draw) {
	for i := range c.Rows {
		p := &c.Rows[i]
		s := request.Sampling{
			Temperature: p.Temperature, TopK: int(p.TopK), TopP: p.TopP, MinP: p.MinP, RepetitionPenalty: 1, Seed: p.Seed, Stream: p.Stream,
			Logprobs: int(p.Logprobs),
		}
		logits := make([]float32, len(c.Logits[i]))
		for j, l := range c.Logits[i] {
			logits[j] = float32(l)
		}
		got, err := sampler.New(&s, nil).Sample(logits, int(p.Index), nil)
		if (err == nil) != (c.Status[i] == cuda.StatusOK) || err == nil && int(got.ID) != c.Tokens[i] {
			m.Fatalf("row %d: token %d, error %v; want %d with status %d", i, got.ID, err, c.Tokens[i], c.Status[i])
		}
	}
}
