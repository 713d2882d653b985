//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"tandem/engine/cuda/gpu"
	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cuda"
)

// matrix is a weight [n, k] on the device.
type matrix struct {
	n, k   int
	format kernels.Format
	at     gpu.Ptr
	bytes  int64
	// plain holds a small weight of an unquantised file in float32, on the host until
	// the seal: it may be the router of experts, which needs all its digits.
	plain []float32
	// parts are the weights that it is stacked of, where their formats differ; then
	// at is none.
	parts []matrix
}

// routerElems is the most elements of a weight that may be a router.
const routerElems = 1 << 24

// Matrix puts parts stacked along rows, [sum of rows, cols], on the device and
// keeps them quantised. The parts' data is not needed afterwards.
func (b *Backend) Matrix(parts ...tensor.Host) (tensor.Matrix, error) {
	return b.load(parts, false)
}

// GateUp loads two [inter, hidden] weights as one matrix for GatedMLP and MoE.
func (b *Backend) GateUp(gate, up tensor.Host) (tensor.Matrix, error) {
	if gate.Rows() != up.Rows() {
		return tensor.None, fmt.Errorf("tensors %q and %q: %d and %d rows, must be equal", gate.Name, up.Name, gate.Rows(), up.Rows())
	}
	if gate.Rows()%8 != 0 {
		return tensor.None, fmt.Errorf("tensor %q: %d rows, must be a multiple of 8 on CUDA", gate.Name, gate.Rows())
	}
	return b.load([]tensor.Host{gate, up}, true)
}

func (b *Backend) load(parts []tensor.Host, gateUp bool) (tensor.Matrix, error) {
	src, err := newStack(parts, gateUp)
	if err != nil {
		return tensor.None, err
	}
	m := matrix{n: src.rows, k: src.cols, format: src.format()}
	if m.format == kernels.FormatBF16 && m.k%8 != 0 {
		return tensor.None, fmt.Errorf("tensor %q: %d columns, must be a multiple of 8 on CUDA", parts[0].Name, m.k)
	}
	if !gateUp && len(parts) == 1 && parts[0].DType.GroupElems() == 1 && src.rows <= kernels.MaxExperts && src.rows*src.cols <= routerElems {
		m.plain = make([]float32, src.rows*src.cols)
		if err := tensor.Dequantize(m.plain, parts[0]); err != nil {
			return tensor.None, err
		}
	}
	groups := [][]tensor.Host{parts}
	if !gateUp {
		groups = byFormat(parts)
	}
	if len(groups) == 1 {
		err = b.pack(&m, src)
	} else {
		err = b.packParts(&m, groups)
	}
	if err != nil {
		return tensor.None, err
	}
	b.matrices = append(b.matrices, m)
	b.loaded(parts)
	return b.AddMatrix(pass.Matrix{Rows: m.n, Cols: m.k, GateUp: gateUp}), nil
}

// pack puts a weight of one format on the device.
func (b *Backend) pack(m *matrix, src *stack) error {
	data, err := src.pack(m.format)
	if err == nil {
		m.at, err = b.put(data)
	}
	if err != nil {
		return fmt.Errorf("tensor %q: %w", src.parts[0].Name, err)
	}
	m.bytes = int64(len(data))
	return nil
}

// packParts puts weights of several formats on the device, so that each keeps its
// quantisation.
func (b *Backend) packParts(m *matrix, groups [][]tensor.Host) error {
	for _, g := range groups {
		src, err := newStack(g, false)
		if err != nil {
			return err
		}
		p := matrix{n: src.rows, k: src.cols, format: src.format()}
		if err := b.pack(&p, src); err != nil {
			return err
		}
		m.parts = append(m.parts, p)
		m.bytes += p.bytes
	}
	return nil
}

// Vector loads parts one after another as float32. They must be F32, F16 or BF16.
func (b *Backend) Vector(parts ...tensor.Host) (tensor.Vector, error) {
	var all []float32
	for _, h := range parts {
		if err := h.Validate(); err != nil {
			return tensor.None, err
		}
		if h.DType.GroupElems() != 1 {
			return tensor.None, fmt.Errorf("tensor %q: a vector of type %s, must be F32, F16 or BF16", h.Name, h.DType)
		}
		values := make([]float32, h.Elems())
		if err := tensor.Dequantize(values, h); err != nil {
			return tensor.None, err
		}
		all = append(all, values...)
	}
	if len(all) == 0 {
		return tensor.None, fmt.Errorf("a vector needs at least one tensor")
	}
	p, err := b.put(floatBytes(all))
	if err != nil {
		return tensor.None, fmt.Errorf("tensor %q: %w", parts[0].Name, err)
	}
	b.vectors = append(b.vectors, p)
	b.loaded(parts)
	return b.AddVector(len(all)), nil
}

func (b *Backend) loaded(parts []tensor.Host) {
	if b.cfg.Loaded == nil {
		return
	}
	for _, h := range parts {
		b.cfg.Loaded(h.Name, len(h.Data))
	}
}

// put copies bytes to memory of their own on the device.
func (b *Backend) put(data []byte) (p gpu.Ptr, err error) {
	if b.closed {
		return 0, ErrClosed
	}
	err = b.dev.Do(func() error {
		if p, err = b.dev.Alloc(int64(len(data))); err != nil {
			return fmt.Errorf("%w; use a model of fewer or smaller weights, more GPUs, or lower kv_cache_config.max_tokens if it is set", err)
		}
		return b.dev.Write(p, data)
	})
	if err == nil {
		b.packed += int64(len(data))
	}
	return p, err
}

func floatBytes(values []float32) []byte {
	out := make([]byte, 4*len(values))
	for i, v := range values {
		putFloat(out[4*i:], math.Float32bits(v))
	}
	return out
}

func putFloat(dst []byte, bits uint32) {
	dst[0], dst[1], dst[2], dst[3] = byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)
}
