//go:build cuda

package gemm

/*
#include <stdlib.h>
#include "lt.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"tandem/engine/cuda/gpu"
)

// Type is an element type of matrices.
type Type int

// The types; sums are always float32.
const (
	F32  Type = 0
	F16  Type = 2
	BF16 Type = 14
)

func (t Type) size() int {
	if t == F32 {
		return 4
	}
	return 2
}

// String is the type's usual name.
func (t Type) String() string {
	switch t {
	case F32:
		return "f32"
	case F16:
		return "f16"
	case BF16:
		return "bf16"
	}
	return fmt.Sprintf("Type(%d)", int(t))
}

// Op is a linear layer, y[M,N] = x[M,K] w[N,K]^T, all with rows one after the other.
type Op struct {
	M, N, K int
	In      Type // of x and w
	Out     Type // of y, and of the bias
	Add     bool // adds to y: a residual
	Bias    bool // adds a vector of N elements to each row

	// Elements from row to row; 0 stands for K, K and N.
	StrideX, StrideW, StrideY int
}

// String is for errors and logs.
func (o Op) String() string {
	return fmt.Sprintf("product m=%d n=%d k=%d %v to %v", o.M, o.N, o.K, o.In, o.Out)
}

// check fills strides in and refuses what cuBLASLt or its fast algorithms cannot do.
func (o *Op) check() error {
	if o.M <= 0 || o.N <= 0 || o.K <= 0 {
		return fmt.Errorf("%v: sizes must be positive", *o)
	}
	for _, s := range []struct {
		stride *int
		width  int
		typ    Type
		name   string
	}{{&o.StrideX, o.K, o.In, "x"}, {&o.StrideW, o.K, o.In, "w"}, {&o.StrideY, o.N, o.Out, "y"}} {
		if *s.stride == 0 {
			*s.stride = s.width
		}
		if *s.stride < s.width {
			return fmt.Errorf("%v: stride %d of %s is less than its row of %d", *o, *s.stride, s.name, s.width)
		}
		if *s.stride*s.typ.size()%alignment != 0 {
			return fmt.Errorf("%v: rows of %s are %d bytes apart, which is no multiple of %d",
				*o, s.name, *s.stride*s.typ.size(), alignment)
		}
	}
	return nil
}

// alignment in bytes of every matrix and row; the algorithms are searched for it.
const alignment = 16

// Multiplier is cuBLASLt on one device, with a plan for each Op that it met.
type Multiplier struct {
	dev       *gpu.Device
	handle    unsafe.Pointer
	bytes     int64 // of workspace
	plans     map[Op]*C.td_lt_plan
	workspace map[unsafe.Pointer]gpu.Ptr // by stream
}

// DefaultWorkspace suits the fast algorithms of all devices so far.
const DefaultWorkspace = 32 << 20

// New opens the library for a device. Each stream that multiplies gets a workspace of that many
// bytes.
func New(dev *gpu.Device, workspace int64) (*Multiplier, error) {
	if err := Load(); err != nil {
		return nil, err
	}
	g := &Multiplier{
		dev: dev, bytes: workspace,
		plans:     map[Op]*C.td_lt_plan{},
		workspace: map[unsafe.Pointer]gpu.Ptr{},
	}
	if st := C.td_lt_create(&g.handle); st != 0 {
		return nil, &Error{fmt.Sprintf("start on device %d", dev.Info().Ordinal), int(st)}
	}
	return g, nil
}

// Prepare makes the plan of op and the workspace of s, which allocates, so that a capture finds
// them. Later calls of Multiply with the same op and stream allocate nothing.
func (g *Multiplier) Prepare(s *gpu.Stream, op Op) error {
	if _, err := g.plan(s, op); err != nil {
		return err
	}
	return g.Reserve(s)
}

// Reserve makes the workspace of s.
func (g *Multiplier) Reserve(s *gpu.Stream) error {
	_, err := g.space(s)
	return err
}

// Multiply queues the product. y, x, w and, if op has it, bias are addresses aligned to 16 bytes.
// During a capture op must have been prepared on s.
func (g *Multiplier) Multiply(s *gpu.Stream, op Op, y, x, w, bias gpu.Ptr) error {
	if (y|x|w|bias)%alignment != 0 {
		return fmt.Errorf("%v: addresses %#x, %#x, %#x, %#x must be multiples of %d", op, y, x, w, bias, alignment)
	}
	if op.Bias != (bias != 0) {
		return fmt.Errorf("%v: bias %v, but its address is %#x", op, op.Bias, bias)
	}
	p, err := g.plan(s, op)
	if err != nil {
		return err
	}
	ws, err := g.space(s)
	if err != nil {
		return err
	}
	st := C.td_lt_run(g.handle, p, C.uint64_t(y), C.uint64_t(x), C.uint64_t(w), C.uint64_t(bias),
		C.uint64_t(ws), C.size_t(g.bytes), s.Handle())
	if st != 0 {
		return &Error{op.String(), int(st)}
	}
	return nil
}

func (g *Multiplier) plan(s *gpu.Stream, op Op) (*C.td_lt_plan, error) {
	if p, ok := g.plans[op]; ok {
		return p, nil
	}
	key := op
	if err := op.check(); err != nil {
		return nil, err
	}
	if err := outsideCapture(s, op); err != nil {
		return nil, err
	}
	q := C.td_lt_problem{
		m: C.uint64_t(op.M), n: C.uint64_t(op.N), k: C.uint64_t(op.K),
		stride_x: C.int64_t(op.StrideX), stride_w: C.int64_t(op.StrideW), stride_y: C.int64_t(op.StrideY),
		in: C.int(op.In), out: C.int(op.Out), workspace: C.size_t(g.bytes),
	}
	if op.Add {
		q.add = 1
	}
	if op.Bias {
		q.bias = 1
	}
	p := (*C.td_lt_plan)(C.calloc(1, C.size_t(unsafe.Sizeof(C.td_lt_plan{}))))
	if st := C.td_lt_plan_make(g.handle, p, &q); st != 0 {
		C.free(unsafe.Pointer(p))
		return nil, &Error{"plan the " + op.String(), int(st)}
	}
	g.plans[key] = p
	return p, nil
}

func (g *Multiplier) space(s *gpu.Stream) (gpu.Ptr, error) {
	if p, ok := g.workspace[s.Handle()]; ok || g.bytes == 0 {
		return p, nil
	}
	if err := outsideCapture(s, Op{}); err != nil {
		return 0, err
	}
	p, err := g.dev.Alloc(g.bytes)
	if err != nil {
		return 0, fmt.Errorf("workspace of cublasLt: %w", err)
	}
	g.workspace[s.Handle()] = p
	return p, nil
}

// outsideCapture refuses to plan or allocate while the stream is captured, which would spoil the
// capture in ways that show only on some drivers.
func outsideCapture(s *gpu.Stream, op Op) error {
	on, err := s.Capturing()
	if err != nil {
		return err
	}
	if on {
		return fmt.Errorf("%v: not prepared on this stream before the capture", op)
	}
	return nil
}

// Tune measures the candidates of op's plan on the given matrices, which it overwrites, and keeps
// the fastest. It returns the time of one product. s must be idle.
func (g *Multiplier) Tune(s *gpu.Stream, op Op, y, x, w, bias gpu.Ptr) (time.Duration, error) {
	p, err := g.plan(s, op)
	if err != nil {
		return 0, err
	}
	start, err := g.dev.NewEvent(gpu.Timing)
	if err != nil {
		return 0, err
	}
	defer func() { _ = start.Free() }()
	end, err := g.dev.NewEvent(gpu.Timing)
	if err != nil {
		return 0, err
	}
	defer func() { _ = end.Free() }()
	best, fastest := time.Duration(-1), C.int(0)
	for i := range p.count {
		p.chosen = i
		d, err := g.measure(s, op, y, x, w, bias, start, end)
		if err != nil {
			p.chosen = 0
			return 0, err
		}
		if best < 0 || d < best {
			best, fastest = d, i
		}
	}
	p.chosen = fastest
	return best, nil
}

// rounds of one measurement, after one that does not count.
const rounds = 4

func (g *Multiplier) measure(s *gpu.Stream, op Op, y, x, w, bias gpu.Ptr, start, end *gpu.Event) (time.Duration, error) {
	if err := g.Multiply(s, op, y, x, w, bias); err != nil {
		return 0, err
	}
	if err := s.Record(start); err != nil {
		return 0, err
	}
	for range rounds {
		if err := g.Multiply(s, op, y, x, w, bias); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(s.Record(end), end.Sync()); err != nil {
		return 0, err
	}
	d, err := end.Since(start)
	return d / rounds, err
}

// Plans is the number of plans that were made.
func (g *Multiplier) Plans() int { return len(g.plans) }

// Close waits for the device and gives everything back.
func (g *Multiplier) Close() error {
	err := g.dev.Sync()
	for _, p := range g.plans {
		C.td_lt_plan_free(p)
		C.free(unsafe.Pointer(p))
	}
	clear(g.plans)
	for _, p := range g.workspace {
		err = errors.Join(err, g.dev.Free(p))
	}
	clear(g.workspace)
	if g.handle != nil {
		if st := C.td_lt_destroy(g.handle); st != 0 {
			err = errors.Join(err, &Error{"stop", int(st)})
		}
		g.handle = nil
	}
	return err
}
