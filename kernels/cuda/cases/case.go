// Package cases holds the table of cases of the CUDA kernels: inputs made from
// seeds, slow float64 references, tolerances. It runs nothing itself: the same
// table is run on the emulator, on a real device and, where an operation exists
// there, against the kernels of the CPU.
package cases

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/kernels/cuda"
)

// Elem is the element type of a buffer.
type Elem int

// The element types that a result is compared in.
const (
	Bytes Elem = iota // compared bit by bit
	F32
	BF16
	F16
	E4M3
	I32
	F64
)

func (e Elem) size() int { return [...]int{1, 4, 2, 2, 1, 4, 8}[e] }

// Arg is one argument of a kernel: a buffer, or a scalar's bits.
type Arg struct {
	Data   []byte // what the buffer holds before; nil for a scalar or a null pointer
	Scalar uint64
}

// Want says what a buffer holds afterwards.
type Want struct {
	Arg      int
	Elem     Elem
	Values   []float64 // NaN: must hold what it held before, bit by bit; nil: see Verify
	Rel, Abs float64   // tolerance: |got-want| <= Rel*|want| + Abs
}

// Case is one launch.
type Case struct {
	Name   string
	Kernel string
	Launch cuda.Launch
	Args   []Arg
	Wants  []Want
	// Host is what the launch computes, as one of the types of host.go; nil for what
	// only devices do.
	Host any
	// Verify, where values alone do not say it, checks what the buffers hold.
	Verify func(after [][]byte) error
}

// Check compares what the buffers hold after the launch, by argument, with what
// is wanted. The error names case, argument, index, got and want.
func (c *Case) Check(after [][]byte) error {
	k, err := cuda.Find(c.Kernel)
	if err != nil {
		return err
	}
	for _, w := range c.Wants {
		if w.Values == nil {
			continue // for Verify
		}
		if err := w.check(c.Args[w.Arg].Data, after[w.Arg]); err != nil {
			return fmt.Errorf("%s: %s: %s%w", c.Name, c.Kernel, k.Params[w.Arg].Name, err)
		}
	}
	if c.Verify != nil {
		if err := c.Verify(after); err != nil {
			return fmt.Errorf("%s: %s: %w", c.Name, c.Kernel, err)
		}
	}
	return nil
}

func (w *Want) check(before, after []byte) error {
	size := w.Elem.size()
	if len(w.Values)*size != len(after) {
		return fmt.Errorf(": %d values are wanted of %d bytes", len(w.Values), len(after))
	}
	for i, want := range w.Values {
		got := after[i*size:][:size]
		if want != want {
			if old := before[i*size:][:size]; string(old) != string(got) {
				return fmt.Errorf("[%d] = %v, must stay as it was", i, decode(w.Elem, got))
			}
			continue
		}
		v := decode(w.Elem, got)
		if d := math.Abs(v - want); v != want && !(d <= w.Rel*math.Abs(want)+w.Abs) {
			return fmt.Errorf("[%d] = %v, want %v (tolerance %v relative + %v)", i, v, want, w.Rel, w.Abs)
		}
	}
	return nil
}

func decode(e Elem, b []byte) float64 {
	switch e {
	case F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	case F16:
		return f16Value(binary.LittleEndian.Uint16(b))
	case E4M3:
		return e4m3Value(b[0])
	case I32:
		return float64(int32(binary.LittleEndian.Uint32(b)))
	case F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	return float64(b[0])
}

// Tolerances. A bf16 result may be off by a rounding of it; sums differ in order.
const (
	bf16Rel = 1.0 / 128
	f32Rel  = 2e-5
)
