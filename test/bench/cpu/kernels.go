package main

import (
	"bytes"
	"fmt"
	"time"

	"tandem/engine/cpu"
	"tandem/engine/tensor"
	"tandem/test/bench/shapes"
)

// The matrix of the products: a feed-forward weight of a model of 1B.
const (
	matrixRows, matrixCols = 8192, 2048
	productOps             = 6 // in one step
	smallVocab             = 16
)

var types = []struct {
	name string
	d    tensor.DType
}{{"q4_0", tensor.Q4_0}, {"q4_k", tensor.Q4_K}, {"q8_0", tensor.Q8_0}, {"bf16", tensor.BF16}}

var rowCounts = []int{1, 2, 4, 8, 16, 32, 64, 512}

// pass is a recorded pass of equal ops between an embedding and logits that cost
// next to nothing.
type pass struct {
	*cpu.Backend
	batch tensor.Batch
}

func (o *options) newPass(maxRows int, kv tensor.KVShape) (*pass, error) {
	b, err := cpu.New(cpu.Config{Threads: o.threads, KV: kv, MaxRows: maxRows, Activations: o.form()})
	if err != nil {
		return nil, err
	}
	return &pass{Backend: b}, nil
}

func (p *pass) matrix(kind string, d tensor.DType, rows, cols int) (tensor.Matrix, error) {
	return p.Matrix(tensor.Host{Name: kind, DType: d, Shape: []int{rows, cols}, Data: shapes.Random(kind, rows, cols)})
}

// record puts ops between embedding and logits of a buffer of width cols.
func (p *pass) record(cols int, ops func(x tensor.Buffer) error) error {
	table, err := p.matrix("q8_0", tensor.Q8_0, smallVocab, cols)
	if err != nil {
		return err
	}
	norm, err := p.Vector(tensor.Host{Name: "norm", DType: tensor.F32, Shape: []int{cols}, Data: make([]byte, 4*cols)})
	if err != nil {
		return err
	}
	x := p.Buffer(cols)
	p.Embed(x, table)
	if err := ops(x); err != nil {
		return err
	}
	p.Logits(x, norm, 1e-5, table, nil)
	return p.Seal(smallVocab)
}

// fastest is the shortest of many steps, for about a third of a second.
func (p *pass) fastest() (time.Duration, error) {
	best := time.Hour
	for end, i := time.Now().Add(time.Second/3), 0; i < 5 || time.Now().Before(end); i++ {
		start := time.Now()
		if _, err := p.Run(&p.batch); err != nil {
			return 0, err
		}
		best = min(best, time.Since(start))
	}
	return best, nil
}

func (o *options) header(out *bytes.Buffer) {
	fmt.Fprintf(out, "\n| | rows | GB/s of weights | share of reading | GOP/s | share of arithmetic |\n|---|---|---|---|---|---|\n")
}

// kernels are the matrix products of each format, then attention.
func kernels(o *options, out *bytes.Buffer) error {
	fmt.Fprintf(out, "Products of [rows, %d] with [%d, %d], quantising the rows included:\n", matrixCols, matrixRows, matrixCols)
	o.header(out)
	for _, t := range types {
		if err := o.products(out, t.name, t.d); err != nil {
			return err
		}
	}
	tiles(out)
	fmt.Fprintf(out, "\nAttention of 32 heads over 8 of keys and values, 64 wide, in bfloat16, one query a sequence:\n")
	fmt.Fprintf(out, "\n| sequences | depth | GB/s of keys and values | share of reading |\n|---|---|---|---|\n")
	return o.attention(out)
}

// form is what activations become beside quantised weights, by default what a worker does.
func (o *options) form() cpu.Activations {
	switch o.activations {
	case "int8":
		return cpu.Activations8
	case "int16":
		return cpu.Activations16
	}
	return cpu.BestActivations("")
}

// peak is the arithmetic that products with weights of a kind can reach.
func (o *options) peak(l cpu.Limits, kind string) float64 {
	if o.form() == cpu.Activations8 && kind != "bf16" {
		return max(l.Int16, l.Int8)
	}
	return max(l.Int16, l.Int8/2) // activations of 16 bits are two bytes
}

