package model

import (
	"fmt"
	"math"
	"slices"

	"tandem/engine/tensor"
)

// Build loads the checkpoint's weights into ops and records one forward pass.
// An error names the tensor that is missing, misshapen or refused by ops.
func Build(ops Ops, ck *Checkpoint) error {
	if !knownArch(ck.Config.Arch) {
		return unsupportedArch(ck.Config.Arch)
	}
	// Llama, Mistral, Qwen2 and Qwen3, dense or of experts, differ only in what
	// Config says.
	l := &llama{loader: loader{ops: ops, ck: ck}, c: &ck.Config}
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

func (l *loader) tensor(name string, shape ...int) tensor.Host {
	if l.err != nil {
		return tensor.Host{}
	}
	h, err := l.ck.Tensor(name, shape...)
	l.err = err
	return h
}

func (l *loader) vector(parts ...tensor.Host) tensor.Vector {
	if l.err != nil {
		return tensor.None
	}
	v, err := l.ops.Vector(parts...)
	l.err = err
	return v
}

func (l *loader) matrix(parts ...tensor.Host) tensor.Matrix {
	if l.err != nil {
		return tensor.None
	}
	m, err := l.ops.Matrix(parts...)
	l.err = err
	return m
}

func (l *loader) gateUp(gate, up tensor.Host) tensor.Matrix {
	if l.err != nil {
		return tensor.None
	}
	m, err := l.ops.GateUp(gate, up)
	l.err = err
	return m
}

// llama is the Llama family: pre-norm blocks of grouped-query attention with
// rotary positions and a SiLU-gated MLP, or a mixture of such MLPs.
type llama struct {
	loader
	c         *Config
	embed     tensor.Matrix
	layers    []llamaLayer
	finalNorm tensor.Vector
	head      tensor.Matrix
}

type llamaLayer struct {
	attnNorm, qNorm, kNorm, qkvBias, outBias, mlpNorm tensor.Vector
	qkv, out, gateUp, down                            tensor.Matrix
	moe                                               *tensor.MoE // instead of mlpNorm, gateUp and down
}

func (l *llama) load() error {
	c := l.c
	l.embed = l.matrix(l.tensor("token_embd.weight", c.Vocab, c.Hidden))
	for i := range c.Layers {
		l.layers = append(l.layers, l.loadLayer(i))
		if l.err != nil {
			return l.err
		}
	}
	l.finalNorm = l.vector(l.tensor("output_norm.weight", c.Hidden))
	l.head = l.embed
	if !c.Tied {
		l.head = l.matrix(l.tensor("output.weight", c.Vocab, c.Hidden))
	}
	return l.err
}

func (l *llama) loadLayer(i int) llamaLayer {
	c := l.c
	qDim, kvDim := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	get := func(part string, shape ...int) tensor.Host {
		return l.tensor(fmt.Sprintf("blk.%d.%s", i, part), shape...)
	}
	y := llamaLayer{qNorm: tensor.None, kNorm: tensor.None, qkvBias: tensor.None, outBias: tensor.None}
	y.attnNorm = l.vector(get("attn_norm.weight", c.Hidden))
	y.qkv = l.matrix(get("attn_q.weight", qDim, c.Hidden), get("attn_k.weight", kvDim, c.Hidden), get("attn_v.weight", kvDim, c.Hidden))
	if c.QKVBias {
		y.qkvBias = l.vector(get("attn_q.bias", qDim), get("attn_k.bias", kvDim), get("attn_v.bias", kvDim))
	}
	if c.QKNorm {
		y.qNorm = l.vector(get("attn_q_norm.weight", c.HeadDim))
		y.kNorm = l.vector(get("attn_k_norm.weight", c.HeadDim))
	}
	y.out = l.matrix(get("attn_output.weight", c.Hidden, qDim))
	if c.OutBias {
		y.outBias = l.vector(get("attn_output.bias", c.Hidden))
	}
	y.mlpNorm = l.vector(get("ffn_norm.weight", c.Hidden))
	if c.MoE.Sparse(i) {
		y.moe = l.loadExperts(i, y.mlpNorm)
		return y
	}
	y.gateUp = l.gateUp(get("ffn_gate.weight", c.Inter, c.Hidden), get("ffn_up.weight", c.Inter, c.Hidden))
	y.down = l.matrix(get("ffn_down.weight", c.Hidden, c.Inter))
	return y
}

func (l *llama) record(ops Ops) {
	c := l.c
	x := ops.Buffer(c.Hidden)
	q := ops.Buffer(c.Heads * c.HeadDim)
	attended := ops.Buffer(c.Heads * c.HeadDim)
	gated := tensor.Buffer(tensor.None)
	if slices.ContainsFunc(l.layers, func(y llamaLayer) bool { return y.moe == nil }) {
		gated = ops.Buffer(c.Inter)
	}
	rope := c.RoPE.Tensor()
	scale := float32(1 / math.Sqrt(float64(c.HeadDim)))

	ops.Embed(x, l.embed)
	for i, y := range l.layers {
		ops.AttnInput(q, x, tensor.AttnInput{
			Layer: i, Norm: y.attnNorm, Eps: c.Eps, QKV: y.qkv, Bias: y.qkvBias, QNorm: y.qNorm, KNorm: y.kNorm,
			Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, RoPE: rope,
		})
		ops.Attention(attended, q, tensor.Attn{Layer: i, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Scale: scale})
		ops.AddLinear(x, attended, y.out, y.outBias)
		if y.moe != nil {
			ops.MoE(x, x, *y.moe)
			continue
		}
		ops.GatedMLP(gated, x, y.mlpNorm, c.Eps, y.gateUp)
		ops.AddLinear(x, gated, y.down, tensor.None)
	}
	ops.Logits(x, l.finalNorm, c.Eps, l.head, nil)
}
