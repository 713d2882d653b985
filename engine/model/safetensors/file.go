package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tandem/engine/tensor"
)

// MaxHeader is the longest header accepted, in bytes. It is the format's own limit.
const MaxHeader = 100_000_000

const (
	maxDims  = 8
	maxElems = 1 << 56 // far above any file, low enough that bytes fit an int
)

// ErrHeader occurs when the bytes cannot be a safetensors file at all.
var ErrHeader = errors.New("not a safetensors file")

// File is a parsed safetensors file. Tensor data are views of the bytes given
// to Parse; they may start at any byte address.
type File struct {
	Metadata map[string]string // the optional __metadata__ entry
	tensors  []tensor.Host
	index    map[string]int
}

// Parse reads a whole file. The returned tensors borrow data.
func Parse(data []byte) (*File, error) {
	if len(data) < 8 {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrHeader, len(data))
	}
	n := binary.LittleEndian.Uint64(data)
	if n > MaxHeader || n > uint64(len(data)-8) {
		return nil, fmt.Errorf("%w: a header of %d bytes does not fit into %d bytes (limit %d)", ErrHeader, n, len(data), MaxHeader)
	}
	f := &File{index: map[string]int{}}
	if err := f.readHeader(data[8:8+n], data[8+n:]); err != nil {
		return nil, err
	}
	// The header's order is arbitrary; by name it is the same for every writer.
	slices.SortStableFunc(f.tensors, func(a, b tensor.Host) int { return strings.Compare(a.Name, b.Name) })
	for i, t := range f.tensors {
		f.index[t.Name] = i
	}
	return f, nil
}

// readHeader walks the outer object token by token, because decoding into a map
// would hide a name that occurs twice.
func (f *File) readHeader(header, body []byte) error {
	dec := json.NewDecoder(bytes.NewReader(header))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return fmt.Errorf("%w: the header is no JSON object", ErrHeader)
	}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return fmt.Errorf("safetensors header: %w", err)
		}
		name, _ := tok.(string) // keys of an object are always strings
		if name == "__metadata__" {
			if err := dec.Decode(&f.Metadata); err != nil {
				return fmt.Errorf("safetensors header: __metadata__: %w", err)
			}
			continue
		}
		if _, dup := f.index[name]; dup {
			return fmt.Errorf("tensor %q occurs twice", name)
		}
		f.index[name] = len(f.tensors)
		var e entry
		if err := dec.Decode(&e); err != nil {
			return fmt.Errorf("tensor %q: safetensors header: %w", name, err)
		}
		host, err := e.host(name, body)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		f.tensors = append(f.tensors, host)
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("safetensors header: %w", err)
	}
	return nil
}

// entry is one tensor's record in the header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []uint64 `json:"shape"`
	Offsets []uint64 `json:"data_offsets"` // [from, to) within the body
}

func (e entry) host(name string, body []byte) (tensor.Host, error) {
	h := tensor.Host{Name: name}
	switch e.DType {
	case "F32":
		h.DType = tensor.F32
	case "F16":
		h.DType = tensor.F16
	case "BF16":
		h.DType = tensor.BF16
	case "F8_E4M3":
		h.DType = tensor.F8
	default:
		return h, fmt.Errorf("element type %q is not supported (F32, F16, BF16 and F8_E4M3 are)", e.DType)
	}
	if len(e.Shape) > maxDims {
		return h, fmt.Errorf("has %d dimensions, at most %d are possible", len(e.Shape), maxDims)
	}
	elems := uint64(1)
	for _, d := range e.Shape {
		if d == 0 || d > maxElems/elems {
			return h, fmt.Errorf("dimension %d is impossible", d)
		}
		elems *= d
		h.Shape = append(h.Shape, int(d))
	}
	if len(h.Shape) == 0 {
		h.Shape = []int{1} // a scalar
	}
	if len(e.Offsets) != 2 {
		return h, fmt.Errorf("data_offsets has %d entries, want 2", len(e.Offsets))
	}
	from, to := e.Offsets[0], e.Offsets[1]
	if from > to || to > uint64(len(body)) {
		return h, fmt.Errorf("data_offsets [%d, %d] end outside the file's %d data bytes (is it truncated?)", from, to, len(body))
	}
	h.Data = body[from:to:to]
	if want := elems * uint64(h.DType.GroupBytes()); want != to-from {
		return h, fmt.Errorf("shape %v of %s needs %d bytes, data_offsets give %d", e.Shape, h.DType, want, to-from)
	}
	return h, nil
}

// Tensors returns all tensors ordered by name. The slice must not be changed.
func (f *File) Tensors() []tensor.Host { return f.tensors }

// Tensor returns the named tensor.
func (f *File) Tensor(name string) (tensor.Host, bool) {
	i, ok := f.index[name]
	if !ok {
		return tensor.Host{}, false
	}
	return f.tensors[i], true
}
