//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"reflect"

	"tandem/kernels/cuda/drv"
)

var (
	// ErrNoDevice says that this machine has no usable CUDA device; the message says why.
	ErrNoDevice = drv.ErrAbsent
	// ErrOutOfMemory says that the device, or the host for pinned memory, has too little memory
	// left. The context stays usable.
	ErrOutOfMemory = errors.New("out of GPU memory")
	// ErrBroken says that a kernel or the hardware failed such that every later call on the context
	// fails too; only a new process helps.
	ErrBroken = errors.New("the CUDA context is lost")
	// ErrClosed is the answer of a device after Close.
	ErrClosed = errors.New("the device is closed")
)

// Error is a refusal by the driver.
type Error struct {
	Op   string // what was tried, with its sizes
	Code int    // the driver's number
	Name string // the driver's name of the number, such as CUDA_ERROR_INVALID_VALUE
	Text string // the driver's description
	Log  string // what the compiler in the driver wrote, for modules
}

// Error names what was tried, then the driver's name, number and description.
func (e *Error) Error() string {
	s := fmt.Sprintf("cuda: %s: %s (%d)", e.Op, e.Name, e.Code)
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Log != "" {
		s += ": " + e.Log
	}
	return s
}

// Is makes errors.Is see the three kinds of errors that callers treat differently.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutOfMemory:
		return e.Code == C.CUDA_ERROR_OUT_OF_MEMORY
	case ErrBroken:
		return broken(e.Code)
	case ErrNoDevice:
		return e.Code == C.CUDA_ERROR_NO_DEVICE || e.Code == C.CUDA_ERROR_STUB_LIBRARY
	}
	return false
}

// broken lists the results after which a context answers nothing else.
func broken(code int) bool {
	switch code {
	case C.CUDA_ERROR_ECC_UNCORRECTABLE, C.CUDA_ERROR_NVLINK_UNCORRECTABLE,
		C.CUDA_ERROR_ILLEGAL_ADDRESS, C.CUDA_ERROR_LAUNCH_TIMEOUT, C.CUDA_ERROR_ASSERT,
		C.CUDA_ERROR_HARDWARE_STACK_ERROR, C.CUDA_ERROR_ILLEGAL_INSTRUCTION,
		C.CUDA_ERROR_MISALIGNED_ADDRESS, C.CUDA_ERROR_INVALID_ADDRESS_SPACE, C.CUDA_ERROR_INVALID_PC,
		C.CUDA_ERROR_LAUNCH_FAILED, C.CUDA_ERROR_EXTERNAL_DEVICE, C.CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return true
	}
	return false
}

// refusal makes an error of a result other than success.
func refusal(code int, op string) *Error {
	e := &Error{Op: op, Code: code, Name: "CUDA_ERROR"}
	var s *C.char
	if C.cuGetErrorName(C.CUresult(code), &s) == C.CUDA_SUCCESS && s != nil {
		e.Name = C.GoString(s)
	}
	s = nil
	if C.cuGetErrorString(C.CUresult(code), &s) == C.CUDA_SUCCESS && s != nil {
		e.Text = C.GoString(s)
	}
	if code == C.CUDA_ERROR_INVALID_CONTEXT {
		e.Text += " (was this called outside Device.Do?)"
	}
	return e
}

// check turns a result of the driver into an error. Op and its arguments are formatted only then.
func check(r C.CUresult, op string, args ...any) error {
	if r == C.CUDA_SUCCESS {
		return nil
	}
	return refusal(int(r), fmt.Sprintf(op, args...))
}

// wrap turns an error of the binding, which is the driver's number in a type of its own, into ours.
func wrap(err error, op string, args ...any) error {
	if err == nil {
		return nil
	}
	if v := reflect.ValueOf(err); v.CanInt() {
		return refusal(int(v.Int()), fmt.Sprintf(op, args...))
	}
	return fmt.Errorf("cuda: %s: %w", fmt.Sprintf(op, args...), err)
}

// isNotReady tells the answer of a query whose work still runs.
func isNotReady(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == C.CUDA_ERROR_NOT_READY
}
