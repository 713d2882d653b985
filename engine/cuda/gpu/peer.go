//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// CanReach tells whether kernels and copies of d can address the memory of the other device.
func (d *Device) CanReach(other *Device) (bool, error) {
	if d.dev == other.dev {
		return true, nil
	}
	n, err := d.dev.CanAccessPeer(other.dev)
	return n != 0, wrap(err, "ask whether device %d reaches %d", d.info.Ordinal, other.info.Ordinal)
}

// Reach lets kernels and copies of d address the memory of the other device. Doing it twice is fine.
func (d *Device) Reach(other *Device) error {
	if d.dev == other.dev {
		return nil
	}
	err := wrap(other.ctx.EnablePeerAccess(0), "let device %d reach %d", d.info.Ordinal, other.info.Ordinal)
	var e *Error
	if errors.As(err, &e) && e.Code == C.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
		return nil
	}
	return err
}

// Shared names device memory to another process on the same machine.
type Shared struct {
	Handle [C.CU_IPC_HANDLE_SIZE]byte // of the allocation
	Offset int64                      // of the address in it
	Size   int64                      // of the allocation, in bytes
}

// Share names memory of [Device.Alloc] for other processes. It must stay allocated until they
// closed it.
func (d *Device) Share(p Ptr) (Shared, error) {
	size, base, err := cu.DevicePtr(p).AddressRange()
	if err != nil {
		return Shared{}, fmt.Errorf("cuda: find the allocation around %#x: %w", uint64(p), err)
	}
	out := Shared{Offset: int64(uint64(p) - uint64(base)), Size: size}
	h := (*C.CUipcMemHandle)(unsafe.Pointer(&out.Handle))
	return out, check(C.cuIpcGetMemHandle(h, C.CUdeviceptr(p)), "share memory at %#x", uint64(p))
}

// OpenShared maps memory that another process shared and returns the address of its beginning, not
// of Offset. The driver refuses memory of the own process.
func (d *Device) OpenShared(m Shared) (Ptr, error) {
	var h C.CUipcMemHandle
	*(*[C.CU_IPC_HANDLE_SIZE]byte)(unsafe.Pointer(&h)) = m.Handle
	var p C.CUdeviceptr
	r := C.cuIpcOpenMemHandle(&p, h, C.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
	return Ptr(p), check(r, "open %d bytes of another process", m.Size)
}

// CloseShared unmaps what [Device.OpenShared] returned.
func (d *Device) CloseShared(p Ptr) error {
	return check(C.cuIpcCloseMemHandle(C.CUdeviceptr(p)), "close memory of another process")
}
