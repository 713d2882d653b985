//go:build cuda

package cuda

import (
	"fmt"

	"tandem/engine/cuda/gemm"
	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	kernels "tandem/kernels/cuda"
)

// product multiplies rows [rows, k] bf16 at x with a weight: y = x*w^T, as a mode
// of the kernels says.
type product func(y, x, bias gpu.Ptr, rows int) error

// fewRows is the most rows that one pass over a weight serves. Decoding is bound
// by the reading of weights, so up to here they are read as they are stored.
const fewRows = 32

// weightScratch is the bytes of a quantised weight that are decoded at once for
// many rows.
const weightScratch = 64 << 20

// product prepares the kernels of a weight.
func (b *Backend) product(m matrix, mode int) (product, error) {
	if len(m.parts) > 0 {
		return b.stacked(m, mode)
	}
	stride := m.n
	if mode == kernels.OutGated {
		stride = m.n / 2
	}
	return b.columns(m, mode, stride, 0)
}

// into multiplies to a buffer, which may be a view of columns.
func (b *Backend) into(out *buffer, m matrix, mode int) (product, error) {
	if !out.view() {
		return b.product(m, mode)
	}
	if len(m.parts) > 0 {
		return nil, fmt.Errorf("a weight of several formats for a view is not supported on CUDA")
	}
	return b.columns(m, mode, out.stride, out.at)
}

// stacked multiplies with parts of several formats, each of which writes its
// columns of y.
func (b *Backend) stacked(m matrix, mode int) (product, error) {
	each := make([]product, len(m.parts))
	for i, p := range m.parts {
		var err error
		if each[i], err = b.columns(p, mode, m.n, 0); err != nil {
			return nil, err
		}
	}
	size := int64(outBytes(mode))
	return func(y, x, bias gpu.Ptr, rows int) error {
		at := 0
		for i, p := range m.parts {
			if err := each[i](y.At(int64(at)*size), x, biasAt(bias, at), rows); err != nil {
				return err
			}
			at += p.n
		}
		return nil
	}, nil
}

// outBytes is the size of an element of y.
func outBytes(mode int) int {
	if mode == kernels.OutGated || mode == kernels.OutBF16 {
		return 2
	}
	return 4
}

// columns prepares the kernels of a weight whose rows of y are stride elements
// apart. y is where the first begins, as far as its alignment goes.
func (b *Backend) columns(m matrix, mode, stride int, y gpu.Ptr) (product, error) {
	few := map[int]*kernel{}
	for _, n := range []int{8, 16, 32} {
		var err error
		if few[n], err = b.code.find(fmt.Sprintf("td_gemv_%s_r%d", m.format, n)); err != nil {
			return nil, err
		}
	}
	gemv := func(y, x, bias gpu.Ptr, rows int) error {
		n, err := b.gemvRows(rows)
		if err != nil {
			return err
		}
		b.args.Reset().Ptr(y).Ptr(m.at).Ptr(x).Ptr(bias).I32(rows).I32(m.n).I32(m.k).I32(mode).I32(kernels.SiLU).I32(stride)
		return b.launch(few[n], kernels.Gemv(m.n))
	}
	many := func(y, x, bias gpu.Ptr, rows int) error {
		return inPieces(gemv, m.k, stride*outBytes(mode), y, x, bias, rows)
	}
	var err error
	switch {
	case b.cfg.Deterministic:
	case b.multi != nil && m.n%8 == 0 && stride%8 == 0 && y%16 == 0 && (mode != kernels.OutGated || stride == m.n/2):
		many, err = b.manyRows(m, mode, stride)
	case m.format == kernels.FormatBF16:
		many, err = b.ownProduct(m, mode, stride)
	}
	if err != nil {
		return nil, err
	}
	return func(y, x, bias gpu.Ptr, rows int) error {
		switch {
		case rows == 0:
			return nil
		case rows <= fewRows:
			return gemv(y, x, bias, rows)
		}
		return many(y, x, bias, rows)
	}, nil
}

// gemvRows is kernels.GemvRows, or the same for all numbers of rows.
func (b *Backend) gemvRows(rows int) (int, error) {
	if b.cfg.Deterministic {
		rows = fewRows
	}
	return kernels.GemvRows(rows)
}

// ownProduct multiplies a plain weight by our own kernel, where cuBLASLt is not at
// hand or does not take the sizes.
func (b *Backend) ownProduct(m matrix, mode, stride int) (product, error) {
	k, err := b.large("td_gemm_bf16", kernels.Gemm(1, m.n))
	return func(y, x, bias gpu.Ptr, rows int) error {
		b.args.Reset().Ptr(y).Ptr(m.at).Ptr(x).Ptr(bias).I32(rows).I32(m.n).I32(m.k).I32(mode).I32(kernels.SiLU).I32(stride)
		return b.launch(k, kernels.Gemm(rows, m.n))
	}, err
}

// inPieces reads the weight again for every 32 rows: slow, and right for all sizes.
// k is the width of x, stride the bytes from row to row of y.
func inPieces(gemv product, k, stride int, y, x, bias gpu.Ptr, rows int) error {
	for at := 0; at < rows; at += fewRows {
		if err := gemv(y.At(int64(at)*int64(stride)), x.At(int64(at*k)*2), bias, min(fewRows, rows-at)); err != nil {
			return err
		}
	}
	return nil
}

