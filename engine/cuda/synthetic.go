//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"time"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// Synthetic is a backend that makes its weights on the device: of tensors it takes
// the shapes and never the data, so that the speed of a model of any size can be
// measured without a file of that size. What it computes means nothing.
type Synthetic struct {
	*Backend
	format kernels.Format
	seed   int64
}

// NewSynthetic is New with weights as a file of the type would give: BF16, or one
// of the quantised types that Matrix keeps.
func NewSynthetic(cfg Config, weights tensor.DType) (*Synthetic, error) {
	format, ok := formats[weights]
	if !ok && weights != tensor.BF16 {
		return nil, fmt.Errorf("synthetic weights of type %s: must be BF16 or a quantised type", weights)
	}
	b, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &Synthetic{Backend: b, format: format}, nil
}

// Device describes the device.
func (s *Synthetic) Device() gpu.Info { return s.dev.Info() }

// Matrix is that of the backend, with numbers of its own.
func (s *Synthetic) Matrix(parts ...tensor.Host) (tensor.Matrix, error) { return s.load(parts, false) }

// GateUp is that of the backend, with numbers of its own.
func (s *Synthetic) GateUp(gate, up tensor.Host) (tensor.Matrix, error) {
	return s.load([]tensor.Host{gate, up}, true)
}

func (s *Synthetic) load(parts []tensor.Host, gateUp bool) (tensor.Matrix, error) {
	src, err := newStack(parts, gateUp)
	if err != nil {
		return tensor.None, err
	}
	m := matrix{n: src.rows, k: src.cols, format: s.format, bytes: s.format.Bytes(src.rows, src.cols)}
	if m.at, err = s.fill(m.bytes, func(p gpu.Ptr) error { return s.fillMatrix(p, &m) }); err != nil {
		return tensor.None, fmt.Errorf("tensor %q: %w", parts[0].Name, err)
	}
	s.matrices = append(s.matrices, m)
	return s.AddMatrix(pass.Matrix{Rows: m.n, Cols: m.k, GateUp: gateUp}), nil
}

// Vector is that of the backend, with numbers near one.
func (s *Synthetic) Vector(parts ...tensor.Host) (tensor.Vector, error) {
	n := 0
	for _, h := range parts {
		n += h.Elems()
	}
	p, err := s.fill(int64(4*n), func(p gpu.Ptr) error {
		k, err := s.code.find("td_fill_f32")
		if err != nil {
			return err
		}
		s.args.Reset().Ptr(p).I64(int64(n)).I64(s.seed).F32(0.1).F32(1)
		return s.launch(k, kernels.Each(int64(n), 4))
	})
	if err != nil {
		return tensor.None, err
	}
	s.vectors = append(s.vectors, p)
	return s.AddVector(n), nil
}

// fill allocates and lets fn fill.
func (s *Synthetic) fill(bytes int64, fn func(p gpu.Ptr) error) (p gpu.Ptr, err error) {
	s.seed++
	err = s.do(func() error {
		if p, err = s.dev.Alloc(bytes); err != nil {
			return err
		}
		if err := fn(p); err != nil {
			return err
		}
		return s.stream.Sync()
	})
	if err == nil {
		s.packed += bytes
	}
	return p, err
}

// fillMatrix sets a weight to numbers of variance 1/k, so that activations keep
// their size.
func (s *Synthetic) fillMatrix(p gpu.Ptr, m *matrix) error {
	if m.format == kernels.FormatBF16 {
		return s.fillBF16(p, int64(m.n)*int64(m.k), math.Sqrt(3/float64(m.k)))
	}
	k, err := s.code.find("td_fill_packed")
	if err != nil {
		return err
	}
	tile, codes := m.format.TileBytes()
	levels := math.Exp2(float64(codes*8) / 1024) // of a code, 1024 of which are in a tile
	s.args.Reset().Ptr(p).I32(tile).I32(codes).I64(s.seed).F32(float32(math.Sqrt(12/float64(m.k)) / levels))
	return s.launch(k, kernels.FillPacked(int(m.bytes/int64(tile))))
}

