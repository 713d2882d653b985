package cpu

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/engine/tensor"
)

// shape is a small model. All weights are random.
type shape struct {
	layers, hidden, heads, kvHeads, headDim, inter, vocab int
	adjacent, bias, qkNorm                                bool
	ropeDims                                              int // 0: headDim
	dtype                                                 tensor.DType
	experts, used                                         int // experts of inter in every second layer and in an only one
	renorm                                                bool
}

func (s shape) sparse(layer int) bool { return s.experts > 0 && (layer%2 == 1 || s.layers == 1) }

func (s shape) rope() tensor.RoPE {
	dims := s.ropeDims
	if dims == 0 {
		dims = s.headDim
	}
	r := tensor.RoPE{Dims: dims, Adjacent: s.adjacent, Scale: 1, InvFreq: make([]float32, dims/2)}
	for i := range r.InvFreq {
		r.InvFreq[i] = float32(math.Pow(10000, -2*float64(i)/float64(dims)))
	}
	return r
}

type layer struct {
	norm, norm2, bias, qNorm, kNorm []float32
	qkv, o, gate, up, down          []float32 // [out][in]
	router                          []float32
	experts                         []layer // gate, up and down
}

type weights struct {
	shape
	embed, final []float32
	layers       []layer
}

func newWeights(s shape, seed uint64) *weights {
	rng := rand.New(rand.NewPCG(seed, 7))
	normal := func(n int, sigma float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64() * sigma)
		}
		return v
	}
	near1 := func(n int) []float32 {
		v := normal(n, 0.1)
		for i := range v {
			v[i]++
		}
		return v
	}
	width := (s.heads + 2*s.kvHeads) * s.headDim
	w := &weights{shape: s, embed: normal(s.vocab*s.hidden, 1), final: near1(s.hidden)}
	for range s.layers {
		in, mid := 1/math.Sqrt(float64(s.hidden)), 1/math.Sqrt(float64(s.inter))
		l := layer{
			norm: near1(s.hidden), norm2: near1(s.hidden), qkv: normal(width*s.hidden, 1.5*in),
			o:    normal(s.hidden*s.heads*s.headDim, 1/math.Sqrt(float64(s.heads*s.headDim))),
			gate: normal(s.inter*s.hidden, in), up: normal(s.inter*s.hidden, in), down: normal(s.hidden*s.inter, mid),
		}
		if s.bias {
			l.bias = normal(width, 0.3)
		}
		if s.qkNorm {
			l.qNorm, l.kNorm = near1(s.headDim), near1(s.headDim)
		}
		if i := len(w.layers); s.sparse(i) {
			l.router = normal(s.experts*s.hidden, 2*in)
			copy(l.router[s.hidden:], l.router[:s.hidden]) // experts 0 and 1 always tie
			for range s.experts {
				l.experts = append(l.experts, layer{
					gate: normal(s.inter*s.hidden, in), up: normal(s.inter*s.hidden, in), down: normal(s.hidden*s.inter, mid),
				})
			}
		}
		w.layers = append(w.layers, l)
	}
	return w
}

// host wraps values as a tensor; matrices take the shape's element type.
func host(name string, d tensor.DType, values []float32, dims ...int) tensor.Host {
	h := tensor.Host{Name: name, DType: d, Shape: dims}
	switch d {
	case tensor.F32:
		for _, v := range values {
			h.Data = binary.LittleEndian.AppendUint32(h.Data, math.Float32bits(v))
		}
	case tensor.Q8_0:
		for g := 0; g < len(values); g += 32 {
			h.Data = appendQ8(h.Data, values[g:g+32])
		}
	}
	return h
}

// appendQ8 stores 32 values with the scale 2^-6, whatever they are.
func appendQ8(to []byte, values []float32) []byte {
	to = binary.LittleEndian.AppendUint16(to, 0x2400)
	for _, v := range values {
		to = append(to, byte(int8(max(-127, min(127, math.Round(float64(v)*64))))))
	}
	return to
}

