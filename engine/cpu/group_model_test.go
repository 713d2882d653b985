package cpu

import (
	"fmt"
	"testing"

	"tandem/engine/tensor"
)

// part is what a rank records of a model: attention heads [h0, h1) with KV heads
// [k0, k1), and the cuts of the other widths over the ranks.
type part struct {
	t                                    testing.TB
	b                                    *Backend
	w                                    *weights
	rank, size                           int
	h0, h1, k0, k1                       int
	headCuts, interCuts, hidden, vocabAt []int
}

func even(n, parts int) []int {
	cuts := make([]int, parts+1)
	for r := range cuts {
		cuts[r] = r * n / parts
	}
	return cuts
}

// headRange gives a rank's heads: whole KV heads when there are enough, else one
// with some of its query heads.
func headRange(w *weights, rank, size int) (h0, h1, k0, k1 int) {
	k, group := w.kvHeads, w.heads/w.kvHeads
	if size <= k {
		k0, k1 = rank*k/size, (rank+1)*k/size
		return k0 * group, k1 * group, k0, k1
	}
	k0 = rank * k / size
	first, end := (k0*size+k-1)/k, ((k0+1)*size+k-1)/k
	i, n := rank-first, end-first
	return k0*group + i*group/n, k0*group + (i+1)*group/n, k0, k0 + 1
}

func newPart(t testing.TB, b *Backend, w *weights, rank, size int) *part {
	p := &part{t: t, b: b, w: w, rank: rank, size: size}
	for r := range size {
		h0, _, _, _ := headRange(w, r, size)
		p.headCuts = append(p.headCuts, h0*w.headDim)
	}
	p.headCuts = append(p.headCuts, w.heads*w.headDim)
	p.h0, p.h1, p.k0, p.k1 = headRange(w, rank, size)
	p.interCuts, p.hidden, p.vocabAt = even(w.inter, size), even(w.hidden, size), even(w.vocab, size)
	return p
}

func (p *part) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// host names a weight; rows picks [first, end) of its rows.
func (p *part) host(name string, values []float32, cols int) tensor.Host {
	return host(name, p.w.dtype, values, len(values)/cols, cols)
}

func rows(h tensor.Host, first, end int) tensor.Host { return h.RowRange(first, end-first) }

func (p *part) matrix(parts ...tensor.Host) tensor.Matrix {
	p.t.Helper()
	m, err := p.b.Matrix(parts...)
	p.check(err)
	return m
}

func (p *part) vector(name string, values []float32) tensor.Vector {
	p.t.Helper()
	if values == nil {
		return tensor.None
	}
	v, err := p.b.Vector(host(name, tensor.F32, values, len(values)))
	p.check(err)
	return v
}

func (p *part) gateUp(name string, l layer, first, end int) tensor.Matrix {
	p.t.Helper()
	g := p.host(name+".gate", l.gate, p.w.hidden)
	m, err := p.b.GateUp(rows(g, first, end), rows(p.host(name+".up", l.up, p.w.hidden), first, end))
	p.check(err)
	return m
}

// attention records a layer's attention of heads [h0, h1) to columns of a.
func (p *part) attention(i int, q, a, x tensor.Buffer) {
	w, l, hd := p.w, p.w.layers[i], p.w.headDim
	name := fmt.Sprintf("%d.", i)
	qkv := p.host(name+"qkv", l.qkv, w.hidden)
	pick := [][2]int{{p.h0, p.h1}, {w.heads + p.k0, w.heads + p.k1}, {w.heads + w.kvHeads + p.k0, w.heads + w.kvHeads + p.k1}}
	var parts []tensor.Host
	var bias []float32
	for _, c := range pick {
		parts = append(parts, rows(qkv, c[0]*hd, c[1]*hd))
		if l.bias != nil {
			bias = append(bias, l.bias[c[0]*hd:c[1]*hd]...)
		}
	}
	heads := p.h1 - p.h0
	p.b.AttnInput(q, x, tensor.AttnInput{
		Layer: i, Norm: p.vector(name+"norm", l.norm), Eps: 1e-5, QKV: p.matrix(parts...), Bias: p.vector(name+"bias", bias),
		QNorm: p.vector(name+"qnorm", l.qNorm), KNorm: p.vector(name+"knorm", l.kNorm),
		Heads: heads, KVHeads: p.k1 - p.k0, HeadDim: hd, RoPE: w.rope(),
	})
	p.b.Attention(p.b.Columns(a, p.h0*hd, heads*hd), q, tensor.Attn{Layer: i, Heads: heads, KVHeads: p.k1 - p.k0, HeadDim: hd, Scale: 0.2})
}

