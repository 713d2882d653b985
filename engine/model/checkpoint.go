package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"tandem/engine/tensor"
)

// Format names a kind of model file.
type Format string

// The formats that Open reads.
const (
	FormatGGUF        Format = "gguf"
	FormatSafetensors Format = "safetensors" // a Hugging Face folder
)

// ErrNotModel occurs when a path holds nothing that Open can read.
var ErrNotModel = errors.New("is not a model: expected a GGUF file or a folder with config.json and safetensors")

// Checkpoint is an open model. Tensors are views of mapped files, valid until
// Close. It is safe for concurrent readers.
type Checkpoint struct {
	Path      string // as given to Open, or the GGUF file found in that folder
	Format    Format
	Config    Config
	Tokenizer TokenizerData

	tensors []tensor.Host
	index   map[string]int // by the file's own names
	maps    []*mapping
	f32     bool

	once        sync.Once
	fingerprint string

	float8 [2]int // rows and columns that share a scale of FP8 weights; 0 = the whole tensor
}

// Has reports whether the checkpoint holds the tensor of a canonical name.
func (c *Checkpoint) Has(name string) bool {
	_, ok := c.index[c.fileName(name)]
	return ok
}

// Tensor returns the tensor of a canonical name such as "blk.0.attn_q.weight"
// and checks its shape. Errors name the tensor as the file does. A checkpoint
// opened with AsF32 returns a fresh copy in F32 on each call.
func (c *Checkpoint) Tensor(name string, shape ...int) (tensor.Host, error) {
	h, err := c.stored(c.fileName(name), shape...)
	if err == nil && c.f32 {
		return toF32(h)
	}
	return h, err
}

// Expert returns the part [rows, cols] that belongs to one of a layer's experts
// of a canonical name such as "blk.0.ffn_up_exps.weight": a slice of GGUF's
// stacked tensor, or the expert's own tensor in a Hugging Face folder.
func (c *Checkpoint) Expert(name string, expert, experts, rows, cols int) (tensor.Host, error) {
	var h tensor.Host
	var err error
	if c.Format == FormatSafetensors {
		h, err = c.stored(c.present(hfExpertName(name, expert)), rows, cols)
	} else if h, err = c.stored(name, experts, rows, cols); err == nil {
		size := len(h.Data) / experts
		h.Name = fmt.Sprintf("%s[%d]", name, expert)
		h.Shape, h.Data = []int{rows, cols}, h.Data[expert*size:(expert+1)*size]
	}
	if err == nil && c.f32 {
		return toF32(h)
	}
	return h, err
}

// stored returns a tensor of the file as it is, but for FP8, and checks its shape.
func (c *Checkpoint) stored(fileName string, shape ...int) (tensor.Host, error) {
	i, ok := c.index[fileName]
	if !ok {
		return tensor.Host{}, fmt.Errorf("tensor %q is missing", fileName)
	}
	h := c.tensors[i]
	if !slices.Equal(h.Shape, shape) {
		return tensor.Host{}, fmt.Errorf("tensor %q has shape %v, the model's configuration asks for %v", fileName, h.Shape, shape)
	}
	if h.DType == tensor.F8 {
		return c.scaled(h)
	}
	return h, nil
}

func (c *Checkpoint) fileName(name string) string {
	if c.Format == FormatSafetensors {
		return c.present(hfName(c.Config.Arch, name))
	}
	return name
}

// present drops the prefix "model." that folders saved without the
// language-model head lack.
func (c *Checkpoint) present(name string) string {
	if _, ok := c.index[name]; !ok {
		if short, found := cutModel(name); found {
			if _, ok := c.index[short]; ok {
				return short
			}
		}
	}
	return name
}

func cutModel(name string) (string, bool) {
	const prefix = "model."
	if len(name) > len(prefix) && name[:len(prefix)] == prefix {
		return name[len(prefix):], true
	}
	return name, false
}

// toF32 decodes row by row, so that only one row exists twice. A tensor that is
// F32 already is returned as it is.
func toF32(h tensor.Host) (tensor.Host, error) {
	if h.DType == tensor.F32 {
		return h, nil
	}
	out := tensor.Host{Name: h.Name, DType: tensor.F32, Shape: h.Shape, Data: make([]byte, 4*h.Elems())}
	row := make([]float32, h.Cols())
	one := tensor.Host{Name: h.Name, DType: h.DType, Shape: []int{1, h.Cols()}}
	for i := range h.Rows() {
		one.Data = h.Row(i)
		if err := tensor.Dequantize(row, one); err != nil {
			return out, err
		}
		dst := out.Data[4*i*len(row):]
		for j, x := range row {
			binary.LittleEndian.PutUint32(dst[4*j:], math.Float32bits(x))
		}
	}
	return out, nil
}

// Tensors lists all tensors with the file's own names, types and bytes: GGUF in
// file order, folders by name. The slice and the data must not be changed.
func (c *Checkpoint) Tensors() []tensor.Host { return c.tensors }

// Params returns the number of weights.
func (c *Checkpoint) Params() int {
	n := 0
	for _, t := range c.tensors {
		if !strings.HasSuffix(t.Name, scaleSuffix) {
			n += t.Elems()
		}
	}
	return n
}

// Bytes returns the stored size of all tensors.
func (c *Checkpoint) Bytes() int {
	n := 0
	for _, t := range c.tensors {
		n += len(t.Data)
	}
	return n
}

// F32 reports whether tensors are handed out decoded (option AsF32).
func (c *Checkpoint) F32() bool { return c.f32 }

// Close unmaps the files. Tensors must not be used afterwards; calling it twice
// is harmless.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, m := range c.maps {
		errs = append(errs, m.close())
	}
	c.maps, c.tensors, c.index = nil, nil, nil
	return errors.Join(errs...)
}

func (c *Checkpoint) add(tensors []tensor.Host) error {
	for _, t := range tensors {
		if _, dup := c.index[t.Name]; dup {
			return fmt.Errorf("tensor %q occurs in two shards", t.Name)
		}
		c.index[t.Name] = len(c.tensors)
		c.tensors = append(c.tensors, t)
	}
	return nil
}
