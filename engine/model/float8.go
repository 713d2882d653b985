package model

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"sync"

	"tandem/engine/tensor"
)

// FP8 checkpoints, as DeepSeek's and Qwen's are published, keep each matrix as E4M3
// codes and, in a tensor beside it, a factor for each block of rows and columns.
// Backends get both as one: tensor.F8_S, with the factor before its codes.

// scaleSuffix is what the name of a matrix gets for that of its factors.
const scaleSuffix = "_scale_inv"

// hfQuantization is the part of quantization_config that says how codes become
// numbers. How activations are quantised does not matter: they are not, here.
type hfQuantization struct {
	Method string `json:"quant_method"`
	Format string `json:"fmt"`
	Block  []int  `json:"weight_block_size"`
}

// supported refuses what would otherwise load and give wrong numbers.
func (q *hfQuantization) supported() error {
	switch {
	case q == nil:
		return nil
	case q.Method != "fp8":
		return fmt.Errorf("quant_method %q is not supported (fp8 is); use the unquantised weights or a GGUF file", q.Method)
	case q.Format != "" && q.Format != "e4m3":
		return fmt.Errorf("fmt %q is not supported (e4m3 is)", q.Format)
	case len(q.Block) != 0 && (len(q.Block) != 2 || min(q.Block[0], q.Block[1]) < 1 || max(q.Block[0], q.Block[1]) > maxWidth):
		return fmt.Errorf("weight_block_size %v: must be two numbers from 1 to %d", q.Block, maxWidth)
	}
	return nil
}

// float8Blocks is the rows and columns of a block in a checked config.json.
func float8Blocks(config []byte) (block [2]int, err error) {
	var h hfConfig
	if err = json.Unmarshal(config, &h); err == nil && h.Quantization != nil {
		copy(block[:], h.Quantization.Block)
	}
	return block, err
}

// scaled joins FP8 codes with their factors, of which every group of F8_S must have
// one. Matrices that cannot be cut so are decoded to F32.
func (c *Checkpoint) scaled(h tensor.Host) (tensor.Host, error) {
	s, rows, cols, err := c.scales(h)
	if err != nil {
		return tensor.Host{}, err
	}
	out := tensor.Host{Name: h.Name, DType: tensor.F8_S, Shape: h.Shape}
	group, size := out.DType.GroupElems(), out.DType.GroupBytes()
	per := (h.Cols() + cols - 1) / cols
	factor := func(row, col int) float32 { return s[row/rows*per+col/cols] }
	if h.Cols()%group != 0 || cols%group != 0 && cols < h.Cols() {
		out.DType, out.Data = tensor.F32, make([]byte, 4*h.Elems())
		each(h.Rows(), func(row int) {
			for col, code := range h.Row(row) {
				v := factor(row, col) * tensor.F8ToF32(code)
				binary.LittleEndian.PutUint32(out.Data[4*(row*h.Cols()+col):], math.Float32bits(v))
			}
		})
		return out, nil
	}
	line := h.Cols() / group * size
	out.Data = make([]byte, h.Rows()*line)
	each(h.Rows(), func(row int) {
		codes, to := h.Row(row), out.Data[row*line:(row+1)*line]
		for col := 0; col < len(codes); col, to = col+group, to[size:] {
			binary.LittleEndian.PutUint32(to, math.Float32bits(factor(row, col)))
			copy(to[4:size], codes[col:])
		}
	})
	return out, nil
}

// scales returns the factors of FP8 codes and how many rows and columns share one.
func (c *Checkpoint) scales(h tensor.Host) (values []float32, rows, cols int, err error) {
	i, ok := c.index[h.Name+scaleSuffix]
	if !ok || len(h.Shape) != 2 {
		return nil, 0, 0, fmt.Errorf("tensor %q is FP8 %v: it needs two dimensions and factors in a tensor %q", h.Name, h.Shape, h.Name+scaleSuffix)
	}
	s := c.tensors[i]
	rows, cols = c.float8[0], c.float8[1]
	if rows == 0 {
		rows, cols = h.Rows(), h.Cols()
	}
	if want := ceilDiv(h.Rows(), rows) * ceilDiv(h.Cols(), cols); s.Elems() != want || s.DType.GroupElems() != 1 || s.DType == tensor.F8 {
		return nil, 0, 0, fmt.Errorf("tensor %q: %v of %s, the blocks of %d x %d of a weight %v need %d factors",
			s.Name, s.Shape, s.DType, rows, cols, h.Shape, want)
	}
	values = make([]float32, s.Elems())
	return values, rows, cols, tensor.Dequantize(values, s)
}

// each calls fn for all rows, from several goroutines.
func each(rows int, fn func(row int)) {
	const span = 64
	workers := min(runtime.GOMAXPROCS(0), ceilDiv(rows, span))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for at := w * span; at < rows; at += workers * span {
				for row := at; row < min(at+span, rows); row++ {
					fn(row)
				}
			}
		})
	}
	wg.Wait()
}