// linear adds this rank's rows of in·Wᵀ to its columns of x.
func (p *part) linear(x, in tensor.Buffer, m tensor.Host) {
	first, end := p.hidden[p.rank], p.hidden[p.rank+1]
	p.b.AddLinear(p.b.Columns(x, first, end-first), in, p.matrix(rows(m, first, end)), tensor.None)
	p.b.GatherColumns(x, p.hidden)
}

// mlp records a dense MLP split over the ranks.
func (p *part) mlp(name string, l layer, m, x tensor.Buffer) {
	first, end := p.interCuts[p.rank], p.interCuts[p.rank+1]
	p.b.GatedMLP(p.b.Columns(m, first, end-first), x, p.vector(name+"norm2", l.norm2), 1e-5, p.gateUp(name, l, first, end))
	p.b.GatherColumns(m, p.interCuts)
	p.linear(x, m, p.host(name+"down", l.down, p.w.inter))
}

// mixture records this rank's experts of a layer.
func (p *part) mixture(i int, out, x tensor.Buffer) {
	w, l, name := p.w, p.w.layers[i], fmt.Sprintf("%d.", i)
	router := host(name+"router", tensor.F32, l.router, w.experts, w.hidden)
	cuts := even(w.experts, p.size)
	mix := tensor.MoE{Norm: p.vector(name+"norm2", l.norm2), Eps: 1e-5, Router: p.matrix(router), Used: w.used, Renorm: w.renorm, First: cuts[p.rank]}
	for e := cuts[p.rank]; e < cuts[p.rank+1]; e++ {
		expert := fmt.Sprintf("%sexpert%d", name, e)
		mix.GateUp = append(mix.GateUp, p.gateUp(expert, l.experts[e], 0, w.inter))
		mix.Down = append(mix.Down, p.matrix(p.host(expert+".down", l.experts[e].down, w.inter)))
	}
	p.b.MoE(out, x, mix)
}

// recordTP splits heads, MLP and vocabulary.
func (p *part) recordTP() {
	w, b := p.w, p.b
	attn := w.heads * w.headDim
	x, q, a, m, share := b.Buffer(w.hidden), b.Buffer((p.h1-p.h0)*w.headDim), b.Buffer(attn), b.Buffer(w.inter), b.Buffer(w.hidden)
	embed := p.host("embed", w.embed, w.hidden)
	b.Embed(x, p.matrix(embed))
	for i, l := range w.layers {
		p.attention(i, q, a, x)
		b.GatherColumns(a, p.headCuts)
		p.linear(x, a, p.host(fmt.Sprintf("%d.o", i), l.o, attn))
		if w.sparse(i) {
			p.mixture(i, share, x)
			b.AddShares(x, share)
			continue
		}
		p.mlp(fmt.Sprintf("%d.", i), l, m, x)
	}
	head := rows(embed, p.vocabAt[p.rank], p.vocabAt[p.rank+1])
	b.Logits(x, p.vector("final", w.final), 1e-5, p.matrix(head), p.vocabAt)
}

