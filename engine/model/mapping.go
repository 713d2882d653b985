package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a file mapped read-only. The file must not shrink while it is
// mapped: the system ends a process that touches pages which are gone.
type mapping struct {
	data []byte
	mod  time.Time // when the file was changed last
}

func mapFile(path string) (*mapping, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	size := info.Size()
	if size == 0 {
		return &mapping{mod: info.ModTime()}, nil
	}
	if size > math.MaxInt {
		return nil, fmt.Errorf("%s: %d bytes do not fit the address space", path, size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &mapping{data: data, mod: info.ModTime()}, nil
}

func (m *mapping) close() error {
	if m.data == nil {
		return nil
	}
	data := m.data
	m.data = nil
	return unix.Munmap(data)
}

// release gives back the memory of whole pages inside part, if that is of the
// mapping; they are read again when touched again.
func (m *mapping) release(part []byte) {
	if len(part) == 0 || len(m.data) == 0 {
		return
	}
	base, at := uintptr(unsafe.Pointer(&m.data[0])), uintptr(unsafe.Pointer(&part[0]))
	if at < base || at-base > uintptr(len(m.data)-len(part)) {
		return
	}
	page := os.Getpagesize()
	from := (int(at-base) + page - 1) / page * page
	to := (int(at-base) + len(part)) / page * page
	if from < to {
		_ = unix.Madvise(m.data[from:to], unix.MADV_DONTNEED)
	}
}

// float32s decodes little-endian numbers.
func float32s(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}
