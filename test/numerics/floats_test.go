package numerics

import (
	"encoding/binary"
	"math"
	"testing"

	"tandem/engine/cpu"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

// floats loads matrices rounded to a float type, as a checkpoint of that type has
// them. With back they are then decoded to F32, for the same weights in float32
// arithmetic.
type floats struct {
	*cpu.Backend
	to   tensor.DType
	back bool
}

func (f floats) Matrix(parts ...tensor.Host) (tensor.Matrix, error) {
	return f.Backend.Matrix(f.round(parts)...)
}

func (f floats) GateUp(gate, up tensor.Host) (tensor.Matrix, error) {
	parts := f.round([]tensor.Host{gate, up})
	return f.Backend.GateUp(parts[0], parts[1])
}

func (f floats) round(parts []tensor.Host) (out []tensor.Host) {
	le := binary.LittleEndian
	for _, h := range parts {
		values := make([]float32, h.Elems())
		for i := range values {
			values[i] = math.Float32frombits(le.Uint32(h.Data[4*i:]))
		}
		to := tensor.Host{Name: h.Name, DType: f.to, Shape: h.Shape}
		for _, v := range values {
			bits := tensor.F32ToBF16(v)
			if f.to == tensor.F16 {
				bits = half(v)
			}
			to.Data = le.AppendUint16(to.Data, bits)
		}
		if f.back {
			if err := tensor.Dequantize(values, to); err != nil {
				panic(err) // both types have a decoder
			}
			to.DType, to.Data = tensor.F32, to.Data[:0]
			for _, v := range values {
				to.Data = le.AppendUint32(to.Data, math.Float32bits(v))
			}
		}
		out = append(out, to)
	}
	return out
}

// half rounds to F16, ties to even; weights do not exceed it.
func half(v float32) uint16 {
	sign, size := uint16(math.Float32bits(v)>>16&0x8000), math.Abs(float64(v))
	if size == 0 {
		return sign
	}
	_, exp := math.Frexp(size)
	exp = max(exp, -13) // below that steps are those of subnormals
	return sign | (uint16(exp+13)<<10 + uint16(math.RoundToEven(math.Ldexp(size, 11-exp))))
}

func openFloats(t *testing.T, f floats) *cpu.Backend {
	t.Helper()
	return build(t, cpu.Config{}, tensor.F32, func(b *cpu.Backend) model.Ops { f.Backend = b; return f }, model.AsF32())
}

// The accuracy of checkpoints in F16 and BF16, whose weights become levels: beside
// the same weights in float32, and beside the reference, which has those of before
// they were rounded to the type.
func TestFloatCheckpoints(t *testing.T) {
	texts := readReference(t)
	if testing.Short() {
		texts = texts[:10]
	}
	for _, tc := range []struct {
		name string
		to   tensor.DType
	}{{"BF16", tensor.BF16}, {"F16", tensor.F16}} {
		t.Run(tc.name, func(t *testing.T) {
			levels, exact := openFloats(t, floats{to: tc.to}), openFloats(t, floats{to: tc.to, back: true})
			var own, ref, refExact fit
			for _, x := range texts {
				a, b := logits(t, levels, x), logits(t, exact, x)
				for i, top := range x.top {
					own.add(full(b[i]), a[i])
					ref.add(top, a[i])
					refExact.add(top, b[i])
				}
			}
			t.Logf("beside float32: %v", own)
			t.Logf("beside the reference: %v, of float32: %v", ref, refExact)
			if kl, agree := own.mean(); kl > 1e-4 || agree < 0.995 {
				t.Errorf("levels differ from float32: %v", own)
			}
		})
	}
}

// full is the distribution that logits give, as an entry of the reference.
func full(logits []float32) []entry {
	norm, best := logSumExp(logits), argmax(logits)
	all := make([]entry, len(logits))
	for i, l := range logits {
		all[i] = entry{i, float64(l) - norm}
	}
	all[0], all[best] = all[best], all[0]
	return all
}
