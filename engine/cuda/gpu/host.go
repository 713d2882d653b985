//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import "runtime/cgo"

// HostFunc is a function of Go that a stream calls. It runs on a thread of the driver and must not
// call this package or wait for the device.
type HostFunc struct {
	h    cgo.Handle
	fn   func()
	once bool
}

// NewHostFunc registers fn for any number of calls; it is needed inside captures.
func NewHostFunc(fn func()) *HostFunc {
	f := &HostFunc{fn: fn}
	f.h = cgo.NewHandle(f)
	return f
}

// Free forgets the function. No stream or graph may call it any more.
func (f *HostFunc) Free() { f.h.Delete() }

// Call queues a call of f.
func (s *Stream) Call(f *HostFunc) error {
	return check(C.td_host_func(s.c(), C.uintptr_t(f.h)), "queue a call of the host")
}

// Then queues one call of fn. It is not for captures, which could run it again.
func (s *Stream) Then(fn func()) error {
	f := NewHostFunc(fn)
	f.once = true
	if err := s.Call(f); err != nil {
		f.Free()
		return err
	}
	return nil
}

//export tdHostFunc
func tdHostFunc(handle C.uintptr_t) {
	f := cgo.Handle(handle).Value().(*HostFunc)
	if f.once {
		f.Free()
	}
	f.fn()
}
