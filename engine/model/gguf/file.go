package gguf

import (
	"errors"
	"fmt"
	"slices"

	"tandem/engine/tensor"
)

// Magic is what a GGUF file starts with.
const Magic = "GGUF"

const (
	defaultAlignment = 32
	maxAlignment     = 1 << 20
	maxDims          = 8
	minKeyBytes      = 8 + 4 + 1         // key length, type, smallest value
	minTensorBytes   = 8 + 4 + 8 + 4 + 8 // name length, dimension count, one dimension, type, offset
)

// ErrNotGGUF occurs when the bytes do not start with the GGUF magic.
var ErrNotGGUF = errors.New("not a GGUF file")

// File is a parsed GGUF file. Metadata is copied; tensor data are views of the
// bytes given to Parse.
type File struct {
	Version   int
	Alignment int // bytes; every tensor starts at a multiple of it
	keys      []string
	values    map[string]Value
	tensors   []tensor.Host
	index     map[string]int
}

// Parse reads a whole file. The returned tensors borrow data.
func Parse(data []byte) (*File, error) {
	if len(data) < 4 || string(data[:4]) != Magic {
		return nil, ErrNotGGUF
	}
	c := &cursor{data: data, pos: 4}
	f := &File{Alignment: defaultAlignment, values: map[string]Value{}, index: map[string]int{}}
	version := c.u32()
	if c.err != nil {
		return nil, fmt.Errorf("GGUF header: %w", c.err)
	}
	if version != 2 && version != 3 {
		if version&0xffff == 0 {
			return nil, fmt.Errorf("GGUF version field %#x: big-endian files are not supported", version)
		}
		return nil, fmt.Errorf("GGUF version %d is not supported, only 2 and 3", version)
	}
	f.Version = int(version)
	nTensors, nKeys := c.u64(), c.u64()
	if err := f.readMetadata(c, nKeys); err != nil {
		return nil, err
	}
	if err := f.readTensors(c, nTensors); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) readMetadata(c *cursor, count uint64) error {
	n := c.fits(count, minKeyBytes)
	if c.err != nil {
		return fmt.Errorf("GGUF metadata: %w", c.err)
	}
	for i := range n {
		key := c.str()
		if c.err != nil {
			return fmt.Errorf("GGUF metadata key %d of %d: %w", i, n, c.err)
		}
		if _, dup := f.values[key]; dup {
			return fmt.Errorf("GGUF key %q occurs twice", key)
		}
		v := c.value(1)
		if c.err != nil {
			return fmt.Errorf("GGUF key %q: %w", key, c.err)
		}
		f.keys = append(f.keys, key)
		f.values[key] = v
	}
	if !f.Has("general.alignment") {
		return nil
	}
	a, err := f.Uint("general.alignment")
	if err != nil {
		return err
	}
	if a == 0 || a > maxAlignment || a&(a-1) != 0 {
		return fmt.Errorf("GGUF key \"general.alignment\": %d is no power of two up to %d", a, maxAlignment)
	}
	f.Alignment = int(a)
	return nil
}

// entry is a tensor record as the file has it, before its data are located.
type entry struct {
	host   tensor.Host
	bytes  uint64
	offset uint64
}

func (f *File) readTensors(c *cursor, count uint64) error {
	n := c.fits(count, minTensorBytes)
	if c.err != nil {
		return fmt.Errorf("GGUF tensor list: %w", c.err)
	}
	var entries []entry
	for i := range n {
		e, err := f.readEntry(c, i, n)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	align := uint64(f.Alignment)
	start := (uint64(c.pos) + align - 1) / align * align
	for _, e := range entries {
		if e.offset%align != 0 {
			return fmt.Errorf("tensor %q: offset %d is no multiple of the alignment %d", e.host.Name, e.offset, align)
		}
		size := uint64(len(c.data))
		if start > size || e.offset > size-start || e.bytes > size-start-e.offset {
			return fmt.Errorf("tensor %q: %d bytes at data offset %d end outside the file (%d bytes; is it truncated?)",
				e.host.Name, e.bytes, e.offset, size)
		}
		from := start + e.offset
		e.host.Data = c.data[from : from+e.bytes : from+e.bytes]
		f.tensors = append(f.tensors, e.host)
	}
	return nil
}

func (f *File) readEntry(c *cursor, i, n int) (entry, error) {
	var e entry
	e.host.Name = c.str()
	if c.err != nil {
		return e, fmt.Errorf("GGUF tensor %d of %d: %w", i, n, c.err)
	}
	name := e.host.Name
	if _, dup := f.index[name]; dup {
		return e, fmt.Errorf("tensor %q occurs twice", name)
	}
	f.index[name] = i
	dims := c.u32()
	if c.err == nil && (dims == 0 || dims > maxDims) {
		c.fail("has %d dimensions, 1 to %d are possible", dims, maxDims)
	}
	elems := uint64(1)
	for range dims {
		d := c.u64()
		if c.err != nil {
			break
		}
		const maxElems = 1 << 56 // far above any file, low enough that bytes fit an int
		if d == 0 || d > maxElems/elems {
			c.fail("dimension %d is impossible", d)
			break
		}
		elems *= d
		e.host.Shape = append(e.host.Shape, int(d))
	}
	kind := c.u32()
	e.offset = c.u64()
	if c.err != nil {
		return e, fmt.Errorf("tensor %q: %w", name, c.err)
	}
	slices.Reverse(e.host.Shape) // the file has the innermost dimension first
	dtype, err := elementType(kind)
	if err != nil {
		return e, fmt.Errorf("tensor %q: %w", name, err)
	}
	e.host.DType = dtype
	row, err := dtype.Bytes(e.host.Cols())
	if err != nil {
		return e, fmt.Errorf("tensor %q: %w", name, err)
	}
	e.bytes = uint64(row) * uint64(e.host.Rows())
	return e, nil
}

// Tensors returns all tensors in file order. The slice must not be changed.
func (f *File) Tensors() []tensor.Host { return f.tensors }

// Tensor returns the named tensor.
func (f *File) Tensor(name string) (tensor.Host, bool) {
	i, ok := f.index[name]
	if !ok {
		return tensor.Host{}, false
	}
	return f.tensors[i], true
}
