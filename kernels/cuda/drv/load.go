//go:build cuda

package drv

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "drv.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// library is the name that the driver has on every system.
const library = "libcuda.so.1"

var load = sync.OnceValue(open)

// Load opens the driver and starts it, once; this takes some hundred milliseconds on a machine
// that has one. The error, which wraps [ErrAbsent], says why there is none. No function of the
// driver does anything before Load returned nil.
func Load() error { return load() }

func open() error {
	if v := os.Getenv("TANDEM_NO_CUDA"); v != "" && v != "0" {
		return fmt.Errorf("%w: switched off by TANDEM_NO_CUDA", ErrAbsent)
	}
	path, named := library, false
	if v := os.Getenv("TANDEM_LIBCUDA"); v != "" {
		path, named = v, true
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var why [512]C.char
	var absent C.int
	if C.td_cuda_load(cpath, &why[0], C.int(len(why)), &absent) == 0 {
		return nil
	}
	text := C.GoString(&why[0])
	switch {
	case absent != 0 && named:
		return fmt.Errorf("%w: %s, named by TANDEM_LIBCUDA, not found", ErrAbsent, path)
	case absent != 0:
		return fmt.Errorf("%w: %s not found", ErrAbsent, path)
	}
	return fmt.Errorf("%w: %s: %s", ErrAbsent, path, strings.TrimPrefix(text, path+": "))
}
