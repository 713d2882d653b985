package cpu

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/engine/pass"
	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// Matrix packs parts stacked along rows, [sum of rows, cols], and keeps them
// quantised; F16 and BF16 become integers of 12 bits, see kernels/cpu/pack.c. The
// parts' data is not needed afterwards.
func (b *Backend) Matrix(parts ...tensor.Host) (tensor.Matrix, error) {
	return b.pack(parts, false)
}

// GateUp packs two [inter, hidden] weights as one matrix for GatedMLP.
func (b *Backend) GateUp(gate, up tensor.Host) (tensor.Matrix, error) {
	if gate.Rows() != up.Rows() {
		return tensor.None, fmt.Errorf("tensors %q and %q: %d and %d rows, must be equal", gate.Name, up.Name, gate.Rows(), up.Rows())
	}
	return b.pack([]tensor.Host{gate, up}, true)
}

func (b *Backend) pack(parts []tensor.Host, interleaved bool) (tensor.Matrix, error) {
	if b.closed {
		return tensor.None, ErrClosed
	}
	if len(parts) == 0 {
		return tensor.None, fmt.Errorf("a matrix needs at least one tensor")
	}
	for _, h := range parts {
		if err := h.Validate(); err != nil {
			return tensor.None, err
		}
		if h.Cols() != parts[0].Cols() {
			return tensor.None, fmt.Errorf("tensors %q and %q: %d and %d columns, must be equal", parts[0].Name, h.Name, parts[0].Cols(), h.Cols())
		}
		if h.Rows() > math.MaxInt32/2 || h.Cols() > math.MaxInt32/2 {
			return tensor.None, fmt.Errorf("tensor %q: %v is too large", h.Name, h.Shape)
		}
	}
	kind := kindMatrix
	if interleaved {
		kind = kindGateUp
	}
	w, err := b.weight(kind, parts, func(to *kernels.Weights) (w weight, err error) {
		list := make([]kernels.Part, len(parts))
		for i, h := range parts {
			if list[i], err = b.part(h); err != nil {
				return w, err
			}
		}
		if w.matrix, err = to.Pack(b.pool, list, parts[0].Cols(), interleaved); err == nil {
			w.bytes = w.matrix.Bytes()
		}
		return w, err
	})
	if err != nil {
		return tensor.None, fmt.Errorf("tensor %q: %w", parts[0].Name, err)
	}
	b.matrices = append(b.matrices, w.matrix)
	return b.AddMatrix(pass.Matrix{Rows: w.matrix.Rows, Cols: w.matrix.Cols, GateUp: interleaved}), nil
}

// weight builds parts, or gets them from the store of several backends if it has
// them.
func (b *Backend) weight(kind weightKind, parts []tensor.Host, build func(*kernels.Weights) (weight, error)) (weight, error) {
	var w weight
	var had bool
	var err error
	if b.cfg.Store == nil {
		w, err = build(&b.store.weights)
	} else {
		w, had, err = b.store.get(kind, parts, build)
	}
	switch {
	case err != nil:
		return weight{}, err
	case had:
		b.shared += w.bytes
		return w, nil
	}
	b.packed += w.bytes
	if b.cfg.Loaded != nil {
		for _, h := range parts {
			b.cfg.Loaded(h.Name, len(h.Data))
		}
	}
	return w, nil
}

// Vector loads parts one after another as float32. They must be F32, F16 or
// BF16.
func (b *Backend) Vector(parts ...tensor.Host) (tensor.Vector, error) {
	if b.closed {
		return tensor.None, ErrClosed
	}
	if len(parts) == 0 {
		return tensor.None, fmt.Errorf("a vector needs at least one tensor")
	}
	for _, h := range parts {
		if err := h.Validate(); err != nil {
			return tensor.None, err
		}
	}
	w, err := b.weight(kindVector, parts, func(to *kernels.Weights) (w weight, err error) {
		var all []float32
		for _, h := range parts {
			if all, err = appendFloats(all, h); err != nil {
				return w, err
			}
		}
		if w.vector, err = to.Vector(all); err != nil {
			return w, fmt.Errorf("tensor %q: %w", parts[0].Name, err)
		}
		w.bytes = 4 * len(all)
		return w, nil
	})
	if err != nil {
		return tensor.None, err
	}
	b.vectors = append(b.vectors, w.vector)
	return b.AddVector(len(w.vector)), nil
}

func appendFloats(to []float32, h tensor.Host) ([]float32, error) {
	le := binary.LittleEndian
	for i, n := 0, h.Elems(); i < n; i++ {
		switch h.DType {
		case tensor.F32:
			to = append(to, math.Float32frombits(le.Uint32(h.Data[4*i:])))
		case tensor.BF16:
			to = append(to, math.Float32frombits(uint32(le.Uint16(h.Data[2*i:]))<<16))
		case tensor.F16:
			to = append(to, halfToFloat(le.Uint16(h.Data[2*i:])))
		default:
			return nil, fmt.Errorf("tensor %q: a vector of type %s, must be F32, F16 or BF16", h.Name, h.DType)
		}
	}
	return to, nil
}

func halfToFloat(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case 0: // zero and subnormals: frac * 2^-24
		f := float32(frac) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
