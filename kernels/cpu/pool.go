package cpu

// #cgo CFLAGS: -O3 -std=gnu11 -Wall -Wno-psabi
// #cgo LDFLAGS: -lm -lpthread
// #include "isa.h"
// #include "mem.h"
// #include "pool.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

// Level is an instruction set level that kernels are compiled for.
type Level int

// The levels, as isa.h numbers them.
const (
	Portable Level = iota
	AVX2
	AVX512
	AMX
	AMXModel // AMX with tiles modelled in C: for tests, where there is AVX-512
)

// String returns the level's name.
func (l Level) String() string { return C.GoString(C.tm_isa_name(C.int(l))) }

// Pool is a set of threads that runs programs and packs matrices. One goroutine
// at a time may use it; its own thread takes part.
type Pool struct{ c *C.tm_pool }

// NewPool starts threads-1 threads; threads is at least 1. With cpus, one for each
// thread, each computes on its own processor only, the caller's for the time of a run.
func NewPool(threads int, cpus []int) (*Pool, error) {
	var list *C.int
	if len(cpus) > 0 {
		ids := make([]C.int, threads)
		for i := range ids {
			ids[i] = C.int(cpus[i])
		}
		list = &ids[0]
	}
	c := C.tm_pool_new(C.int(threads), list)
	if c == nil && list != nil {
		return nil, fmt.Errorf("start %d compute threads on processors %v: out of threads or memory, or one may not be used", threads, cpus)
	}
	if c == nil {
		return nil, fmt.Errorf("start %d compute threads: out of threads or memory", threads)
	}
	return &Pool{c}, nil
}

// Close ends the threads. The pool must be idle.
func (p *Pool) Close() {
	C.tm_pool_free(p.c)
	p.c = nil
}

// Region is memory outside the Go heap, on a 2 MiB boundary and in huge pages
// where the system gives them.
type Region struct{ Bytes []byte }

// NewRegion maps size zeroed bytes, size > 0.
func NewRegion(size int) (Region, error) {
	p := C.tm_map(C.size_t(size), 1)
	if p == nil {
		return Region{}, fmt.Errorf("map %d bytes of memory: refused by the system", size)
	}
	return Region{unsafe.Slice((*byte)(p), size)}, nil
}

// MapFile maps the first size bytes of a file for reading, size > 0. The file
// must not shrink; it may be closed.
func MapFile(f *os.File, size int) (Region, error) {
	p := C.tm_map_file(C.int(f.Fd()), C.size_t(size))
	if p == nil {
		return Region{}, fmt.Errorf("map %d bytes of %s: refused by the system", size, f.Name())
	}
	return Region{unsafe.Slice((*byte)(p), size)}, nil
}

// Close unmaps the region; Bytes must not be used afterwards.
func (r *Region) Close() {
	if r.Bytes != nil {
		C.tm_unmap(unsafe.Pointer(unsafe.SliceData(r.Bytes)), C.size_t(len(r.Bytes)))
		r.Bytes = nil
	}
}
