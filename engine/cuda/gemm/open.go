//go:build cuda

package gemm

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "lt.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// ErrAbsent says that there is no cuBLASLt to open; the message says what was tried.
var ErrAbsent = errors.New("cuBLASLt not found")

// names are tried in this order.
var names = []string{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}

var load = sync.OnceValue(open)

// Load opens the library, once. The error wraps [ErrAbsent] and names the remedy.
func Load() error { return load() }

// Version is the library's version, 10000 x major + 100 x minor + patch, after [Load].
func Version() int { return int(C.td_lt_version()) }

func open() error {
	if v := os.Getenv("TANDEM_CUBLASLT"); v != "" {
		if why := try(v); why != "" {
			return fmt.Errorf("%w: TANDEM_CUBLASLT names %s: %s", ErrAbsent, v, why)
		}
		return nil
	}
	for _, n := range names {
		why := try(n)
		if why == "" {
			return nil
		}
		if !strings.Contains(why, "No such file") {
			return fmt.Errorf("%w: %s: %s", ErrAbsent, n, why)
		}
	}
	return fmt.Errorf("%w: tried %s; install CUDA's cuBLAS, or name the library in TANDEM_CUBLASLT",
		ErrAbsent, strings.Join(names, ", "))
}

// try returns why the library at path cannot be used.
func try(path string) string {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var why [512]C.char
	if C.td_lt_open(cpath, &why[0], C.int(len(why))) == 0 {
		return ""
	}
	return C.GoString(&why[0])
}

// Error is a refusal by the library.
type Error struct {
	Op     string // what was tried
	Status int    // the library's number
}

var statuses = map[int]string{
	1:  "NOT_INITIALIZED: the library finds no usable driver",
	3:  "ALLOC_FAILED",
	7:  "INVALID_VALUE",
	8:  "ARCH_MISMATCH: the library does not know this device",
	11: "MAPPING_ERROR",
	13: "EXECUTION_FAILED",
	14: "INTERNAL_ERROR",
	15: "NOT_SUPPORTED: no algorithm for these types and sizes",
	16: "LICENSE_ERROR",
}

// Error names what was tried and the library's status.
func (e *Error) Error() string {
	text, ok := statuses[e.Status]
	if !ok {
		text = "unknown status"
	}
	return fmt.Sprintf("cublasLt: %s: %s (%d)", e.Op, text, e.Status)
}
