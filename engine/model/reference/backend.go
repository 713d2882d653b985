package reference

import (
	"errors"
	"fmt"

	"tandem/engine/tensor"
)

// matrix is a weight [rows, cols], decoded.
type matrix struct {
	rows, cols int
	data       []float32
}

// buffer is an activation; data is [rows, width] during a step, nil for a view.
type buffer struct {
	width  int
	data   []float32
	shared bool          // has the rows of all ranks
	view   tensor.Buffer // of which it is columns from first on, or None
	first  int
}

// Backend holds decoded weights, the recording and the cache of one rank. It
// implements the Ops interface of engine/model. It is for one goroutine.
type Backend struct {
	kv       tensor.KVShape
	cache    []float32 // [block][layer][k, v][kvHead][token][headDim]
	matrices []matrix
	vectors  [][]float32
	buffers  []buffer
	steps    []func(*step)
	group    Group // nil without peers
	embed    int   // rows of the embedding table
	err      error // first recording error
}

// step is the batch in work and what it yields.
type step struct {
	*tensor.Batch
	err    error // of a collective
	seq    []int // [rows] sequence of each row
	pos    []int // [rows] position of each row
	logits [][]float32
}

// New returns a backend with an empty cache of the given shape. Elements are
// kept in float32 and rounded to kv.DType (F32 or BF16) when written.
func New(kv tensor.KVShape) (*Backend, error) {
	if kv.Layers < 1 || kv.KVHeads < 1 || kv.HeadDim < 1 || kv.BlockTokens < 1 || kv.Blocks < 1 {
		return nil, fmt.Errorf("reference: cache shape %+v has a dimension below 1", kv)
	}
	if kv.DType != tensor.F32 && kv.DType != tensor.BF16 {
		return nil, fmt.Errorf("reference: cache of %s is not supported (F32 and BF16 are)", kv.DType)
	}
	size := kv.Blocks * kv.Layers * 2 * kv.KVHeads * kv.BlockTokens * kv.HeadDim
	return &Backend{kv: kv, cache: make([]float32, size)}, nil
}

// Matrix implements Ops.
func (b *Backend) Matrix(parts ...tensor.Host) (tensor.Matrix, error) {
	if len(parts) == 0 {
		return tensor.None, errors.New("reference: a matrix needs parts")
	}
	m := matrix{cols: parts[0].Cols()}
	for _, p := range parts {
		if len(p.Shape) != 2 || p.Cols() != m.cols {
			return tensor.None, fmt.Errorf("tensor %q: shape %v, want [rows, %d]", p.Name, p.Shape, m.cols)
		}
		data, err := decode(p)
		if err != nil {
			return tensor.None, err
		}
		m.rows += p.Rows()
		m.data = append(m.data, data...)
	}
	b.matrices = append(b.matrices, m)
	return tensor.Matrix(len(b.matrices) - 1), nil
}

// GateUp implements Ops: the gate's rows, then the up projection's.
func (b *Backend) GateUp(gate, up tensor.Host) (tensor.Matrix, error) {
	if gate.Rows() != up.Rows() {
		return tensor.None, fmt.Errorf("tensor %q: %d rows, %q has %d", up.Name, up.Rows(), gate.Name, gate.Rows())
	}
	return b.Matrix(gate, up)
}

// Vector implements Ops.
func (b *Backend) Vector(parts ...tensor.Host) (tensor.Vector, error) {
	var v []float32
	for _, p := range parts {
		data, err := decode(p)
		if err != nil {
			return tensor.None, err
		}
		v = append(v, data...)
	}
	b.vectors = append(b.vectors, v)
	return tensor.Vector(len(b.vectors) - 1), nil
}

func decode(h tensor.Host) ([]float32, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	out := make([]float32, h.Elems())
	return out, tensor.Dequantize(out, h)
}

// Buffer implements Ops.
func (b *Backend) Buffer(width int) tensor.Buffer {
	b.check(width > 0, "buffer of width %d", width)
	b.buffers = append(b.buffers, buffer{width: width, view: tensor.None})
	return tensor.Buffer(len(b.buffers) - 1)
}

// check keeps the first recording error; later ones are its consequences.
func (b *Backend) check(ok bool, format string, args ...any) {
	if !ok && b.err == nil {
		b.err = fmt.Errorf("reference: "+format, args...)
	}
}

// checkLinear verifies that w maps buffer in to out values a row, with a bias
// and norm of fitting sizes.
func (b *Backend) checkLinear(op string, in tensor.Buffer, w tensor.Matrix, out int) {
	m, x := b.matrices[w], b.buffers[in]
	b.check(m.cols == x.width && m.rows == out, "%s: weight [%d, %d] for %d inputs and %d outputs", op, m.rows, m.cols, x.width, out)
}

