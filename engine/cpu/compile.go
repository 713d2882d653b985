package cpu

import (
	"fmt"

	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// Seal ends the recording and allocates what steps need. It returns the first
// error of the recording, or says that the output matrix has not vocab rows.
func (b *Backend) Seal(vocab int) error {
	if err := b.Recorder.Seal(vocab); err != nil {
		return err
	}
	for i, buf := range b.Buffers {
		var err error
		if buf.Root == tensor.Buffer(i) {
			_, err = b.prog.Buffer(buf.Width, buf.Shared)
		} else {
			_, err = b.prog.View(int(buf.Root), buf.First, buf.Width)
		}
		if err != nil {
			return fmt.Errorf("seal: %w", err)
		}
	}
	for i := range b.Ops {
		if err := b.compile(&b.Ops[i]); err != nil {
			return fmt.Errorf("seal: %w", err)
		}
	}
	if err := b.prog.Seal(); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	b.segments = append(b.segments, b.open)
	b.runnable = true
	return nil
}

// kinds are the ops that are one native op each.
var kinds = map[pass.Kind]kernels.OpKind{
	pass.Embed: kernels.Embed, pass.AttnInput: kernels.AttnInput, pass.Attention: kernels.Attention, pass.AddLinear: kernels.AddLinear,
	pass.GatedMLP: kernels.GatedMLP, pass.MoE: kernels.MoE, pass.Logits: kernels.Logits, pass.OwnRows: kernels.OwnRows,
	pass.Scale: kernels.Scale, pass.Linear: kernels.Linear, pass.AddNorm: kernels.AddNorm, pass.GatedGELU: kernels.GatedGELU,
}

// compile adds an op to the program, and its collective behind or before it.
func (b *Backend) compile(op *pass.Op) error {
	switch op.Kind {
	case pass.GatherColumns:
		return b.gatherBuffer(op)
	case pass.GatherRows:
		b.gatherRows(op)
		return nil
	case pass.AddShares:
		return b.addShares(op)
	}
	n := kernels.Op{
		Kind: kinds[op.Kind], In: int(op.In), Out: int(op.Out), Eps: op.Eps, Cuts: kernels.NoCuts,
		W: b.matrix(op.W), Norm: b.vector(op.Norm), Bias: b.vector(op.Bias),
	}
	var err error
	switch op.Kind {
	case pass.AttnInput:
		a := op.Input
		n.Layer, n.Heads, n.QNorm, n.KNorm = a.Layer, a.Heads, b.vector(a.QNorm), b.vector(a.KNorm)
		n.Rope, err = b.prog.Rope(a.RoPE.Dims, a.RoPE.Adjacent, a.RoPE.Scale, a.RoPE.InvFreq)
	case pass.Attention:
		n.Layer, n.Heads, n.Scale = op.Attn.Layer, op.Attn.Heads, op.Attn.Scale
		n.Window = op.Attn.Window
	case pass.Scale:
		n.Scale = op.Factor
	case pass.MoE:
		n.Experts, err = b.experts(op.MoE)
	case pass.Logits:
		return b.logits(op, n)
	}
	if err != nil {
		return err
	}
	return b.add(n)
}

// add adds a native op to the open segment.
func (b *Backend) add(op kernels.Op) error {
	if err := b.prog.Add(op); err != nil {
		return err
	}
	b.open.to++
	if op.Kind != kernels.Logits && op.In >= 0 && b.Buffers[op.Out].Shared {
		b.open.shared = true
	}
	return nil
}

func (b *Backend) matrix(h tensor.Matrix) *kernels.Matrix {
	if h == tensor.None {
		return nil
	}
	return b.matrices[h]
}

func (b *Backend) vector(h tensor.Vector) []float32 {
	if h == tensor.None {
		return nil
	}
	return b.vectors[h]
}

func (b *Backend) experts(m *tensor.MoE) (int, error) {
	gateUp, down := make([]*kernels.Matrix, len(m.Down)), make([]*kernels.Matrix, len(m.Down))
	for i := range m.Down {
		gateUp[i], down[i] = b.matrix(m.GateUp[i]), b.matrix(m.Down[i])
	}
	return b.prog.Experts(m.Used, m.Renorm, m.First, gateUp, down)
}

// logits are gathered if every rank has some of the vocabulary's rows.
func (b *Backend) logits(op *pass.Op, n kernels.Op) (err error) {
	if op.Cuts == nil {
		return b.add(n)
	}
	if n.Cuts, err = b.cuts(op.Cuts); err != nil {
		return err
	}
	if err := b.add(n); err != nil {
		return err
	}
	return b.gatherColumns(kernels.OfLogits, n.Cuts, op.Cuts, "logits",
		func(batch *tensor.Batch) int { return len(batch.LogitRows) }, b.prog.Logits)
}
