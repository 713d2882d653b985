package pass

import (
	"errors"
	"fmt"

	"tandem/engine/tensor"
)

// Config is what ops and batches are checked against.
type Config struct {
	KV tensor.KVShape
	// Rank of a group of Ranks; 0 ranks is no group.
	Rank, Ranks int
	// MaxRows is the most rows of a batch, and MaxSharedRows of all ranks together.
	MaxRows, MaxSharedRows int
	// MaxExperts is the most experts of a layer, and MaxUsed of a row.
	MaxExperts, MaxUsed int
}

// Recorder has the recording half of model.Ops. The first error is kept for Seal,
// since later ops may depend on what is missing. One goroutine may use it.
type Recorder struct {
	cfg      Config
	matrices []Matrix
	vectors  []int // lengths

	Buffers []Buffer
	Ops     []Op
	Vocab   int // rows of the output matrix, of all ranks
	// EqualRows: the pass gathers columns of own rows, so that all ranks must have
	// as many.
	EqualRows bool
	// SharesRows: there are buffers for the rows of all ranks, which must fit.
	SharesRows bool

	heads   int  // query heads, 0 before the first attention op
	reach   int  // positions that a query needs, its own the last; 0 = all
	tokens  int  // rows of the embedding
	attends bool // there is an attention op
	err     error
	sealed  bool
	ended   error // why it is no use any more
}

// New makes an empty recorder.
func New(cfg Config) *Recorder { return &Recorder{cfg: cfg} }

var errSealed = errors.New("record: the forward pass is sealed")

// ErrNoGroup is the error of collective ops without a group.
var ErrNoGroup = errors.New("the backend has no group")

// AddMatrix and AddVector give out handles for what a backend has loaded.
func (r *Recorder) AddMatrix(m Matrix) tensor.Matrix {
	r.matrices = append(r.matrices, m)
	return tensor.Matrix(len(r.matrices) - 1)
}

// AddVector is described at AddMatrix; n is the values of the vector.
func (r *Recorder) AddVector(n int) tensor.Vector {
	r.vectors = append(r.vectors, n)
	return tensor.Vector(len(r.vectors) - 1)
}

// Close makes every later use fail with err.
func (r *Recorder) Close(err error) { r.ended = err }

// Err is the first error of the recording so far.
func (r *Recorder) Err() error { return r.err }

// Sealed tells whether Seal has succeeded.
func (r *Recorder) Sealed() bool { return r.sealed }

// open tells why nothing can be recorded now.
func (r *Recorder) open() error {
	if r.ended == nil && r.sealed {
		return errSealed
	}
	return r.ended
}

// ok keeps the first error, and tells whether there is none.
func (r *Recorder) ok(checks ...error) bool {
	r.fail(r.open())
	for _, err := range checks {
		r.fail(err)
	}
	return r.err == nil
}

