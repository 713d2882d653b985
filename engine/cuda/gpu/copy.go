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

// Write copies src to the device and waits.
func (d *Device) Write(dst Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	err := cu.MemcpyHtoD(cu.DevicePtr(dst), unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)))
	return wrap(err, "copy %d bytes to the device", len(src))
}

// Read fills dst from the device and waits for the copy; work of streams that do not block must be
// waited for before.
func (d *Device) Read(dst []byte, src Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	err := cu.MemcpyDtoH(unsafe.Pointer(unsafe.SliceData(dst)), cu.DevicePtr(src), int64(len(dst)))
	return wrap(err, "copy %d bytes from the device", len(dst))
}

// Write copies pinned memory to the device in stream order. src must not change before that.
func (s *Stream) Write(dst Ptr, src Host) error {
	if src.n == 0 {
		return nil
	}
	return wrap(cu.MemcpyHtoDAsync(cu.DevicePtr(dst), src.p, src.n, s.h), "copy %d bytes to the device", src.n)
}

// Read copies from the device to pinned memory in stream order.
func (s *Stream) Read(dst Host, src Ptr) error {
	if dst.n == 0 {
		return nil
	}
	return wrap(cu.MemcpyDtoHAsync(dst.p, cu.DevicePtr(src), dst.n, s.h), "copy %d bytes from the device", dst.n)
}

// Copy copies n bytes within the device in stream order. The ranges must not overlap.
func (s *Stream) Copy(dst, src Ptr, n int64) error {
	if n == 0 {
		return nil
	}
	return wrap(cu.MemcpyDtoDAsync(cu.DevicePtr(dst), cu.DevicePtr(src), n, s.h), "copy %d bytes on the device", n)
}

// CopyRows copies rows of width bytes within the device in stream order; the rows of
// either side begin its stride of bytes after one another.
func (s *Stream) CopyRows(dst Ptr, dstStride int64, src Ptr, srcStride, width int64, rows int) error {
	if width == 0 || rows == 0 {
		return nil
	}
	r := C.td_copy_rows(s.c(), C.CUdeviceptr(dst), C.size_t(dstStride), C.CUdeviceptr(src), C.size_t(srcStride), C.size_t(width), C.size_t(rows))
	if r == C.CUDA_SUCCESS {
		return nil
	}
	return refusal(int(r), fmt.Sprintf("copy %d rows of %d bytes on the device", rows, width))
}

// CopyPeer copies n bytes from another device in stream order: over the link between them where
// access is enabled, else through the host.
func (s *Stream) CopyPeer(dst Ptr, from *Device, src Ptr, n int64) error {
	if n == 0 {
		return nil
	}
	err := cu.MemcpyPeerAsync(cu.DevicePtr(dst), s.dev.ctx, cu.DevicePtr(src), from.ctx, n, s.h)
	return wrap(err, "copy %d bytes from device %d to %d", n, from.info.Ordinal, s.dev.info.Ordinal)
}

// Fill sets n bytes to v in stream order.
func (s *Stream) Fill(dst Ptr, v byte, n int64) error {
	if n == 0 {
		return nil
	}
	return wrap(cu.MemsetD8Async(cu.DevicePtr(dst), v, n, s.h), "fill %d bytes", n)
}

// Fill32 sets n words of 32 bits to v in stream order. dst is a multiple of 4.
func (s *Stream) Fill32(dst Ptr, v uint32, n int64) error {
	if n == 0 {
		return nil
	}
	return wrap(cu.MemsetD32Async(cu.DevicePtr(dst), uint(v), n, s.h), "fill %d words", n)
}
