//go:build cuda

package cuda

import (
	"fmt"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
)

// attention is two kernels: one for sequences with one new token, which divide
// the reading of the cache among all multiprocessors, and one for chunks.
func (b *Backend) attention(op *pass.Op) (step, error) {
	a := op.Attn
	if a.Window > 0 {
		return nil, fmt.Errorf("attention to a window of %d is not supported on CUDA: bound requests by it", a.Window)
	}
	one, err := b.code.find(b.decode.Name)
	if err != nil {
		return nil, err
	}
	chunks, err := b.large(b.prefill.Name, b.prefill.Launch(1, a.KVHeads))
	if err != nil {
		return nil, err
	}
	keys, values := b.cache(a.Layer)
	q, out, l := b.buffers[op.In], b.buffers[op.Out], b.decode.Launch(b.dev.Info().Multi)
	if q.view() {
		return nil, fmt.Errorf("attention of a view is not supported on CUDA")
	}
	to := out.at
	if out.view() {
		to = b.scratch.attended
	}
	in := &b.input
	begin := func() *gpu.Args { return b.args.Reset().Ptr(to).Ptr(q.at).Ptr(keys).Ptr(values) }
	geometry := func() {
		b.args.I32(a.Heads).I32(a.KVHeads).I32(a.HeadDim).I32(b.cfg.KV.BlockTokens).I64(b.blockStride()).F32(a.Scale).F32(1)
	}
	return func(s *shape) error {
		if s.entries > 0 {
			begin().Ptr(in.row).Ptr(in.length).Ptr(in.pageStart).Ptr(in.pages).Ptr(in.tiles).Ptr(b.scratch.partial).
				Ptr(b.scratch.counter).I32(s.entries)
			geometry()
			if err := b.launch(one, l); err != nil {
				return err
			}
		}
		if s.tiles > 0 {
			begin().Ptr(in.chunks).Ptr(in.seqRow).Ptr(in.seqPos).Ptr(in.seqPage).Ptr(in.pages)
			geometry()
			if err := b.launch(chunks, b.prefill.Launch(s.tiles, a.KVHeads)); err != nil {
				return err
			}
		}
		if !out.view() {
			return nil
		}
		row := int64(out.width * out.size)
		return b.stream.CopyRows(out.at, int64(out.stride*out.size), to, row, row, s.rows)
	}, nil
}
