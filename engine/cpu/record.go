package cpu

import (
	"fmt"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// record keeps the first error; later ops may depend on what is missing.
func (b *Backend) record(op kernels.Op, checks ...error) {
	if b.closed {
		b.fail(ErrClosed)
	}
	if b.sealed {
		b.fail(fmt.Errorf("record: the forward pass is sealed"))
	}
	for _, err := range checks {
		b.fail(err)
	}
	if b.err != nil {
		return
	}
	if err := b.prog.Add(op); err != nil {
		b.fail(err)
		return
	}
	b.open.to++
	if op.Kind != kernels.Logits && op.In >= 0 && b.buffers[op.Out].shared {
		b.open.shared = true
	}
}

func (b *Backend) fail(err error) {
	if b.err == nil && err != nil {
		b.err = err
	}
}

var noMatrix = &kernels.Matrix{}

func (b *Backend) matrix(op string, h tensor.Matrix, interleaved bool) (*kernels.Matrix, error) {
	if int(h) < 0 || int(h) >= len(b.matrices) {
		return noMatrix, fmt.Errorf("%s: not a matrix", op)
	}
	m := b.matrices[h]
	if m.Interleaved != interleaved {
		return noMatrix, fmt.Errorf("%s: the matrix was loaded for another use (GateUp belongs to GatedMLP and MoE)", op)
	}
	return m, nil
}

// vector checks a handle; absent ones give nil if optional.
func (b *Backend) vector(op, name string, h tensor.Vector, size int, optional bool) ([]float32, error) {
	if h == tensor.None && optional {
		return nil, nil
	}
	if int(h) < 0 || int(h) >= len(b.vectors) {
		return nil, fmt.Errorf("%s: %s is not a vector", op, name)
	}
	if n := len(b.vectors[h]); n != size {
		return nil, fmt.Errorf("%s: %s has %d values, must have %d", op, name, n, size)
	}
	return b.vectors[h], nil
}

// Embed sets out to the table's rows of the batch's tokens.
func (b *Backend) Embed(out tensor.Buffer, table tensor.Matrix) {
	m, err := b.matrix("embed", table, false)
	b.record(kernels.Op{Kind: kernels.Embed, Out: int(out), W: m}, err, b.buffer("embed", "output", out, m.Cols), b.ownRows("embed", out))
	if b.tokens == 0 || m.Rows < b.tokens {
		b.tokens = m.Rows
	}
}

// AttnInput projects x to q, k and v, rotates q and k, writes k and v to the
// cache and sets q [heads*headDim].
func (b *Backend) AttnInput(q, x tensor.Buffer, a tensor.AttnInput) {
	const op = "attention input"
	m, err := b.matrix(op, a.QKV, false)
	norm, err1 := b.vector(op, "norm", a.Norm, m.Cols, false)
	bias, err2 := b.vector(op, "bias", a.Bias, m.Rows, true)
	qNorm, err3 := b.vector(op, "query norm", a.QNorm, a.HeadDim, true)
	kNorm, err4 := b.vector(op, "key norm", a.KNorm, a.HeadDim, true)
	rope, err5 := b.rope(a)
	var err6 error
	if want := (a.Heads + 2*a.KVHeads) * a.HeadDim; m.Rows != want {
		err6 = fmt.Errorf("%s of layer %d: QKV has %d rows, must have %d", op, a.Layer, m.Rows, want)
	}
	b.record(
		kernels.Op{
			Kind: kernels.AttnInput, In: int(x), Out: int(q), Layer: a.Layer, Heads: a.Heads, Rope: rope, Eps: a.Eps, W: m,
			Norm: norm, Bias: bias, QNorm: qNorm, KNorm: kNorm,
		},
		b.geometry(op, a.Layer, a.Heads, a.KVHeads, a.HeadDim), err, err1, err2, err3, err4, err5, err6,
		b.buffer(op, "input", x, m.Cols), b.buffer(op, "output", q, a.Heads*a.HeadDim), b.apart(op, x, q), b.ownRows(op, x, q))
}

func (b *Backend) rope(a tensor.AttnInput) (int, error) {
	r := a.RoPE
	if r.Dims < 0 || r.Dims%2 != 0 || r.Dims > a.HeadDim || len(r.InvFreq) != r.Dims/2 {
		return 0, fmt.Errorf("rotation of %d of %d dimensions by %d frequencies: dimensions must be even, frequencies half of them",
			r.Dims, a.HeadDim, len(r.InvFreq))
	}
	if b.closed || b.sealed {
		return 0, nil // record reports it
	}
	return b.prog.Rope(r.Dims, r.Adjacent, r.Scale, r.InvFreq)
}

// geometry checks an attention op against the cache and the other layers.
func (b *Backend) geometry(op string, layer, heads, kvHeads, headDim int) error {
	kv := b.cfg.KV
	switch {
	case layer < 0 || layer >= kv.Layers:
		return fmt.Errorf("%s: layer %d, the KV cache has %d", op, layer, kv.Layers)
	case kvHeads != kv.KVHeads || headDim != kv.HeadDim:
		return fmt.Errorf("%s of layer %d: %d KV heads of %d, the KV cache has %d of %d", op, layer, kvHeads, headDim, kv.KVHeads, kv.HeadDim)
	case heads < 1 || heads%kvHeads != 0:
		return fmt.Errorf("%s of layer %d: %d heads, must be a multiple of %d KV heads", op, layer, heads, kvHeads)
	case b.heads != 0 && heads != b.heads:
		return fmt.Errorf("%s of layer %d: %d heads, other layers have %d", op, layer, heads, b.heads)
	}
	b.heads = heads
	return nil
}

// Attention sets out [heads*headDim] to causal attention of q over the cache.
func (b *Backend) Attention(out, q tensor.Buffer, a tensor.Attn) {
	const op = "attention"
	width := a.Heads * a.HeadDim
	b.record(kernels.Op{Kind: kernels.Attention, In: int(q), Out: int(out), Layer: a.Layer, Heads: a.Heads, Scale: a.Scale},
		b.geometry(op, a.Layer, a.Heads, a.KVHeads, a.HeadDim),
		b.buffer(op, "input", q, width), b.buffer(op, "output", out, width), b.apart(op, q, out), b.ownRows(op, q, out))
}

// AddLinear adds in·Wᵀ (+ bias unless None) to x.
func (b *Backend) AddLinear(x, in tensor.Buffer, w tensor.Matrix, bias tensor.Vector) {
	const op = "linear"
	m, err := b.matrix(op, w, false)
	v, err1 := b.vector(op, "bias", bias, m.Rows, true)
	b.record(kernels.Op{Kind: kernels.AddLinear, In: int(in), Out: int(x), W: m, Bias: v},
		b.apart(op, in, x), err, err1, b.buffer(op, "input", in, m.Cols), b.buffer(op, "output", x, m.Rows), b.sameRows(op, in, x))
}

// GatedMLP sets out [inter] to silu(gate(n))*up(n), n the RMSNorm of x.
func (b *Backend) GatedMLP(out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix) {
	const op = "gated MLP"
	m, err := b.matrix(op, gateUp, true)
	v, err1 := b.vector(op, "norm", norm, m.Cols, false)
	b.record(kernels.Op{Kind: kernels.GatedMLP, In: int(x), Out: int(out), W: m, Norm: v, Eps: eps},
		err, err1, b.buffer(op, "input", x, m.Cols), b.buffer(op, "output", out, m.Rows/2), b.apart(op, x, out), b.sameRows(op, x, out))
}

// Logits computes head·RMSNorm(x) for the batch's logit rows. A pass has one.
// With cuts, head has the rows cuts[rank] to cuts[rank+1] of the vocabulary, and
// the logits of all ranks are gathered; the ranks must want the same rows.
func (b *Backend) Logits(x tensor.Buffer, norm tensor.Vector, eps float32, head tensor.Matrix, cuts []int) {
	const op = "logits"
	m, err := b.matrix(op, head, false)
	v, err1 := b.vector(op, "norm", norm, m.Cols, false)
	var err2 error
	if b.vocab != 0 {
		err2 = fmt.Errorf("%s: recorded twice", op)
	}
	if cuts == nil {
		b.record(kernels.Op{Kind: kernels.Logits, In: int(x), W: m, Norm: v, Eps: eps, Cuts: kernels.NoCuts},
			err, err1, err2, b.buffer(op, "input", x, m.Cols), b.ownRows(op, x))
		b.vocab = m.Rows
		return
	}
	c, err3 := b.cuts(op, cuts, m.Rows)
	b.record(kernels.Op{Kind: kernels.Logits, In: int(x), W: m, Norm: v, Eps: eps, Cuts: c},
		err, err1, err2, err3, b.buffer(op, "input", x, m.Cols), b.ownRows(op, x))
	if b.err != nil {
		return
	}
	b.vocab, b.equalRows = cuts[len(cuts)-1], true
	b.gatherColumns(kernels.OfLogits, c, cuts, op,
		func(batch *tensor.Batch) int { return len(batch.LogitRows) }, b.prog.Logits)
}

// Seal ends the recording and allocates what steps need. It returns the first
// error of the recording, or says that the output matrix has not vocab rows.
func (b *Backend) Seal(vocab int) error {
	if b.closed {
		return ErrClosed
	}
	switch {
	case b.err != nil:
		return fmt.Errorf("record the forward pass: %w", b.err)
	case b.sealed:
		return fmt.Errorf("seal: sealed already")
	case b.tokens == 0 || b.vocab == 0:
		return fmt.Errorf("seal: the forward pass has no embedding or no logits")
	case b.vocab != vocab:
		return fmt.Errorf("seal: the output matrix has %d rows, the vocabulary %d", b.vocab, vocab)
	}
	if err := b.prog.Seal(); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	b.segments = append(b.segments, b.open)
	b.sealed = true
	return nil
}