// manyRows multiplies by cuBLASLt, a quantised weight in parts that are decoded to
// bf16 before.
func (b *Backend) manyRows(m matrix, mode, stride int) (product, error) {
	var dequant, act *kernel
	var err error
	part := m.n // rows of the weight at once
	if m.format != kernels.FormatBF16 {
		if dequant, err = b.code.find("td_dequant_" + m.format.String()); err != nil {
			return nil, err
		}
		part = min(part, max(16, weightScratch/2/m.k/16*16))
	}
	if act, err = b.code.find("td_act_mul_bf16"); err != nil {
		return nil, err
	}
	return func(y, x, bias gpu.Ptr, rows int) error {
		to, between, out, size := y, stride, gemm.F32, outBytes(mode)
		if mode == kernels.OutGated {
			to, between = b.scratch.wide, m.n
		}
		if size == 2 {
			out = gemm.BF16
		}
		for at := 0; at < m.n; at += part {
			n, w := min(part, m.n-at), m.at
			if dequant != nil {
				w = b.scratch.weight
				b.args.Reset().Ptr(w).Ptr(m.at.At(m.format.Bytes(at, m.k))).I32(n).I32(m.k)
				if err := b.launch(dequant, kernels.Dequant(n, m.k)); err != nil {
					return err
				}
			}
			op := gemm.Op{M: rows, N: n, K: m.k, In: gemm.BF16, Out: out, Add: mode == kernels.OutAdd, Bias: bias != 0, StrideY: between}
			b.progress.Add(1)
			if b.dry {
				if err := b.multi.Prepare(b.stream, op); err != nil {
					return err
				}
				continue
			}
			if err := b.multi.Multiply(b.stream, op, to.At(int64(at*size)), x, w, biasAt(bias, at)); err != nil {
				return err
			}
		}
		if mode != kernels.OutGated {
			return nil
		}
		b.args.Reset().Ptr(y).Ptr(to).I32(m.n / 2).I32(kernels.SiLU)
		return b.launch(act, kernels.ActMul(rows, m.n/2))
	}, nil
}

func biasAt(bias gpu.Ptr, row int) gpu.Ptr {
	if bias == 0 {
		return 0
	}
	return bias.At(4 * int64(row))
}

// openScratch allocates what steps need between buffers.
func (b *Backend) openScratch() (err error) {
	s, kv := &b.scratch, b.cfg.KV
	rows := int64(max(b.cfg.MaxRows, b.cfg.sharedRows()))
	var in, out int // widest input of a product and widest output that is no buffer
	for i := range b.Ops {
		op := &b.Ops[i]
		if op.W < 0 {
			continue
		}
		m := b.matrices[op.W]
		in = max(in, m.k) // MoE has the router, whose inputs are its experts'
		if op.Kind == pass.AttnInput || op.Kind == pass.GatedMLP {
			out = max(out, m.n)
		}
		if a := op.Input; a != nil && b.decode.Name == "" {
			if b.decode, err = kernels.DecodeKernel(b.kvType, kv.HeadDim, a.Heads/kv.KVHeads); err != nil {
				return err
			}
			if b.prefill, err = kernels.PrefillKernel(b.kvType, kv.HeadDim, a.Heads/kv.KVHeads); err != nil {
				return err
			}
			b.heads = a.Heads
		}
	}
	launch := b.decode.Launch(b.dev.Info().Multi)
	for _, a := range []struct {
		to    *gpu.Ptr
		bytes int64
	}{
		{&s.normed, rows * int64(in) * 2},
		{&s.wide, rows * int64(out) * 4},
		{&s.weight, weightScratch},
		{&s.partial, int64(b.decode.Partial(launch))},
		{&s.counter, 4 * int64(b.decode.Counters(b.cfg.MaxRows, b.heads, kv.KVHeads))},
		{&s.rope, rows * int64(kv.HeadDim) * 4},
		{&s.attended, int64(b.cfg.MaxRows) * int64(b.heads*kv.HeadDim) * 2},
		{&s.logits, int64(b.cfg.MaxSeqs) * int64(b.Vocab) * 4},
	} {
		if *a.to, err = b.alloc(a.bytes); err != nil {
			return fmt.Errorf("scratch memory of a step: %w; lower max_num_tokens or max_batch_size", err)
		}
	}
	if b.multi != nil && !b.cfg.Deterministic { // now, and not in the first step with many rows
		if err := b.multi.Reserve(b.stream); err != nil {
			return fmt.Errorf("%w; lower kv_cache_config.free_gpu_memory_fraction or max_num_tokens", err)
		}
		s.bytes += gemm.DefaultWorkspace
	}
	if s.host, err = b.allocPinned(int64(b.cfg.MaxSeqs) * int64(b.Vocab) * 4); err != nil {
		return err
	}
	if err := b.openMoE(int(rows)); err != nil {
		return err
	}
	if err := b.openStage(); err != nil {
		return err
	}
	return b.stream.Fill(s.counter, 0, 4*int64(b.decode.Counters(b.cfg.MaxRows, b.heads, kv.KVHeads)))
}