// build loads the weights and records the pass.
func build(tb testing.TB, w *weights, cfg Config) *Backend {
	tb.Helper()
	if cfg.KV.Layers == 0 {
		cfg.KV.Layers, cfg.KV.KVHeads, cfg.KV.HeadDim = w.shape.layers, w.kvHeads, w.headDim
	}
	b, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.Close)
	record(tb, b, w)
	if err := b.Seal(w.vocab); err != nil {
		tb.Fatal(err)
	}
	return b
}

// recordMoE is replaced to split the experts.
var recordMoE = func(b *Backend, x tensor.Buffer, m tensor.MoE) { b.MoE(x, x, m) }

func record(tb testing.TB, b *Backend, w *weights) {
	tb.Helper()
	matrix := func(values []float32, rows, cols int) tensor.Matrix {
		m, err := b.Matrix(host("w", w.dtype, values, rows, cols))
		if err != nil {
			tb.Fatal(err)
		}
		return m
	}
	vector := func(values []float32) tensor.Vector {
		if values == nil {
			return tensor.None
		}
		v, err := b.Vector(host("v", tensor.F32, values, len(values)))
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
	attn := w.heads * w.headDim
	x, q, a, m := b.Buffer(w.hidden), b.Buffer(attn), b.Buffer(attn), b.Buffer(w.inter)
	embed := matrix(w.embed, w.vocab, w.hidden)
	b.Embed(x, embed)
	gateUp := func(l layer) tensor.Matrix {
		g, err := b.GateUp(host("gate", w.dtype, l.gate, w.inter, w.hidden), host("up", w.dtype, l.up, w.inter, w.hidden))
		if err != nil {
			tb.Fatal(err)
		}
		return g
	}
	for i, l := range w.layers {
		b.AttnInput(q, x, tensor.AttnInput{
			Layer: i, Norm: vector(l.norm), Eps: 1e-5, QKV: matrix(l.qkv, len(l.qkv)/w.hidden, w.hidden), Bias: vector(l.bias),
			QNorm: vector(l.qNorm), KNorm: vector(l.kNorm), Heads: w.heads, KVHeads: w.kvHeads, HeadDim: w.headDim, RoPE: w.rope(),
		})
		b.Attention(a, q, tensor.Attn{
			Layer: i, Heads: w.heads, KVHeads: w.kvHeads, HeadDim: w.headDim, Scale: float32(1 / math.Sqrt(float64(w.headDim))),
		})
		b.AddLinear(x, a, matrix(l.o, w.hidden, attn), tensor.None)
		if w.sparse(i) {
			router, err := b.Matrix(host("router", tensor.F32, l.router, w.experts, w.hidden))
			if err != nil {
				tb.Fatal(err)
			}
			mix := tensor.MoE{Norm: vector(l.norm2), Eps: 1e-5, Router: router, Used: w.used, Renorm: w.renorm}
			for _, e := range l.experts {
				mix.GateUp = append(mix.GateUp, gateUp(e))
				mix.Down = append(mix.Down, matrix(e.down, w.hidden, w.inter))
			}
			recordMoE(b, x, mix)
			continue
		}
		b.GatedMLP(m, x, vector(l.norm2), 1e-5, gateUp(l))
		b.AddLinear(x, m, matrix(l.down, w.hidden, w.inter), tensor.None)
	}
	b.Logits(x, vector(w.final), 1e-5, embed, nil)
}

// cache is the reference's K and V of one sequence: [layer][position][kvHeads*headDim].
type cache struct{ k, v [][][]float64 }

// forward is the slow reference: float64, one row at a time.
func (w *weights) forward(c *cache, token int32, roundKV func(head []float64)) []float64 {
	if c.k == nil {
		c.k, c.v = make([][][]float64, w.shape.layers), make([][][]float64, w.shape.layers)
	}
	x := widen(w.embed[int(token)*w.hidden : (int(token)+1)*w.hidden])
	for i, l := range w.layers {
		pos := len(c.k[i])
		qkv := linear(l.qkv, rms(x, l.norm))
		for j, v := range l.bias {
			qkv[j] += float64(v)
		}
		nq, nk := w.heads*w.headDim, w.kvHeads*w.headDim
		q, k, v := qkv[:nq], qkv[nq:nq+nk], qkv[nq+nk:]
		w.rotate(q, l.qNorm, pos)
		w.rotate(k, l.kNorm, pos)
		for j := 0; j < nk; j += w.headDim {
			roundKV(k[j : j+w.headDim])
			roundKV(v[j : j+w.headDim])
		}
		c.k[i], c.v[i] = append(c.k[i], k), append(c.v[i], v)
		add(x, linear(l.o, w.attend(q, c.k[i], c.v[i])))
		n := rms(x, l.norm2)
		if w.sparse(i) {
			add(x, w.mix(l, n))
			continue
		}
		add(x, l.mlp(n))
	}
	return linear(w.embed, rms(x, w.final))
}

func (l layer) mlp(n []float64) []float64 {
	gate, up := linear(l.gate, n), linear(l.up, n)
	for j, g := range gate {
		gate[j] = g / (1 + math.Exp(-g)) * up[j]
	}
	return linear(l.down, gate)
}

// mix sums the chosen experts of a layer.
func (w *weights) mix(l layer, n []float64) []float64 {
	logits, out := linear(l.router, n), make([]float64, len(n))
	order := make([]int, len(logits))
	for e := range order {
		order[e] = e
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	total := 0.0
	for i, e := range order {
		if i < w.used || !w.renorm {
			total += math.Exp(logits[e])
		}
	}
	for _, e := range order[:w.used] {
		for j, y := range l.experts[e].mlp(n) {
			out[j] += math.Exp(logits[e]) / total * y
		}
	}
	return out
}

func (w *weights) rotate(x []float64, norm []float32, pos int) {
	r := w.rope()
	for h := 0; h < len(x); h += w.headDim {
		head := x[h : h+w.headDim]
		if norm != nil {
			copy(head, rms(head, norm))
		}
		for i, f := range r.InvFreq {
			a, b := i, i+r.Dims/2
			if r.Adjacent {
				a, b = 2*i, 2*i+1
			}
			sin, cos := math.Sincos(float64(pos) * float64(f))
			head[a], head[b] = head[a]*cos-head[b]*sin, head[a]*sin+head[b]*cos
		}
	}
}

func (w *weights) attend(q []float64, k, v [][]float64) []float64 {
	out := make([]float64, len(q))
	for h := range w.heads {
		kv := h / (w.heads / w.kvHeads) * w.headDim
		p, sum := make([]float64, len(k)), 0.0
		for t := range k {
			for d := range w.headDim {
				p[t] += q[h*w.headDim+d] * k[t][kv+d]
			}
			p[t] = math.Exp(p[t] / math.Sqrt(float64(w.headDim)))
			sum += p[t]
		}
		for t := range v {
			for d := range w.headDim {
				out[h*w.headDim+d] += p[t] / sum * v[t][kv+d]
			}
		}
	}
	return out
}

func widen(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, f := range v {
		out[i] = float64(f)
	}
	return out
}

func add(x, y []float64) {
	for i := range x {
		x[i] += y[i]
	}
}

func rms(x []float64, w []float32) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	scale, out := 1/math.Sqrt(sum/float64(len(x))+1e-5), make([]float64, len(x))
	for i, v := range x {
		out[i] = v * scale * float64(w[i])
	}
	return out
}

func linear(w []float32, x []float64) []float64 {
	out := make([]float64, len(w)/len(x))
	for r := range out {
		sum := 0.0
		for i, v := range w[r*len(x) : (r+1)*len(x)] {
			sum += float64(v) * x[i]
		}
		out[r] = sum
	}
	return out
}

func exact([]float64) {}

func toBF16(head []float64) {
	for i, v := range head {
		u := math.Float32bits(float32(v))
		head[i] = float64(math.Float32frombits((u + 0x7fff + u>>16&1) & 0xffff0000))
	}
}

// toBytes rounds to multiples of the least bfloat16 of which 127 are enough.
func toBytes(head []float64) {
	top := 0.0
	for _, v := range head {
		top = max(top, math.Abs(v))
	}
	scale := float64(math.Float32frombits((math.Float32bits(float32(top/127)) + 0xffff) & 0xffff0000))
	for i, v := range head {
		head[i] = math.RoundToEven(v/max(scale, 1e-30)) * scale
	}
}
