package model

import (
	"math"
	"slices"

	"tandem/engine/tensor"
)

// activation is a buffer of which a rank computes some columns and then has all
// from its peers; both are the same buffer where nothing is split.
type activation struct {
	all, mine tensor.Buffer
	cuts      []int
}

func (l *llama) split(b tensor.Buffer, cuts []int) activation {
	if cuts == nil {
		return activation{all: b, mine: b}
	}
	first := cuts[l.p.Rank]
	return activation{b, l.ops.Columns(b, first, cuts[l.p.Rank+1]-first), cuts}
}

// complete lets every rank have all columns.
func (l *llama) complete(a activation) {
	if a.cuts != nil {
		l.ops.GatherColumns(a.all, a.cuts)
	}
}

// activations are the buffers of a pass; those that no layer needs are absent.
type activations struct {
	x, attended activation
	q           tensor.Buffer // of this rank's heads
	mlp         activation    // what dense MLPs add to: x, or all
	gated       activation    // of the same rows as mlp
	all         tensor.Buffer // x of all ranks
	share       tensor.Buffer // of this rank's experts
	added       activation    // what attention or MLP add, where a norm comes before
}

func (l *llama) declare(ops Ops) activations {
	c := l.c
	_, heads := l.p.Heads(c)
	a := activations{
		x: l.split(ops.Buffer(c.Hidden), l.rows.out), q: ops.Buffer(heads * c.HeadDim),
		attended: l.split(ops.Buffer(c.Heads*c.HeadDim), l.rows.attended),
	}
	a.mlp = a.x
	if c.Arch == archGemma3 {
		a.added = l.split(ops.Buffer(c.Hidden), l.rows.out)
	}
	moe := slices.ContainsFunc(l.layers, func(y llamaLayer) bool { return y.moe != nil })
	dense := slices.ContainsFunc(l.layers, func(y llamaLayer) bool { return y.moe == nil })
	gathered := dense && l.p.gathersMLP()
	if moe && l.p.attentionDP() || gathered {
		a.all = ops.Shared(c.Hidden)
	}
	switch {
	case moe && l.p.attentionDP():
		a.share = ops.Shared(c.Hidden)
	case moe && l.p.tensor():
		a.share = ops.Buffer(c.Hidden)
	}
	switch {
	case gathered:
		a.mlp, a.gated = l.split(a.all, l.rows.down), l.split(ops.Shared(c.Inter), l.rows.gated)
	case dense:
		a.gated = l.split(ops.Buffer(c.Inter), l.rows.gated)
	}
	return a
}

func (l *llama) record(ops Ops) {
	a := l.declare(ops)
	ops.Embed(a.x.all, l.embed)
	if l.c.Arch == archGemma3 {
		ops.Scale(a.x.all, float32(math.Sqrt(float64(l.c.Hidden))))
	}
	for i, y := range l.layers {
		l.attention(ops, a, i, y)
		if y.moe != nil {
			l.mixture(ops, a, *y.moe)
		} else {
			l.mlp(ops, a, y)
		}
	}
	ops.Logits(a.x.all, l.finalNorm, l.c.Eps, l.head, l.rows.vocab)
}

func (l *llama) attention(ops Ops, a activations, layer int, y llamaLayer) {
	c := l.c
	window, rope := c.Window(layer), c.RoPE.Tensor()
	if c.LocalRoPE != nil && window > 0 {
		rope = c.LocalRoPE.Tensor()
	}
	_, heads := l.p.Heads(c)
	_, kvHeads := l.p.KVHeads(c)
	ops.AttnInput(a.q, a.x.all, tensor.AttnInput{
		Layer: layer, Norm: y.attnNorm, Eps: c.Eps, QKV: y.qkv, Bias: y.qkvBias, QNorm: y.qNorm, KNorm: y.kNorm,
		Heads: heads, KVHeads: kvHeads, HeadDim: c.HeadDim, RoPE: rope,
	})
	scale := float32(1 / math.Sqrt(float64(c.HeadDim)))
	if c.AttnScale > 0 {
		scale = float32(c.AttnScale)
	}
	ops.Attention(a.attended.mine, a.q, tensor.Attn{Layer: layer, Heads: heads, KVHeads: kvHeads, HeadDim: c.HeadDim, Scale: scale, Window: window})
	l.complete(a.attended)
	if y.postAttn != tensor.None {
		l.addNormed(ops, a, a.attended.all, y.out, y.postAttn)
		return
	}
	ops.AddLinear(a.x.mine, a.attended.all, y.out, y.outBias)
	l.complete(a.x)
}

// addNormed adds the norm of in·Wᵀ to x.
func (l *llama) addNormed(ops Ops, a activations, in tensor.Buffer, w tensor.Matrix, norm tensor.Vector) {
	ops.Linear(a.added.mine, in, w)
	l.complete(a.added)
	ops.AddNorm(a.x.all, a.added.all, norm, l.c.Eps)
}

func (l *llama) mlp(ops Ops, a activations, y llamaLayer) {
	if l.p.gathersMLP() {
		ops.GatherRows(a.mlp.all, a.x.all)
	}
	if y.postMLP != tensor.None {
		ops.GatedGELU(a.gated.mine, a.mlp.all, y.mlpNorm, l.c.Eps, y.gateUp)
		l.complete(a.gated)
		l.addNormed(ops, a, a.gated.all, y.down, y.postMLP)
		return
	}
	ops.GatedMLP(a.gated.mine, a.mlp.all, y.mlpNorm, l.c.Eps, y.gateUp)
	l.complete(a.gated)
	ops.AddLinear(a.mlp.mine, a.gated.all, y.down, tensor.None)
	l.complete(a.mlp)
	if l.p.gathersMLP() {
		ops.OwnRows(a.x.all, a.mlp.all)
	}
}

// mixture adds the experts of all ranks to x.
func (l *llama) mixture(ops Ops, a activations, m tensor.MoE) {
	x := a.x.all
	if l.p.alone() {
		ops.MoE(x, x, m)
		return
	}
	rows := x // under tensor parallelism all ranks have the same
	if l.p.attentionDP() {
		rows = a.all
		ops.GatherRows(rows, x)
	}
	ops.MoE(a.share, rows, m)
	ops.AddShares(x, a.share)
}
