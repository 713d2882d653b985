package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/engine/tensor"
)

// Build loads a rank's part of the checkpoint's weights into ops and records one
// forward pass. The zero Parallel is the whole model. An error names the tensor
// that is missing, misshapen or refused by ops, or is that of p.Check.
func Build(ops Ops, ck *Checkpoint, p Parallel) error {
	if !knownArch(ck.Config.Arch) {
		return unsupportedArch(ck.Config.Arch)
	}
	if err := p.Check(&ck.Config); err != nil {
		return err
	}
	// Llama, Mistral, Qwen2, Qwen3, dense or of experts, and Gemma 3 differ only in
	// what Config says.
	l := &llama{loader: loader{ops: ops, ck: ck}, c: &ck.Config, p: p}
	l.divide()
	if err := l.load(); err != nil {
		return fmt.Errorf("model %s: %w", ck.Path, err)
	}
	l.record(ops)
	return nil
}

// loader fetches tensors and hands them to ops; the first error sticks.
type loader struct {
	ops Ops
	ck  *Checkpoint
	err error
}

// tensor fetches a tensor as it is stored; what goes to ops is decoded there if
// the checkpoint says so, so that no rank decodes the rows of others.
func (l *loader) tensor(name string, shape ...int) tensor.Host {
	if l.err != nil {
		return tensor.Host{}
	}
	h, err := l.ck.stored(l.ck.fileName(name), shape...)
	l.err = err
	return h
}

func (l *loader) vector(parts ...tensor.Host) tensor.Vector {
	if l.decode(parts); l.err != nil {
		return tensor.None
	}
	v, err := l.ops.Vector(parts...)
	l.err = err
	return v
}

func (l *loader) matrix(parts ...tensor.Host) tensor.Matrix {
	if l.decode(parts); l.err != nil {
		return tensor.None
	}
	m, err := l.ops.Matrix(parts...)
	l.err = err
	return m
}

func (l *loader) gateUp(gate, up tensor.Host) tensor.Matrix {
	parts := []tensor.Host{gate, up}
	if l.decode(parts); l.err != nil {
		return tensor.None
	}
	m, err := l.ops.GateUp(parts[0], parts[1])
	l.err = err
	return m
}

// decode turns parts to float32 if the checkpoint was opened so.
func (l *loader) decode(parts []tensor.Host) {
	for i := range parts {
		if l.err == nil && l.ck.f32 {
			parts[i], l.err = toF32(parts[i])
		}
	}
}

// norm loads the weight of an RMSNorm. Hugging Face folders have Gemma's less one.
func (l *loader) norm(h tensor.Host) tensor.Vector {
	if l.err == nil && l.ck.Config.Arch == archGemma3 && l.ck.Format == FormatSafetensors {
		h, l.err = plusOne(h)
	}
	return l.vector(h)
}

// plusOne returns a vector in F32 with one added to each value.
func plusOne(h tensor.Host) (tensor.Host, error) {
	values := make([]float32, h.Elems())
	if err := tensor.Dequantize(values, h); err != nil {
		return h, err
	}
	h.DType, h.Data = tensor.F32, make([]byte, 0, 4*len(values))
	for _, x := range values {
		h.Data = binary.LittleEndian.AppendUint32(h.Data, math.Float32bits(x+1))
	}
	return h, nil
}

// rowRange returns rows of a weight, or elements of a vector.
func (l *loader) rowRange(h tensor.Host, first, n int) tensor.Host {
	if l.err != nil {
		return h
	}
	if len(h.Shape) > 1 {
		return h.RowRange(first, n)
	}
	if n == h.Elems() {
		return h
	}
	if h.DType.GroupElems() > 1 { // a range may begin inside a group
		if h, l.err = toF32(h); l.err != nil {
			return h
		}
	}
	h.Shape = []int{h.Elems(), 1}
	h = h.RowRange(first, n)
	h.Shape = []int{n}
	return h
}

// llama is the Llama family: pre-norm blocks of grouped-query attention with
// rotary positions and a SiLU-gated MLP, or a mixture of such MLPs.
type llama struct {
	loader
	c         *Config
	p         Parallel
	rows      division
	embed     tensor.Matrix
	layers    []llamaLayer
	finalNorm tensor.Vector
	head      tensor.Matrix
}

// division says where the rows of the weights that yield an activation, and so
// its columns, are cut; nil where each rank computes them all.
type division struct {
	attended []int // query heads, times their width
	out      []int // hidden, of the attention's output projection
	gated    []int // inter
	down     []int // hidden, of the dense MLP's output
	vocab    []int
}

