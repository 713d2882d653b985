//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"gorgonia.org/cu"
)

// Pick returns the place in targets, compute capabilities as in [Info], of the highest one that
// code for the device may have been built for.
func Pick(capability int, targets []int) (int, error) {
	best := -1
	for i, t := range targets {
		if t <= capability && (best < 0 || t > targets[best]) {
			best = i
		}
	}
	if best < 0 && len(targets) > 0 {
		low := slices.Min(targets)
		return 0, fmt.Errorf("the device has compute capability %d.%d; the kernels need %d.%d or later",
			capability/10, capability%10, low/10, low%10)
	}
	if best < 0 {
		return 0, fmt.Errorf("no kernels are built in")
	}
	return best, nil
}

// Module is loaded code.
type Module struct {
	h   C.CUmodule
	dev *Device
}

// Load compiles PTX, or takes a cubin as it is. The error holds what the compiler wrote.
func (d *Device) Load(image []byte) (*Module, error) {
	text := C.CBytes(append(slices.Clip(image), 0))
	defer C.free(text)
	const logBytes = 8 << 10
	log := (*C.char)(C.calloc(1, logBytes))
	defer C.free(unsafe.Pointer(log))
	m := &Module{dev: d}
	r := C.td_module_load(&m.h, text, log, logBytes-1)
	if r != C.CUDA_SUCCESS {
		e := refusal(int(r), fmt.Sprintf("load a module of %d bytes", len(image)))
		e.Log = strings.TrimSpace(C.GoString(log))
		return nil, e
	}
	return m, nil
}

// Unload gives the code back; its kernels must not be used any more.
func (m *Module) Unload() error { return check(C.cuModuleUnload(m.h), "unload a module") }

// Kernel returns the entry of that name.
func (m *Module) Kernel(name string) (*Kernel, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	k := &Kernel{name: name}
	if err := check(C.cuModuleGetFunction(&k.f, m.h, cname), "find kernel %s", name); err != nil {
		return nil, err
	}
	return k, nil
}

// Global returns where a variable of the code lies, and its size in bytes.
func (m *Module) Global(name string) (Ptr, int64, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var p C.CUdeviceptr
	var n C.size_t
	err := check(C.cuModuleGetGlobal(&p, &n, m.h, cname), "find variable %s", name)
	return Ptr(p), int64(n), err
}

// Kernel is one entry of a module.
type Kernel struct {
	f    C.CUfunction
	name string
}

// Name is the entry's name.
func (k *Kernel) Name() string { return k.name }

func (k *Kernel) binding() cu.Function { return *(*cu.Function)(unsafe.Pointer(&k.f)) }

// AllowShared lets launches ask for up to n bytes of dynamic shared memory. Without it the limit
// is 48 KiB; n is at most [Info].Shared less what the kernel declares.
func (k *Kernel) AllowShared(n int) error {
	r := C.cuFuncSetAttribute(k.f, C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(n))
	return check(r, "let kernel %s use %d bytes of shared memory", k.name, n)
}

// Usage is what a kernel needs for each thread and block.
type Usage struct {
	Registers  int // of a thread
	Local      int // bytes of local memory of a thread: spills and arrays
	Shared     int // bytes of declared shared memory of a block
	MaxThreads int // of a block
}

// Usage asks the driver what the compiled kernel needs.
func (k *Kernel) Usage() (Usage, error) {
	var u Usage
	for _, a := range []struct {
		attribute cu.FunctionAttribute
		to        *int
	}{
		{cu.NumRegs, &u.Registers},
		{cu.LocalSizeBytes, &u.Local},
		{cu.SharedSizeBytes, &u.Shared},
		{cu.FnMaxThreadsPerBlock, &u.MaxThreads},
	} {
		v, err := k.binding().Attribute(a.attribute)
		if err != nil {
			return u, wrap(err, "ask for attribute %d of kernel %s", a.attribute, k.name)
		}
		*a.to = v
	}
	return u, nil
}

// Occupancy is how many blocks of that many threads and bytes of dynamic shared memory a
// multiprocessor runs at once.
func (k *Kernel) Occupancy(threads, shared int) (int, error) {
	var n C.int
	r := C.cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, k.f, C.int(threads), C.size_t(shared))
	return int(n), check(r, "ask for the occupancy of kernel %s", k.name)
}