func (b *Backend) checkVector(op string, v tensor.Vector, want int) {
	if v != tensor.None {
		b.check(len(b.vectors[v]) == want, "%s: vector of %d, want %d", op, len(b.vectors[v]), want)
	}
}

// Run computes one batch and returns the logits [vocab] of each of its
// LogitRows. It reports a recording error, and a batch that does not fit the
// cache or vocabulary, without touching the cache. The ranks of a group run their
// batches at the same time, those without rows too.
func (b *Backend) Run(batch *tensor.Batch) ([][]float32, error) {
	if b.err != nil {
		return nil, b.err
	}
	s, err := b.newStep(batch)
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	for i := range b.buffers {
		if x := &b.buffers[i]; x.view == tensor.None {
			x.data = make([]float32, b.rows(s, tensor.Buffer(i))*x.width)
		}
	}
	for _, f := range b.steps {
		if f(s); s.err != nil {
			return nil, fmt.Errorf("reference: %w", s.err)
		}
	}
	return s.logits, nil
}

func (b *Backend) newStep(batch *tensor.Batch) (*step, error) {
	s := &step{Batch: batch}
	seqs := batch.Seqs()
	if len(batch.RowStart) != seqs+1 || len(batch.PageStart) != seqs+1 {
		return nil, fmt.Errorf("batch of %d sequences has %d row starts and %d page starts", seqs, len(batch.RowStart), len(batch.PageStart))
	}
	for i := range seqs {
		from, to := int(batch.RowStart[i]), int(batch.RowStart[i+1])
		pages := int(batch.PageStart[i+1] - batch.PageStart[i])
		pos := int(batch.PosStart[i])
		if from != len(s.seq) || to < from || to > batch.Rows() || pos < 0 {
			return nil, fmt.Errorf("sequence %d has rows %d to %d at position %d", i, from, to, pos)
		}
		if need := pos + to - from; pages*b.kv.BlockTokens < need {
			return nil, fmt.Errorf("sequence %d has %d pages, too few for %d positions", i, pages, need)
		}
		for row := from; row < to; row++ {
			s.seq = append(s.seq, i)
			s.pos = append(s.pos, pos+row-from)
		}
	}
	if len(s.seq) != batch.Rows() {
		return nil, fmt.Errorf("%d rows belong to no sequence", batch.Rows()-len(s.seq))
	}
	for _, p := range batch.Pages {
		if p < -1 || // -1: not there, as it lies before every window
			int(p) >= b.kv.Blocks {
			return nil, fmt.Errorf("block %d is outside the pool of %d", p, b.kv.Blocks)
		}
	}
	for _, r := range batch.LogitRows {
		if r < 0 || int(r) >= batch.Rows() {
			return nil, fmt.Errorf("logit row %d is outside the batch of %d", r, batch.Rows())
		}
	}
	if err := b.checkGroup(batch); err != nil {
		return nil, err
	}
	return s, b.checkTokens(batch)
}

func (b *Backend) checkTokens(batch *tensor.Batch) error {
	for row, t := range batch.Tokens {
		if t < 0 || int(t) >= b.embed {
			return fmt.Errorf("row %d: token %d is outside the vocabulary of %d", row, t, b.embed)
		}
	}
	return nil
}

// CopyBlock copies the first tokens positions of block from to block to, all
// layers, keys and values.
func (b *Backend) CopyBlock(from, to int32, tokens int) {
	for layer := range b.kv.Layers {
		for value := range 2 {
			for head := range b.kv.KVHeads {
				for t := range tokens {
					copy(b.slot(to, layer, value, head, t), b.slot(from, layer, value, head, t))
				}
			}
		}
	}
}

// slot returns the cached key (value 0) or value (value 1) of one position.
func (b *Backend) slot(block int32, layer, value, head, token int) []float32 {
	i := ((int(block)*b.kv.Layers+layer)*2 + value) * b.kv.KVHeads
	i = ((i+head)*b.kv.BlockTokens + token) * b.kv.HeadDim
	return b.cache[i : i+b.kv.HeadDim]
}

// at returns the cached key or value of a sequence's position.
func (b *Backend) at(s *step, seq, layer, value, head, pos int) []float32 {
	page := s.Pages[int(s.PageStart[seq])+pos/b.kv.BlockTokens]
	return b.slot(page, layer, value, head, pos%b.kv.BlockTokens)
}
