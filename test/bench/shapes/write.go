package shapes

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
)

// key is one of the metadata; the value is a string, uint32, float32, []string or
// []int32.
type key struct {
	name  string
	value any
}

const align = 32

// Write writes the shape with weights of an element type of Kinds to a file. An
// unfinished one is removed.
func Write(path string, s Shape, kind string) (err error) {
	if !slices.Contains(Kinds(), kind) {
		return fmt.Errorf("element type %q: %s are possible", kind, strings.Join(Kinds(), ", "))
	}
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	w := &writer{Writer: bufio.NewWriterSize(f, 1<<20)}
	w.head(s, kind)
	w.data(s, kind)
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// writer counts bytes; its errors come out of Flush.
type writer struct {
	*bufio.Writer
	at int
}

func (w *writer) put(b []byte) {
	n, _ := w.Write(b)
	w.at += n
}

func (w *writer) u32(v uint32) { w.put(binary.LittleEndian.AppendUint32(nil, v)) }
func (w *writer) u64(v int)    { w.put(binary.LittleEndian.AppendUint64(nil, uint64(v))) }

func (w *writer) text(s string) {
	w.u64(len(s))
	w.put([]byte(s))
}

// value writes its type, as GGUF numbers them, and the value.
func (w *writer) value(v any) {
	const typeU32, typeI32, typeF32, typeString, typeArray = 4, 5, 6, 8, 9
	switch v := v.(type) {
	case uint32:
		w.u32(typeU32)
		w.u32(v)
	case float32:
		w.u32(typeF32)
		w.u32(math.Float32bits(v))
	case string:
		w.u32(typeString)
		w.text(v)
	case []string:
		w.u32(typeArray)
		w.u32(typeString)
		w.u64(len(v))
		for _, s := range v {
			w.text(s)
		}
	case []int32:
		w.u32(typeArray)
		w.u32(typeI32)
		w.u64(len(v))
		for _, n := range v {
			w.u32(uint32(n))
		}
	}
}

func (w *writer) head(s Shape, kind string) {
	list, keys := s.tensors(kind), s.keys()
	w.put([]byte("GGUF"))
	w.u32(3)
	w.u64(len(list))
	w.u64(len(keys))
	for _, k := range keys {
		w.text(k.name)
		w.value(k.value)
	}
	offset := 0
	for _, t := range list {
		w.text(t.name)
		w.u32(uint32(len(t.dims)))
		for _, d := range t.dims {
			w.u64(d)
		}
		w.u32(uint32(dtypes[t.dtype].number))
		w.u64(offset)
		offset += (t.bytes() + align - 1) / align * align
	}
	w.pad()
}

func (w *writer) pad() { w.put(make([]byte, (align-w.at%align)%align)) }

// data writes values that neither vanish nor grow from layer to layer.
func (w *writer) data(s Shape, kind string) {
	var seed [32]byte
	copy(seed[:], s.Name)
	rng := rand.NewChaCha8(seed)
	for _, t := range s.tensors(kind) {
		switch {
		case t.dtype == "f32" && len(t.dims) == 1:
			for range t.dims[0] {
				w.u32(math.Float32bits(1))
			}
		default:
			w.random(rng, t)
		}
		w.pad()
	}
}

// Random returns random weights [rows, cols] of an element type of Kinds.
func Random(kind string, rows, cols int) []byte {
	var out bytes.Buffer
	w := &writer{Writer: bufio.NewWriter(&out)}
	w.random(rand.NewChaCha8([32]byte{1}), weight{"", []int{cols, rows}, kind})
	_ = w.Flush()
	return out.Bytes()
}

func (w *writer) random(rng io.Reader, t weight) {
	d := dtypes[t.dtype]
	buf := make([]byte, d.bytes<<12)
	for left := t.bytes(); left > 0; left -= len(buf) {
		buf = buf[:min(left, len(buf))]
		_, _ = io.ReadFull(rng, buf) // it never ends
		for i := 0; i < len(buf); i += d.bytes {
			tame(buf[i:i+d.bytes], t.dtype)
		}
		w.put(buf)
	}
}

// tame gives random bytes of a group the size of weights, about 0.02.
func tame(g []byte, kind string) {
	le := binary.LittleEndian
	switch kind {
	case "q8_0":
		le.PutUint16(g, 0x0cea) // 0.0003, times levels up to 128
	case "q4_0":
		le.PutUint16(g, 0x1c19) // 0.004, times levels up to 8
	case "q4_k":
		le.PutUint16(g, 0x0419)     // times 6-bit scales and levels up to 16
		le.PutUint16(g[2:], 0x0819) // times 6-bit minima
	case "bf16":
		le.PutUint16(g, le.Uint16(g)&0x807f|0x3c80)
	case "f32":
		le.PutUint32(g, le.Uint32(g)&0x807fffff|0x3c800000)
	}
}
