//go:build cuda

package comm

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "nccl.h"
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"
	"unsafe"
)

// ErrNoNCCL says that there is no NCCL to open; the message says what was tried.
var ErrNoNCCL = errors.New("NCCL not found")

const ncclName = "libnccl.so.2"

// LoadNCCL opens NCCL, once: libnccl.so.2, or the library that TANDEM_NCCL names.
var LoadNCCL = sync.OnceValue(func() error {
	path := ncclName
	if v := os.Getenv("TANDEM_NCCL"); v != "" {
		path = v
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var why [512]C.char
	if C.td_nccl_open(cpath, &why[0], C.int(len(why))) != 0 {
		return fmt.Errorf("%w: %s; install it, or name the library in TANDEM_NCCL", ErrNoNCCL, C.GoString(&why[0]))
	}
	return nil
})

// NCCLType is an element type of device buffers.
type NCCLType int

// The types. Sums are made in the type itself.
const (
	NCCLBytes NCCLType = 1
	NCCLF16   NCCLType = 6
	NCCLF32   NCCLType = 7
	NCCLBF16  NCCLType = 9
)

// NCCL is one rank's place in collectives over device memory. Its methods queue work into a stream
// of the driver (a CUstream) on the thread where the rank's context is current, and all ranks call
// them in the same order. Addresses are those of device memory. The context ends the waiting of the
// call, not of the work; after an error the communicator is aborted, which releases the peers, and
// every call gives that error.
type NCCL struct {
	comm       unsafe.Pointer
	rank, size int
	err        error
}

// JoinNCCL makes a communicator of the group's ranks. Every rank calls it on its device's thread;
// no two may have the same device. It waits for all of them until ctx ends.
func JoinNCCL(ctx context.Context, group Comm) (*NCCL, error) {
	if err := LoadNCCL(); err != nil {
		return nil, err // before the peers wait for this one
	}
	id, err := shareUnique(ctx, group)
	if err != nil {
		return nil, err
	}
	n := &NCCL{rank: group.ID(), size: group.Size()}
	st := C.td_nccl_init(&n.comm, C.int(n.size), C.int(n.rank), unsafe.Pointer(&id))
	return n, n.settle(ctx, st, "join")
}

// shareUnique gives all ranks the name that rank 0 made for the communicator, as bits of a row of
// numbers, since those are only copied.
func shareUnique(ctx context.Context, group Comm) (id [C.TD_NCCL_ID_BYTES]byte, err error) {
	const width = len(id) / 4
	var src, dst [width]float32
	rows := make([]int, group.Size())
	rows[0] = 1
	own := src[:0]
	if group.ID() == 0 {
		if st := C.td_nccl_unique(unsafe.Pointer(&id)); st != 0 {
			return id, ncclError(st, "name a communicator")
		}
		for i := range src {
			src[i] = math.Float32frombits(binary.LittleEndian.Uint32(id[4*i:]))
		}
		own = src[:]
	}
	if err := group.AllGather(ctx, dst[:], own, rows, width); err != nil {
		return id, err
	}
	for i, v := range dst {
		binary.LittleEndian.PutUint32(id[4*i:], math.Float32bits(v))
	}
	return id, nil
}

// settle waits until a call is accepted. Only then may the next one be made.
func (n *NCCL) settle(ctx context.Context, st C.int, op string) error {
	for st == C.TD_NCCL_IN_PROGRESS {
		if ctx.Err() != nil {
			return n.fail(fmt.Errorf("nccl: %s on rank %d of %d: %w", op, n.rank, n.size, context.Cause(ctx)))
		}
		time.Sleep(20 * time.Microsecond)
		st = C.td_nccl_state(n.comm)
	}
	if st != 0 {
		return n.fail(ncclError(st, fmt.Sprintf("%s on rank %d of %d", op, n.rank, n.size)))
	}
	return nil
}

func ncclError(st C.int, op string) error {
	return fmt.Errorf("nccl: %s: %s (%d)", op, C.GoString(C.td_nccl_text(st)), int(st))
}

// fail keeps the first error and releases whoever waits for this rank.
func (n *NCCL) fail(err error) error {
	n.err = err
	if n.comm != nil {
		C.td_nccl_abort(n.comm)
		n.comm = nil
	}
	return err
}

type ncclCall func() C.int

func (n *NCCL) do(ctx context.Context, op string, call ncclCall) error {
	if n.err != nil {
		return n.err
	}
	return n.settle(ctx, call(), op)
}

// AllReduce writes the sum of count elements of all ranks to dst of each. dst may be src.
func (n *NCCL) AllReduce(ctx context.Context, dst, src uint64, count int, t NCCLType, stream unsafe.Pointer) error {
	return n.do(ctx, "all-reduce", func() C.int {
		return C.td_nccl_all_reduce(n.comm, C.uint64_t(dst), C.uint64_t(src), C.size_t(count), C.int(t), stream)
	})
}

// AllGather writes count elements of each rank, in rank order, to dst of all. src may be the rank's
// own part of dst.
func (n *NCCL) AllGather(ctx context.Context, dst, src uint64, count int, t NCCLType, stream unsafe.Pointer) error {
	return n.do(ctx, "all-gather", func() C.int {
		return C.td_nccl_all_gather(n.comm, C.uint64_t(dst), C.uint64_t(src), C.size_t(count), C.int(t), stream)
	})
}

// ReduceScatter sums size x count elements over all ranks and gives each rank the count elements of
// its place. dst may be the rank's own part of src.
func (n *NCCL) ReduceScatter(ctx context.Context, dst, src uint64, count int, t NCCLType, stream unsafe.Pointer) error {
	return n.do(ctx, "reduce-scatter", func() C.int {
		return C.td_nccl_reduce_scatter(n.comm, C.uint64_t(dst), C.uint64_t(src), C.size_t(count), C.int(t), stream)
	})
}

// AllToAll brings rows of that many bytes to the ranks as [Comm.AllToAll] does: rows[from*size+to]
// rows of src go from rank from to rank to. dst and src must not overlap.
func (n *NCCL) AllToAll(ctx context.Context, dst, src uint64, rows []int, bytes int, stream unsafe.Pointer) error {
	to, from := make([]C.size_t, n.size), make([]C.size_t, n.size)
	for peer := range n.size {
		to[peer] = C.size_t(rows[n.rank*n.size+peer] * bytes)
		from[peer] = C.size_t(rows[peer*n.size+n.rank] * bytes)
	}
	return n.do(ctx, "all-to-all", func() C.int {
		return C.td_nccl_all_to_all(n.comm, C.uint64_t(dst), C.uint64_t(src), &to[0], &from[0], C.int(n.size), stream)
	})
}

// Err tells whether work in a stream failed since, for instance because a peer went away. It also
// aborts the communicator then.
func (n *NCCL) Err() error {
	if n.err != nil {
		return n.err
	}
	if st := C.td_nccl_state(n.comm); st != 0 && st != C.TD_NCCL_IN_PROGRESS {
		return n.fail(ncclError(st, fmt.Sprintf("rank %d of %d", n.rank, n.size)))
	}
	return nil
}

// Close leaves the communicator. The streams must have been waited for.
func (n *NCCL) Close() error {
	if n.comm == nil {
		return nil
	}
	st := C.td_nccl_destroy(n.comm)
	n.comm, n.err = nil, errors.New("nccl: the communicator is closed")
	if st != 0 && st != C.TD_NCCL_IN_PROGRESS {
		return ncclError(st, "leave")
	}
	return nil
}
