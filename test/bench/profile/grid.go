package profile

import (
	"fmt"
	"slices"
	"time"

	"tandem/engine/tensor"
)

// Device runs batches, as backends do.
type Device interface {
	Run(*tensor.Batch) ([]float32, error)
}

// Grid says what is measured.
type Grid struct {
	Vocab       int
	BlockTokens int
	Blocks      int // of the KV pool; larger iterations are left out
	MaxRows     int // of a batch
	Repeats     int // of each iteration, of which the median counts

	CtxTokens   []int // lengths of prompt chunks, each with every
	CtxPrior    []int // number of positions before the chunk
	GenRequests []int // decoding requests, each with every
	GenContext  []int // length of their contexts
}

// DefaultGrid covers what an engine with the limits given runs.
func DefaultGrid(vocab, blockTokens, blocks, maxRows int) Grid {
	return Grid{
		Vocab: vocab, BlockTokens: blockTokens, Blocks: blocks, MaxRows: maxRows, Repeats: 3,
		CtxTokens: []int{16, 128, 512, 2048, 8192}, CtxPrior: []int{0, 512, 2048, 8192},
		GenRequests: []int{1, 2, 4, 8, 16, 32, 64, 128}, GenContext: []int{128, 512, 2048, 4096},
	}
}

// iteration is one cell of the grid: a chunk of tokens behind prior positions, and
// requests that decode behind context ones.
type iteration struct{ ctx, prior, gen, context int }

func (g Grid) iterations() (list []iteration) {
	for _, n := range g.CtxTokens {
		for _, prior := range g.CtxPrior {
			list = append(list, iteration{ctx: n, prior: prior})
		}
	}
	for _, n := range g.GenRequests {
		for _, context := range g.GenContext {
			list = append(list, iteration{gen: n, context: context})
		}
	}
	for _, n := range g.CtxTokens { // mixed
		list = append(list, iteration{ctx: n, gen: 8, context: 512})
	}
	return slices.DeleteFunc(list, func(i iteration) bool { return i.ctx+i.gen > g.MaxRows || g.blocks(i) > g.Blocks })
}

func (g Grid) blocks(i iteration) int {
	pages := func(n int) int { return (n + g.BlockTokens - 1) / g.BlockTokens }
	return i.gen*pages(i.context+1) + pages(i.prior+i.ctx)
}

// Measure runs every iteration of the grid on a device. What the cache holds does
// not matter to the time, so that contexts need not be computed first. progress,
// which may be nil, is told after each.
func (g Grid) Measure(d Device, progress func(done, all int, p Point)) ([]Point, error) {
	list := g.iterations()
	points := make([]Point, 0, len(list))
	for n, it := range list {
		p, err := g.measure(d, it)
		if err != nil {
			return nil, fmt.Errorf("%d prompt tokens behind %d, %d requests behind %d: %w", it.ctx, it.prior, it.gen, it.context, err)
		}
		points = append(points, p)
		if progress != nil {
			progress(n+1, len(list), p)
		}
	}
	return points, nil
}

func (g Grid) measure(d Device, it iteration) (Point, error) {
	batch := g.batch(it)
	times := make([]float64, 0, g.Repeats)
	for range g.Repeats + 1 { // the first is to warm up
		start := time.Now()
		if _, err := d.Run(batch); err != nil {
			return Point{}, err
		}
		times = append(times, time.Since(start).Seconds())
	}
	return Point{
		CtxTokens: it.ctx, CtxPrior: it.ctx * it.prior, GenRequests: it.gen, GenContext: it.gen * it.context,
		Seconds: quantile(times[1:], 0.5),
	}, nil
}

// batch makes the rows; every request has blocks of its own, as in life.
func (g Grid) batch(it iteration) *tensor.Batch {
	var b tensor.Batch
	b.Reset()
	next := int32(0)
	add := func(pos, rows int) {
		pages, tokens := make([]int32, (pos+rows+g.BlockTokens-1)/g.BlockTokens), make([]int32, rows)
		for i := range pages {
			pages[i], next = next, next+1
		}
		for i := range tokens {
			tokens[i] = int32((b.Rows() + i) * 7919 % g.Vocab)
		}
		b.Add(tokens, pos, pages, true)
	}
	if it.ctx > 0 {
		add(it.prior, it.ctx)
	}
	for range it.gen {
		add(it.context, 1)
	}
	return &b
}