// recordADP gives the rank its rows, and experts and MLPs split over all.
func (p *part) recordADP() {
	w, b := p.w, p.b
	attn := w.heads * w.headDim
	p.h0, p.h1, p.k0, p.k1 = 0, w.heads, 0, w.kvHeads
	x, q, a := b.Buffer(w.hidden), b.Buffer(attn), b.Buffer(attn)
	all, share, m := b.Shared(w.hidden), b.Shared(w.hidden), b.Shared(w.inter)
	embed := p.matrix(p.host("embed", w.embed, w.hidden))
	b.Embed(x, embed)
	for i, l := range w.layers {
		name := fmt.Sprintf("%d.", i)
		p.attention(i, q, a, x)
		b.AddLinear(x, a, p.matrix(p.host(name+"o", l.o, attn)), tensor.None)
		b.GatherRows(all, x)
		if !w.sparse(i) {
			p.mlp(name, l, m, all)
			b.OwnRows(x, all)
			continue
		}
		p.mixture(i, share, all)
		b.AddShares(x, share)
	}
	b.Logits(x, p.vector("final", w.final), 1e-5, embed, nil)
}

// ranksOf builds all ranks of a group, by recordTP or recordADP.
func ranksOf(t testing.TB, w *weights, size int, cfg Config, tp bool) ([]*Backend, *world) {
	t.Helper()
	world, ranks := newWorld(size), make([]*Backend, size)
	for r := range ranks {
		cfg.Group = fakeGroup{world, r}
		if tp {
			_, _, k0, k1 := headRange(w, r, size)
			cfg.KV.KVHeads = k1 - k0
			ranks[r] = sealed(t, w, cfg, (*part).recordTP)
			continue
		}
		cfg.KV.KVHeads = w.kvHeads
		ranks[r] = sealed(t, w, cfg, (*part).recordADP)
	}
	return ranks, world
}

// sealed builds one backend; cfg has its group and KV heads.
func sealed(t testing.TB, w *weights, cfg Config, record func(*part)) *Backend {
	t.Helper()
	rank, size := 0, 1
	if cfg.Group != nil {
		rank, size = cfg.Group.ID(), cfg.Group.Size()
	}
	cfg.KV.Layers, cfg.KV.HeadDim = w.shape.layers, w.headDim
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	record(newPart(t, b, w, rank, size))
	if err := b.Seal(w.vocab); err != nil {
		t.Fatal(err)
	}
	return b
}

func plain(t testing.TB, w *weights, cfg Config) *Backend {
	t.Helper()
	cfg.KV.KVHeads = w.kvHeads
	return sealed(t, w, cfg, (*part).recordPlain)
}

// recordPlain is what a rank alone records, without a group.
func (p *part) recordPlain() {
	w, b := p.w, p.b
	attn := w.heads * w.headDim
	p.recordIn(b.Buffer(w.hidden), b.Buffer(attn), b.Buffer(attn), b.Buffer(w.inter))
}

// recordViews is recordPlain in views of a view of one wide buffer.
func (p *part) recordViews() {
	w := p.w
	attn := w.heads * w.headDim
	widths := []int{w.hidden, attn, attn, w.inter}
	wide, first := p.b.Columns(p.b.Buffer(sum(widths)+20), 3, sum(widths)+10), 5
	var views []tensor.Buffer
	for _, n := range widths {
		views = append(views, p.b.Columns(wide, first, n))
		first += n
	}
	p.recordIn(views[0], views[1], views[2], views[3])
}

func (p *part) recordIn(x, q, a, m tensor.Buffer) {
	w, b := p.w, p.b
	attn := w.heads * w.headDim
	embed := p.matrix(p.host("embed", w.embed, w.hidden))
	b.Embed(x, embed)
	for i, l := range w.layers {
		name := fmt.Sprintf("%d.", i)
		p.attention(i, q, a, x)
		b.AddLinear(x, a, p.matrix(p.host(name+"o", l.o, attn)), tensor.None)
		if w.sparse(i) {
			p.mixture(i, x, x)
			continue
		}
		b.GatedMLP(m, x, p.vector(name+"norm2", l.norm2), 1e-5, p.gateUp(name, l, 0, w.inter))
		b.AddLinear(x, m, p.matrix(p.host(name+"down", l.down, w.inter)), tensor.None)
	}
	b.Logits(x, p.vector("final", w.final), 1e-5, embed, nil)
}