func (s *Synthetic) fillBF16(p gpu.Ptr, n int64, scale float64) error {
	k, err := s.code.find("td_fill_bf16")
	if err != nil {
		return err
	}
	s.args.Reset().Ptr(p).I64(n).I64(s.seed).F32(float32(scale))
	return s.launch(k, kernels.Each(n, 4))
}

// FillCache sets all of the KV pool to small numbers: what a cache holds does not
// matter to the time, unless it is no number.
func (s *Synthetic) FillCache() error {
	return s.do(func() error {
		if err := s.fillBF16(s.blocks.pool, int64(s.blocks.n)*s.blocks.bytes/2, 1); err != nil {
			return err
		}
		return s.stream.Sync()
	})
}

// Cost is what a pass has to read and compute at the least.
type Cost struct {
	WeightBytes int64 // of matrices that are read as a whole, so without the embedding
	LayerElems  int64 // elements of the matrices of layers, without the output matrix
}

// Cost sums up the recorded pass. Experts are not counted.
func (s *Synthetic) Cost() (c Cost) {
	for i := range s.Ops {
		op := &s.Ops[i]
		if op.W < 0 || op.Kind == pass.Embed || op.Kind == pass.MoE {
			continue
		}
		m := s.matrices[op.W]
		c.WeightBytes += m.bytes
		if op.Kind != pass.Logits {
			c.LayerElems += int64(m.n) * int64(m.k)
		}
	}
	return c
}

// StepTime is the time of a step.
type StepTime struct {
	Wall   time.Duration // from one step's results to the next one's
	Device time.Duration // of the same work, queued back to back
}

// Gap is what the device waits for the host between two steps.
func (t StepTime) Gap() time.Duration { return max(0, t.Wall-t.Device) }

// TimeDecode measures n steps of a batch that only decodes and has a captured size.
func (s *Synthetic) TimeDecode(batch *tensor.Batch, picks []tensor.Pick, n int) (t StepTime, err error) {
	if err := s.overlapped(batch, picks, 3); err != nil {
		return t, err
	}
	begin := time.Now()
	if err := s.overlapped(batch, picks, n); err != nil {
		return t, err
	}
	t.Wall = time.Since(begin) / time.Duration(n)
	g := s.graphs[s.bucket(batch)]
	if g == nil {
		return t, fmt.Errorf("a step of %d rows is not captured: name the size in Graphs", batch.Rows())
	}
	err = s.do(func() error {
		t.Device, err = s.backToBack(n, func() error {
			if err := s.stream.Run(g); err != nil {
				return err
			}
			return s.choose(picks)
		})
		return err
	})
	return t, err
}

// overlapped runs n steps as an engine does: each is launched while the one before
// runs, and takes its tokens over on the device.
func (s *Synthetic) overlapped(batch *tensor.Batch, picks []tensor.Pick, n int) error {
	fed := *batch
	fed.Feed = make([]int32, batch.Rows())
	for i := range fed.Feed {
		fed.Feed[i] = int32(i)
	}
	for i := range n {
		step := batch
		if i > 0 {
			step = &fed
		}
		if err := s.Launch(step, picks); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if _, _, err := s.Wait(); err != nil {
			return err
		}
	}
	_, _, err := s.Wait()
	return err
}

// backToBack is the device's time of one of n calls of queue.
func (s *Synthetic) backToBack(n int, queue func() error) (time.Duration, error) {
	var marks [2]*gpu.Event
	for i := range marks {
		e, err := s.dev.NewEvent(gpu.Timing)
		if err != nil {
			return 0, err
		}
		defer func() { _ = e.Free() }()
		marks[i] = e
	}
	if err := s.stream.Record(marks[0]); err != nil {
		return 0, err
	}
	for range n {
		if err := queue(); err != nil {
			return 0, err
		}
	}
	if err := s.stream.Record(marks[1]); err != nil {
		return 0, err
	}
	if err := s.wait(); err != nil {
		return 0, err
	}
	d, err := marks[1].Since(marks[0])
	return d / time.Duration(n), err
}
