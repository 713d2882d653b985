package cpu

// #include <unistd.h>
// #include "shared.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// SharedRegion is a Region that other processes may map for reading, by its
// descriptor. It takes memory once touched, of this process's limit.
type SharedRegion struct {
	Region
	FD uintptr
}

// NewSharedRegion maps size zeroed bytes, size > 0. It fails where the system has
// no such memory.
func NewSharedRegion(size int) (SharedRegion, error) {
	var fd C.int
	p := C.tm_map_shared(C.size_t(size), &fd)
	if p == nil {
		return SharedRegion{}, fmt.Errorf("map %d bytes of shared memory: refused by the system", size)
	}
	return SharedRegion{Region{unsafe.Slice((*byte)(p), size)}, uintptr(fd)}, nil
}

// Close unmaps the region here and closes the descriptor; other processes keep
// what they have mapped.
func (r *SharedRegion) Close() {
	if r.Bytes != nil {
		r.Region.Close()
		C.close(C.int(r.FD))
	}
}
