//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// Ptr is an address in device memory, or, for memory shared with it, of the host. Zero is none.
type Ptr uint64

// At returns the address n bytes further on.
func (p Ptr) At(n int64) Ptr { return p + Ptr(n) }

// Alloc takes n bytes of device memory, aligned to 256 bytes. What they hold is undefined. The
// error wraps [ErrOutOfMemory] when the device has too little left and says how much that is.
func (d *Device) Alloc(n int64) (Ptr, error) {
	if n <= 0 {
		return 0, fmt.Errorf("cuda: cannot allocate %d bytes", n)
	}
	p, err := cu.MemAlloc(n)
	if err != nil {
		return 0, d.explain(wrap(err, "allocate %d bytes", n))
	}
	return Ptr(p), nil
}

// explain adds to an allocation's error what the device has left.
func (d *Device) explain(err error) error {
	free, total, e := cu.MemInfo()
	if e != nil {
		return err
	}
	return fmt.Errorf("%w (%d of %d bytes are free on device %d)", err, free, total, d.info.Ordinal)
}

// Free gives memory of [Device.Alloc] back. It waits for work that may use it.
func (d *Device) Free(p Ptr) error {
	return wrap(cu.MemFree(cu.DevicePtr(p)), "free memory at %#x", uint64(p))
}

// MemInfo returns the bytes that are free on the device and those it has. Other processes may take
// the former at any time.
func (d *Device) MemInfo() (free, total int64, err error) {
	free, total, err = cu.MemInfo()
	return free, total, wrap(err, "ask for free memory")
}

// AllocAsync takes n bytes at the point of the stream where earlier work is done. It is cheap once the
// pool is warm; see [Device.KeepPool].
func (s *Stream) AllocAsync(n int64) (Ptr, error) {
	if n <= 0 {
		return 0, fmt.Errorf("cuda: cannot allocate %d bytes", n)
	}
	var p C.CUdeviceptr
	if err := check(C.cuMemAllocAsync(&p, C.size_t(n), s.c()), "allocate %d bytes in stream order", n); err != nil {
		return 0, s.dev.explain(err)
	}
	return Ptr(p), nil
}

// FreeAsync gives memory of [Stream.AllocAsync], or of [Device.Alloc], back when earlier work of the stream
// is done.
func (s *Stream) FreeAsync(p Ptr) error {
	return check(C.cuMemFreeAsync(C.CUdeviceptr(p), s.c()), "free memory at %#x in stream order", uint64(p))
}

// KeepPool lets the pool behind [Stream.AllocAsync] hold up to n unused bytes instead of returning them
// to the device at every wait.
func (d *Device) KeepPool(n uint64) error {
	var pool C.CUmemoryPool
	if err := check(C.cuDeviceGetDefaultMemPool(&pool, C.CUdevice(d.dev)), "find the memory pool"); err != nil {
		return err
	}
	v := C.cuuint64_t(n)
	return check(C.cuMemPoolSetAttribute(pool, C.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, unsafe.Pointer(&v)),
		"let the memory pool hold %d bytes", n)
}

// Pinned is host memory that the device reaches by itself. All asynchronous copies need it: others
// would wait, and the collector of Go never sees it.
type Pinned struct {
	p          unsafe.Pointer
	n          int64
	registered bool
}

// Host is a range of pinned memory.
type Host struct {
	p unsafe.Pointer
	n int64
}

// AllocPinned takes n bytes of pinned memory for all devices. Their content is undefined.
func (d *Device) AllocPinned(n int64) (*Pinned, error) {
	if n <= 0 {
		return nil, fmt.Errorf("cuda: cannot allocate %d bytes", n)
	}
	m := &Pinned{n: n}
	r := C.cuMemHostAlloc(&m.p, C.size_t(n), C.CU_MEMHOSTALLOC_PORTABLE)
	if err := check(r, "allocate %d bytes of pinned host memory", n); err != nil {
		return nil, err
	}
	return m, nil
}

// Pin pins memory that a mapping of the operating system owns. It must not be memory of Go, which
// may be freed before the device is done. The owner unmaps it only after [Pinned.Free].
func (d *Device) Pin(mapped []byte) (*Pinned, error) {
	if len(mapped) == 0 {
		return nil, fmt.Errorf("cuda: cannot pin an empty range")
	}
	m := &Pinned{p: unsafe.Pointer(unsafe.SliceData(mapped)), n: int64(len(mapped)), registered: true}
	r := C.cuMemHostRegister(m.p, C.size_t(m.n), C.CU_MEMHOSTREGISTER_PORTABLE)
	if err := check(r, "pin %d bytes of host memory", m.n); err != nil {
		return nil, err
	}
	return m, nil
}

// Bytes is the memory itself. It must not be used after [Pinned.Free].
func (m *Pinned) Bytes() []byte { return unsafe.Slice((*byte)(m.p), m.n) }

// All is the whole memory as a range.
func (m *Pinned) All() Host { return Host{m.p, m.n} }

// Slice is the range of n bytes from off on. It panics outside the memory, as a slice does.
func (m *Pinned) Slice(off, n int64) Host {
	b := m.Bytes()[off : off+n]
	return Host{unsafe.Pointer(unsafe.SliceData(b)), n}
}

// Bytes is the range itself.
func (h Host) Bytes() []byte { return unsafe.Slice((*byte)(h.p), h.n) }

// Len is the size in bytes.
func (h Host) Len() int64 { return h.n }

// Free gives the memory back, or unpins memory of [Device.Pin].
func (m *Pinned) Free() error {
	if m.p == nil {
		return nil
	}
	p := m.p
	m.p, m.n = nil, 0
	if m.registered {
		return check(C.cuMemHostUnregister(p), "unpin host memory")
	}
	return check(C.cuMemFreeHost(p), "free pinned host memory")
}
