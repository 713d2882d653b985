//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"fmt"
	"math"
)

// MaxArgs is the most arguments that a kernel takes.
const MaxArgs = C.TD_MAX_ARGS

// Args holds the arguments of a launch, one cell of eight bytes each. The driver copies them at the
// call, so one Args serves all launches of a goroutine. The zero value is empty.
type Args struct {
	cells [MaxArgs]uint64
	n     int
}

// Reset empties the list. The methods return it, to be chained.
func (a *Args) Reset() *Args {
	a.n = 0
	return a
}

func (a *Args) add(v uint64) *Args {
	a.cells[a.n] = v
	a.n++
	return a
}

// Ptr adds an address.
func (a *Args) Ptr(p Ptr) *Args { return a.add(uint64(p)) }

// I32 adds an int32. It panics when v is none: a cut size would be a broken launch.
func (a *Args) I32(v int) *Args {
	if v < math.MinInt32 || v > math.MaxInt32 {
		panic(fmt.Sprintf("gpu: argument %d of a kernel, %d, is no int32", a.n, v))
	}
	return a.add(uint64(uint32(int32(v))))
}

// I64 adds an int64.
func (a *Args) I64(v int64) *Args { return a.add(uint64(v)) }

// U64 adds a uint64.
func (a *Args) U64(v uint64) *Args { return a.add(v) }

// F32 adds a float.
func (a *Args) F32(v float32) *Args { return a.add(uint64(math.Float32bits(v))) }

// Len is the number of arguments.
func (a *Args) Len() int { return a.n }

// Dim is a number of blocks or threads in x, y and z; zero counts as one.
type Dim struct{ X, Y, Z int }

func (d Dim) c() (x, y, z C.uint32_t) {
	return C.uint32_t(max(d.X, 1)), C.uint32_t(max(d.Y, 1)), C.uint32_t(max(d.Z, 1))
}

// Shape is how a kernel is launched.
type Shape struct {
	Grid   Dim // blocks
	Block  Dim // threads of a block
	Shared int // bytes of dynamic shared memory

	// Cluster groups blocks that reach each other's shared memory, from compute capability 9.0 on;
	// the zero value is none.
	Cluster Dim
	// Overlap lets the kernel start while the one before it in the stream ends. The kernel itself
	// waits for the other's results (griddepcontrol.wait), from compute capability 9.0 on.
	Overlap bool
}

// Launch queues a kernel. It takes one call into C and allocates nothing.
func (s *Stream) Launch(k *Kernel, shape Shape, args *Args) error {
	gx, gy, gz := shape.Grid.c()
	bx, by, bz := shape.Block.c()
	var r C.CUresult
	if shape.Overlap || shape.Cluster != (Dim{}) {
		r = s.launchShape(k, shape, args)
	} else {
		r = C.td_launch(k.f, s.c(), (*C.uint64_t)(&args.cells[0]), C.int(args.n),
			gx, gy, gz, bx, by, bz, C.uint32_t(shape.Shared))
	}
	if r == C.CUDA_SUCCESS {
		return nil
	}
	return refusal(int(r), fmt.Sprintf("launch kernel %s, grid %v, block %v, %d bytes of shared memory, %d arguments",
		k.name, shape.Grid, shape.Block, shape.Shared, args.n))
}

func (s *Stream) launchShape(k *Kernel, shape Shape, args *Args) C.CUresult {
	var t C.td_shape
	t.grid[0], t.grid[1], t.grid[2] = shape.Grid.c()
	t.block[0], t.block[1], t.block[2] = shape.Block.c()
	t.shared = C.uint32_t(shape.Shared)
	if shape.Cluster != (Dim{}) {
		t.cluster[0], t.cluster[1], t.cluster[2] = shape.Cluster.c()
	}
	if shape.Overlap {
		t.overlap = 1
	}
	return C.td_launch_shape(k.f, s.c(), (*C.uint64_t)(&args.cells[0]), C.int(args.n), t)
}