func (r *Recorder) fail(err error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

func (r *Recorder) record(op Op, checks ...error) {
	if r.ok(checks...) {
		r.Ops = append(r.Ops, op)
	}
}

func (r *Recorder) matrix(op string, h tensor.Matrix, gateUp bool) (Matrix, error) {
	if int(h) < 0 || int(h) >= len(r.matrices) {
		return Matrix{}, fmt.Errorf("%s: not a matrix", op)
	}
	m := r.matrices[h]
	if m.GateUp != gateUp {
		return Matrix{}, fmt.Errorf("%s: the matrix was loaded for another use (GateUp belongs to GatedMLP and MoE)", op)
	}
	return m, nil
}

// vector checks a handle, which may be absent if optional.
func (r *Recorder) vector(op, name string, h tensor.Vector, size int, optional bool) error {
	if h == tensor.None && optional {
		return nil
	}
	if int(h) < 0 || int(h) >= len(r.vectors) {
		return fmt.Errorf("%s: %s is not a vector", op, name)
	}
	if n := r.vectors[h]; n != size {
		return fmt.Errorf("%s: %s has %d values, must have %d", op, name, n, size)
	}
	return nil
}

// Embed sets out to the table's rows of the batch's tokens.
func (r *Recorder) Embed(out tensor.Buffer, table tensor.Matrix) {
	const op = "embed"
	m, err := r.matrix(op, table, false)
	r.record(Op{Kind: Embed, In: tensor.None, Out: out, W: table, Norm: tensor.None, Bias: tensor.None},
		err, r.buffer(op, "output", out, m.Cols), r.ownRows(op, out))
	if r.tokens == 0 || m.Rows < r.tokens {
		r.tokens = m.Rows
	}
}

// AttnInput projects x to q, k and v, rotates q and k, writes k and v to the
// cache and sets q [heads*headDim].
func (r *Recorder) AttnInput(q, x tensor.Buffer, a tensor.AttnInput) {
	const op = "attention input"
	m, err := r.matrix(op, a.QKV, false)
	var rows error
	if want := (a.Heads + 2*a.KVHeads) * a.HeadDim; m.Rows != want {
		rows = fmt.Errorf("%s of layer %d: QKV has %d rows, must have %d", op, a.Layer, m.Rows, want)
	}
	r.record(Op{Kind: AttnInput, In: x, Out: q, W: a.QKV, Norm: a.Norm, Bias: a.Bias, Eps: a.Eps, Input: &a},
		r.geometry(op, a.Layer, a.Heads, a.KVHeads, a.HeadDim), err,
		r.vector(op, "norm", a.Norm, m.Cols, false), r.vector(op, "bias", a.Bias, m.Rows, true),
		r.vector(op, "query norm", a.QNorm, a.HeadDim, true), r.vector(op, "key norm", a.KNorm, a.HeadDim, true),
		rotation(a), rows,
		r.buffer(op, "input", x, m.Cols), r.buffer(op, "output", q, a.Heads*a.HeadDim), r.apart(op, x, q), r.ownRows(op, x, q))
}

func rotation(a tensor.AttnInput) error {
	p := a.RoPE
	if p.Dims < 0 || p.Dims%2 != 0 || p.Dims > a.HeadDim || len(p.InvFreq) != p.Dims/2 {
		return fmt.Errorf("rotation of %d of %d dimensions by %d frequencies: dimensions must be even, frequencies half of them",
			p.Dims, a.HeadDim, len(p.InvFreq))
	}
	return nil
}

// geometry checks an attention op against the cache and the other layers.
func (r *Recorder) geometry(op string, layer, heads, kvHeads, headDim int) error {
	kv := r.cfg.KV
	switch {
	case layer < 0 || layer >= kv.Layers:
		return fmt.Errorf("%s: layer %d, the KV cache has %d", op, layer, kv.Layers)
	case kvHeads != kv.KVHeads || headDim != kv.HeadDim:
		return fmt.Errorf("%s of layer %d: %d KV heads of %d, the KV cache has %d of %d", op, layer, kvHeads, headDim, kv.KVHeads, kv.HeadDim)
	case heads < 1 || heads%kvHeads != 0:
		return fmt.Errorf("%s of layer %d: %d heads, must be a multiple of %d KV heads", op, layer, heads, kvHeads)
	case r.heads != 0 && heads != r.heads:
		return fmt.Errorf("%s of layer %d: %d heads, other layers have %d", op, layer, heads, r.heads)
	}
	r.heads = heads
	return nil
}

// Scale multiplies x by a factor.
func (r *Recorder) Scale(x tensor.Buffer, factor float32) {
	const op = "scale"
	b, _ := r.lookup(x)
	r.record(Op{Kind: Scale, In: x, Out: x, W: tensor.None, Norm: tensor.None, Bias: tensor.None, Factor: factor}, r.buffer(op, "it", x, b.Width))
}

// Attention sets out [heads*headDim] to causal attention of q over the cache.
func (r *Recorder) Attention(out, q tensor.Buffer, a tensor.Attn) {
	const op = "attention"
	width := a.Heads * a.HeadDim
	r.see(a.Window)
	r.record(Op{Kind: Attention, In: q, Out: out, W: tensor.None, Norm: tensor.None, Bias: tensor.None, Attn: &a},
		r.geometry(op, a.Layer, a.Heads, a.KVHeads, a.HeadDim), window(a),
		r.buffer(op, "input", q, width), r.buffer(op, "output", out, width), r.apart(op, q, out), r.ownRows(op, q, out))
}

// see notes the window of a layer.
func (r *Recorder) see(window int) {
	if !r.attends || window == 0 {
		r.reach = window
	} else if r.reach > 0 {
		r.reach = max(r.reach, window)
	}
	r.attends = true
}

func window(a tensor.Attn) error {
	if a.Window < 0 {
		return fmt.Errorf("attention of layer %d: a window of %d positions", a.Layer, a.Window)
	}
	return nil
}

// AddLinear adds in·Wᵀ (+ bias unless None) to x.
func (r *Recorder) AddLinear(x, in tensor.Buffer, w tensor.Matrix, bias tensor.Vector) {
	const op = "linear"
	m, err := r.matrix(op, w, false)
	r.record(Op{Kind: AddLinear, In: in, Out: x, W: w, Norm: tensor.None, Bias: bias},
		r.apart(op, in, x), err, r.vector(op, "bias", bias, m.Rows, true),
		r.buffer(op, "input", in, m.Cols), r.buffer(op, "output", x, m.Rows), r.sameRows(op, in, x))
}

// Linear sets out to in·Wᵀ.
func (r *Recorder) Linear(out, in tensor.Buffer, w tensor.Matrix) {
	const op = "linear"
	m, err := r.matrix(op, w, false)
	r.record(Op{Kind: Linear, In: in, Out: out, W: w, Norm: tensor.None, Bias: tensor.None},
		r.apart(op, in, out), err, r.buffer(op, "input", in, m.Cols), r.buffer(op, "output", out, m.Rows), r.sameRows(op, in, out))
}

// AddNorm adds the RMSNorm of in to x.
func (r *Recorder) AddNorm(x, in tensor.Buffer, norm tensor.Vector, eps float32) {
	const op = "add a norm"
	to, _ := r.lookup(x)
	r.record(Op{Kind: AddNorm, In: in, Out: x, W: tensor.None, Norm: norm, Bias: tensor.None, Eps: eps},
		r.apart(op, in, x), r.vector(op, "norm", norm, to.Width, false),
		r.buffer(op, "input", in, to.Width), r.buffer(op, "output", x, to.Width), r.sameRows(op, in, x))
}

// GatedMLP sets out [inter] to silu(gate(n))*up(n), n the RMSNorm of x.
func (r *Recorder) GatedMLP(out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix) {
	r.gated(GatedMLP, out, x, norm, eps, gateUp)
}

// GatedGELU is GatedMLP with gelu in place of silu.
func (r *Recorder) GatedGELU(out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix) {
	r.gated(GatedGELU, out, x, norm, eps, gateUp)
}

func (r *Recorder) gated(kind Kind, out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix) {
	const op = "gated MLP"
	m, err := r.matrix(op, gateUp, true)
	r.record(Op{Kind: kind, In: x, Out: out, W: gateUp, Norm: norm, Bias: tensor.None, Eps: eps},
		err, r.vector(op, "norm", norm, m.Cols, false),
		r.buffer(op, "input", x, m.Cols), r.buffer(op, "output", out, m.Rows/2), r.apart(op, x, out), r.sameRows(op, x, out))
}

// Logits computes head·RMSNorm(x) for the batch's logit rows. A pass has one.
// With cuts, head has the rows cuts[rank] to cuts[rank+1] of the vocabulary, and
// the logits of all ranks are gathered; the ranks must want the same rows.
func (r *Recorder) Logits(x tensor.Buffer, norm tensor.Vector, eps float32, head tensor.Matrix, cuts []int) {
	const op = "logits"
	m, err := r.matrix(op, head, false)
	var twice, cut error
	if r.Vocab != 0 {
		twice = fmt.Errorf("%s: recorded twice", op)
	}
	if cuts != nil {
		cut = r.cuts(op, cuts, m.Rows)
	}
	r.record(Op{Kind: Logits, In: x, Out: tensor.None, W: head, Norm: norm, Bias: tensor.None, Eps: eps, Cuts: cuts},
		err, r.vector(op, "norm", norm, m.Cols, false), twice, cut, r.buffer(op, "input", x, m.Cols), r.ownRows(op, x))
	switch {
	case cuts == nil:
		r.Vocab = m.Rows
	case r.err == nil:
		r.Vocab, r.EqualRows = cuts[len(cuts)-1], true
	}
}

// Seal ends the recording. It returns the first error of it, or says that the
// output matrix has not vocab rows.
func (r *Recorder) Seal(vocab int) error {
	switch {
	case r.ended != nil:
		return r.ended
	case r.err != nil:
		return fmt.Errorf("record the forward pass: %w", r.err)
	case r.sealed:
		return fmt.Errorf("seal: sealed already")
	case r.tokens == 0 || r.Vocab == 0:
		return fmt.Errorf("seal: the forward pass has no embedding or no logits")
	case r.Vocab != vocab:
		return fmt.Errorf("seal: the output matrix has %d rows, the vocabulary %d", r.Vocab, vocab)
	}
	r.sealed = true
	return nil
}
