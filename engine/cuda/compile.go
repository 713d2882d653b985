//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// step queues one op of the pass.
type step func(s *shape) error

// Seal ends the recording, loads the kernels and allocates what steps need. It
// returns the first error of the recording, or says that the output matrix has not
// vocab rows.
func (b *Backend) Seal(vocab int) error {
	if err := b.Recorder.Seal(vocab); err != nil {
		return err
	}
	err := b.dev.Do(func() error {
		if err := b.prepare(); err != nil {
			return err
		}
		for i := range b.Ops {
			st, err := b.compile(&b.Ops[i])
			if err != nil {
				return err
			}
			b.steps = append(b.steps, st)
		}
		if err := b.stream.Sync(); err != nil {
			return err
		}
		return b.capture()
	})
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	for i := range b.matrices {
		b.matrices[i].plain = nil
	}
	b.runnable = true
	return nil
}

// prepare allocates buffers, input and scratch.
func (b *Backend) prepare() error {
	if err := b.place(); err != nil {
		return err
	}
	if err := b.openInput(); err != nil {
		return err
	}
	if err := b.openSampling(); err != nil {
		return err
	}
	return b.openScratch()
}

func (b *Backend) compile(op *pass.Op) (step, error) {
	switch op.Kind {
	case pass.Embed:
		return b.embed(op)
	case pass.AttnInput:
		return b.attnInput(op)
	case pass.Attention:
		return b.attention(op)
	case pass.AddLinear:
		return b.addLinear(op)
	case pass.GatedMLP:
		return b.gatedMLP(op)
	case pass.MoE:
		return b.moe(op)
	case pass.Logits:
		return b.logits(op)
	case pass.GatherColumns:
		return b.gatherColumns(b.buffers[op.Out], op.Cuts, nil)
	case pass.GatherRows:
		return b.gatherRows(op)
	case pass.OwnRows:
		return b.ownRows(op)
	case pass.AddShares:
		return b.addShares(op)
	}
	return nil, fmt.Errorf("op %d is not supported on CUDA", op.Kind)
}

func (b *Backend) embed(op *pass.Op) (step, error) {
	m, out := b.matrices[op.W], b.buffers[op.Out].at
	if m.format == kernels.FormatBF16 {
		k, err := b.code.find("td_embed")
		return func(s *shape) error {
			b.args.Reset().Ptr(out).Ptr(m.at).Ptr(b.input.ids).I32(m.k).I32(m.n)
			return b.launch(k, kernels.Embed(s.rows))
		}, err
	}
	k, err := b.code.find("td_embed_" + m.format.String())
	return func(s *shape) error {
		b.args.Reset().Ptr(out).Ptr(m.at).Ptr(b.input.ids).I32(m.n).I32(m.k)
		return b.launch(k, kernels.EmbedPacked(s.rows))
	}, err
}

// norm queues the RMSNorm of a buffer to scratch.normed.
func (b *Backend) norm(op *pass.Op) (step, error) {
	x, weight := b.buffers[op.In], b.vectors[op.Norm]
	if x.view() {
		return nil, fmt.Errorf("the norm of a view is not supported on CUDA")
	}
	k, err := b.code.find("td_rmsnorm")
	return func(s *shape) error {
		rows := s.rowsOf(&x)
		b.args.Reset().Ptr(b.scratch.normed).Ptr(x.at).Ptr(0).Ptr(weight).I32(x.width).F32(op.Eps)
		return b.launch(k, kernels.Norm(rows))
	}, err
}

func (b *Backend) attnInput(op *pass.Op) (step, error) {
	a := op.Input
	norm, err := b.norm(op)
	if err != nil {
		return nil, err
	}
	project, err := b.product(b.matrices[op.W], kernels.OutStore)
	if err != nil {
		return nil, err
	}
	k, err := b.code.find("td_qkv")
	if err != nil {
		return nil, err
	}
	table, err := b.rotation(&a.RoPE)
	if err != nil {
		return nil, err
	}
	b.heads = a.Heads
	keys, values := b.cache(a.Layer)
	q, adjacent := b.buffers[op.Out], 0
	if a.RoPE.Adjacent {
		adjacent = 1
	}
	bias, qNorm, kNorm := b.vector(a.Bias), b.vector(a.QNorm), b.vector(a.KNorm)
	return func(s *shape) error {
		if err := norm(s); err != nil {
			return err
		}
		if err := project(b.scratch.wide, b.scratch.normed, 0, s.rows); err != nil {
			return err
		}
		if err := table(s); err != nil {
			return err
		}
		b.args.Reset().Ptr(q.at).Ptr(keys).Ptr(values).Ptr(b.scratch.wide).Ptr(bias).Ptr(qNorm).Ptr(kNorm).
			Ptr(b.scratch.rope).Ptr(b.input.slot).I32(a.Heads).I32(a.KVHeads).I32(a.HeadDim).I32(a.RoPE.Dims).
			I32(adjacent).I32(b.cfg.KV.BlockTokens).I64(b.blockStride()).I32(int(b.kvType)).F32(a.Eps).F32(1).F32(1)
		return b.launch(k, kernels.QKV(s.rows, a.Heads, a.KVHeads))
	}, nil
}