type llamaLayer struct {
	attnNorm, qNorm, kNorm, qkvBias, outBias, mlpNorm tensor.Vector
	postAttn, postMLP                                 tensor.Vector // norms of what attention and MLP add, or None
	qkv, out, gateUp, down                            tensor.Matrix
	moe                                               *tensor.MoE // instead of gateUp and down
}

func (l *llama) divide() {
	c, p := l.c, l.p
	if p.tensor() {
		for _, head := range p.headCuts(c) {
			l.rows.attended = append(l.rows.attended, head*c.HeadDim)
		}
		l.rows.out, l.rows.vocab = p.cuts(c.Hidden), p.cuts(c.Vocab)
	}
	if p.tensor() || p.gathersMLP() {
		l.rows.gated, l.rows.down = p.cuts(c.Inter), p.cuts(c.Hidden)
	}
}

// part returns this rank's rows of a weight or its elements of a vector.
func (l *llama) part(h tensor.Host, cuts []int) tensor.Host {
	if cuts == nil {
		return h
	}
	return l.rowRange(h, cuts[l.p.Rank], cuts[l.p.Rank+1]-cuts[l.p.Rank])
}

func (l *llama) load() error {
	c := l.c
	table := l.tensor("token_embd.weight", c.Vocab, c.Hidden)
	l.embed = l.matrix(table)
	for i := range c.Layers {
		l.layers = append(l.layers, l.loadLayer(i))
		if l.err != nil {
			return l.err
		}
	}
	l.finalNorm = l.norm(l.tensor("output_norm.weight", c.Hidden))
	switch {
	case !c.Tied:
		l.head = l.matrix(l.part(l.tensor("output.weight", c.Vocab, c.Hidden), l.rows.vocab))
	case l.rows.vocab != nil:
		l.head = l.matrix(l.part(table, l.rows.vocab))
	default:
		l.head = l.embed
	}
	return l.err
}

func (l *llama) loadLayer(i int) llamaLayer {
	c := l.c
	get := func(part string, shape ...int) tensor.Host {
		return l.tensor(fmt.Sprintf("blk.%d.%s", i, part), shape...)
	}
	y := llamaLayer{
		qNorm: tensor.None, kNorm: tensor.None, qkvBias: tensor.None, outBias: tensor.None, postAttn: tensor.None, postMLP: tensor.None,
	}
	y.attnNorm = l.norm(get("attn_norm.weight", c.Hidden))
	y.qkv = l.matrix(l.qkv(i, "weight", c.Hidden)...)
	if c.QKVBias {
		y.qkvBias = l.vector(l.qkv(i, "bias")...)
	}
	if c.QKNorm {
		y.qNorm = l.norm(get("attn_q_norm.weight", c.HeadDim))
		y.kNorm = l.norm(get("attn_k_norm.weight", c.HeadDim))
	}
	y.out = l.matrix(l.part(get("attn_output.weight", c.Hidden, c.Heads*c.HeadDim), l.rows.out))
	if c.OutBias {
		y.outBias = l.vector(l.part(get("attn_output.bias", c.Hidden), l.rows.out))
	}
	y.mlpNorm = l.norm(get("ffn_norm.weight", c.Hidden))
	if c.Arch == archGemma3 {
		y.postAttn = l.norm(get("post_attention_norm.weight", c.Hidden))
		y.postMLP = l.norm(get("post_ffw_norm.weight", c.Hidden))
	}
	if c.MoE.Sparse(i) {
		y.moe = l.loadExperts(i, y.mlpNorm)
		return y
	}
	y.gateUp = l.gateUp(
		l.part(get("ffn_gate.weight", c.Inter, c.Hidden), l.rows.gated),
		l.part(get("ffn_up.weight", c.Inter, c.Hidden), l.rows.gated))
	y.down = l.matrix(l.part(get("ffn_down.weight", c.Hidden, c.Inter), l.rows.down))
	return y
}

// qkv fetches the rows of the rank's heads of a layer's query, key and value
// weights, or biases without cols.
func (l *llama) qkv(layer int, kind string, cols ...int) []tensor.Host {
	c := l.c
	q, heads := l.p.Heads(c)
	kv, kvHeads := l.p.KVHeads(c)
	get := func(part string, all, first, n int) tensor.Host {
		h := l.tensor(fmt.Sprintf("blk.%d.%s.%s", layer, part, kind), append([]int{all * c.HeadDim}, cols...)...)
		return l.rowRange(h, first*c.HeadDim, n*c.HeadDim)
	}
	return []tensor.Host{
		get("attn_q", c.Heads, q, heads), get("attn_k", c.KVHeads, kv, kvHeads), get("attn_v", c.KVHeads, kv, kvHeads),
	}
}