func (o *options) products(out *bytes.Buffer, kind string, d tensor.DType) error {
	p, err := o.newPass(rowCounts[len(rowCounts)-1], tensor.KVShape{Layers: 1, KVHeads: 1, HeadDim: 64, BlockTokens: 16, Blocks: 40, DType: tensor.BF16})
	if err != nil {
		return err
	}
	defer p.Close()
	err = p.record(matrixCols, func(x tensor.Buffer) error {
		w, err := p.matrix(kind, d, matrixRows, matrixCols)
		y := p.Buffer(matrixRows)
		for range productOps {
			p.AddLinear(y, x, w, tensor.None)
		}
		return err
	})
	if err != nil {
		return err
	}
	weights := p.MemoryReport().WeightBytes
	if _, err := o.measureLimits(); err != nil { // before the products, and behind them
		return err
	}
	took := make([]float64, len(rowCounts)) // seconds of one product
	for i, rows := range rowCounts {
		p.batch.Reset()
		p.batch.Add(make([]int32, rows), 0, pagesOf(0, rows), false)
		all, err := p.fastest()
		if err != nil {
			return err
		}
		took[i] = all.Seconds() / productOps
	}
	l, err := o.measureLimits()
	if err != nil {
		return err
	}
	for i, rows := range rowCounts {
		rate, ops := float64(weights)/took[i], 2*float64(rows)*matrixRows*matrixCols/took[i]
		fmt.Fprintf(out, "| %s | %d | %.1f | %.0f %% | %.0f | %.0f %% |\n", kind, rows, rate/1e9, 100*rate/readLimit(l, weights), ops/1e9, 100*ops/o.peak(l, kind))
	}
	return nil
}

// tiles shows from how many rows on tile registers pay, where there are some.
func tiles(out *bytes.Buffer) {
	counts := []int{4, 8, 12, 16, 24, 32, 64}
	if cpu.TileGain(counts[0]) == 0 {
		return
	}
	fmt.Fprintf(out, "\nProducts in AMX tiles over the same without, one thread (tiles are used from %d rows on):\n\n| rows | times as fast |\n|---|---|\n", cpu.TileRows)
	for _, rows := range counts {
		fmt.Fprintf(out, "| %d | %.2f |\n", rows, cpu.TileGain(rows))
	}
}

// pagesOf gives sequence s its own blocks for n tokens.
func pagesOf(s, n int) []int32 {
	per := (n + 15) / 16
	list := make([]int32, per)
	for i := range list {
		list[i] = int32(s*per + i)
	}
	return list
}

func (o *options) attention(out *bytes.Buffer) error {
	const layers, heads, kvHeads, width, most = 4, 32, 8, 64, 8192
	kv := tensor.KVShape{Layers: layers, KVHeads: kvHeads, HeadDim: width, BlockTokens: 16, Blocks: 8*2048/16 + 8, DType: tensor.BF16}
	p, err := o.newPass(64, kv)
	if err != nil {
		return err
	}
	defer p.Close()
	err = p.record(heads*width, func(x tensor.Buffer) error {
		y := p.Buffer(heads * width)
		for i := range layers {
			p.Attention(y, x, tensor.Attn{Layer: i, Heads: heads, KVHeads: kvHeads, HeadDim: width, Scale: 0.125})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range kv.Blocks { // pages that nothing wrote are one page
		b := p.Block(int32(i))
		for j := 0; j < len(b); j += 2 {
			b[j+1] = 0x3c
		}
	}
	for _, c := range []struct{ seqs, depth int }{{1, 128}, {1, 2048}, {1, most}, {8, 128}, {8, 2048}} {
		p.batch.Reset()
		for s := range c.seqs {
			p.batch.Add([]int32{1}, c.depth-1, pagesOf(s, c.depth), false)
		}
		took, err := p.fastest()
		if err != nil {
			return err
		}
		bytes := c.seqs * c.depth * layers * 2 * kvHeads * width * 2
		l, err := o.measureLimits()
		if err != nil {
			return err
		}
		rate := float64(bytes) / took.Seconds()
		fmt.Fprintf(out, "| %d | %d | %.1f | %.0f %% |\n", c.seqs, c.depth, rate/1e9, 100*rate/readLimit(l, bytes))
	}
	return nil
}