// cache is where the keys and values of a layer begin in the first block.
func (b *Backend) cache(layer int) (keys, values gpu.Ptr) {
	kv := b.cfg.KV
	part := int64(kv.KVHeads * kv.BlockTokens * kv.HeadDim * b.kvType.Bytes())
	keys = b.blocks.pool.At(2 * int64(layer) * part)
	return keys, keys.At(part)
}

// blockStride is the elements from block to block.
func (b *Backend) blockStride() int64 { return b.blocks.bytes / int64(b.kvType.Bytes()) }

// rotation queues the table of sines and cosines, unless the layer before had the
// same, as is so in all models there are.
func (b *Backend) rotation(r *tensor.RoPE) (step, error) {
	if r.Dims == 0 || b.rotates != nil && sameRotation(b.rotates, r) {
		return func(*shape) error { return nil }, nil
	}
	b.rotates = r
	p, err := b.put(floatBytes(r.InvFreq))
	if err != nil {
		return nil, err
	}
	b.scratch.owned = append(b.scratch.owned, p)
	k, err := b.code.find("td_rope_table")
	return func(s *shape) error {
		b.args.Reset().Ptr(b.scratch.rope).Ptr(b.input.position).Ptr(p).I32(s.rows).I32(r.Dims / 2).F32(r.Scale)
		return b.launch(k, kernels.RopeTable(s.rows, r.Dims/2))
	}, err
}

func sameRotation(p, q *tensor.RoPE) bool {
	return p.Dims == q.Dims && p.Scale == q.Scale && slices.Equal(p.InvFreq, q.InvFreq)
}

func (b *Backend) addLinear(op *pass.Op) (step, error) {
	in, out := b.buffers[op.In], b.buffers[op.Out]
	if in.view() {
		return nil, fmt.Errorf("a product with a view is not supported on CUDA")
	}
	project, err := b.into(&out, b.matrices[op.W], kernels.OutAdd)
	bias := b.vector(op.Bias)
	return func(s *shape) error { return project(out.at, in.at, bias, s.rowsOf(&out)) }, err
}

func (b *Backend) gatedMLP(op *pass.Op) (step, error) {
	norm, err := b.norm(op)
	if err != nil {
		return nil, err
	}
	out := b.buffers[op.Out]
	project, err := b.into(&out, b.matrices[op.W], kernels.OutGated)
	return func(s *shape) error {
		if err := norm(s); err != nil {
			return err
		}
		return project(out.at, b.scratch.normed, 0, s.rowsOf(&out))
	}, err
}

// logits computes those of the chosen rows into scratch.logits; with cuts, this
// rank's columns, and gathers the others'.
func (b *Backend) logits(op *pass.Op) (step, error) {
	x, weight, m := b.buffers[op.In], b.vectors[op.Norm], b.matrices[op.W]
	k, err := b.code.find("td_norm_rows")
	if err != nil {
		return nil, err
	}
	out := buffer{at: b.scratch.logits, size: 4, width: m.n, stride: b.Vocab}
	gather := func(*shape) error { return nil }
	if op.Cuts != nil {
		all := buffer{at: out.at, size: 4, width: b.Vocab, stride: b.Vocab}
		if gather, err = b.gatherColumns(all, op.Cuts, func(s *shape) int { return s.logits }); err != nil {
			return nil, err
		}
		out.at = out.at.At(4 * int64(op.Cuts[b.cfg.Group.ID()]))
	}
	project, err := b.into(&out, m, kernels.OutStore)
	return func(s *shape) error {
		if s.logits == 0 {
			return gather(s)
		}
		b.args.Reset().Ptr(b.scratch.normed).Ptr(x.at).Ptr(b.input.logitRows).Ptr(weight).I32(x.width).F32(op.Eps)
		if err := b.launch(k, kernels.Norm(s.logits)); err != nil {
			return err
		}
		if err := project(out.at, b.scratch.normed, 0, s.logits); err != nil {
			return err
		}
		return gather(s)
	}, err
}

func (b *Backend) vector(h tensor.Vector) gpu.Ptr {
	if h == tensor.None {
		return 0
	}
	return b.vectors[h]
}

// rowsOf is the rows of a buffer in this step.
func (s *shape) rowsOf(b *buffer) int {
	if !b.shared {
		return s.rows
	}
	total := 0
	for _, n := range s.batch.RankRows {
		total += n
	}
	return total
}
