package cpu

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"tandem/engine/tensor"
)

// aloneGroup is a group of one, whose collectives cost next to nothing.
type aloneGroup struct{}

func (aloneGroup) ID() int   { return 0 }
func (aloneGroup) Size() int { return 1 }

func (aloneGroup) AllGather(_ context.Context, dst, src []float32, _ []int, _ int) error {
	if len(dst) > 0 && &dst[0] != &src[0] {
		copy(dst, src)
	}
	return nil
}

func (aloneGroup) ReduceScatter(_ context.Context, dst, src []float32, _ []int, _ int) error {
	copy(dst, src)
	return nil
}

// What it costs to split a pass in segments: the same model without a group, and
// in a group of one as under tensor parallelism, with five collectives a layer.
func BenchmarkSegments(b *testing.B) {
	s := shape{layers: 12, hidden: 64, heads: 4, kvHeads: 2, headDim: 16, inter: 64, vocab: 64, dtype: tensor.Q8_0}
	w := newWeights(s, 1)
	for _, threads := range []int{1, 2} {
		cfg := groupConfig("", threads, tensor.BF16)
		one := plain(b, w, cfg)
		cfg.Group, cfg.KV.KVHeads = aloneGroup{}, w.kvHeads
		for name, e := range map[string]*Backend{"alone": one, "group": sealed(b, w, cfg, (*part).recordTP)} {
			for _, rows := range []int{1, 8} {
				b.Run(fmt.Sprintf("threads-%d/rows-%d/%s", threads, rows, name), func(b *testing.B) {
					batch := decodeOf(rows, 0, s.vocab)
					batch.RankRows = []int{rows}
					for range b.N {
						if _, err := e.Run(&batch); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(len(e.segments)), "segments")
				})
			}
		}
	}
}

// decodeOf is a step of one token of each of many sequences, with blocks from
// first on.
func decodeOf(rows, first, vocab int) tensor.Batch {
	var batch tensor.Batch
	batch.Reset()
	for i := range rows {
		batch.Add([]int32{int32(i % vocab)}, 0, []int32{int32(first + i)}, true)
	}
	return batch
}

// A decode step of a layer of 64 experts, whole on one rank of all threads, and
// split over two ranks of half the threads and half the rows each.
func BenchmarkExpertsOfTwoRanks(b *testing.B) {
	s := shape{layers: 1, hidden: 1024, heads: 8, kvHeads: 2, headDim: 64, inter: 512, vocab: 256, dtype: tensor.Q8_0, experts: 64, used: 8}
	w := newWeights(s, 1)
	one := plain(b, w, groupConfig("", 2, tensor.BF16))
	two, _ := ranksOf(b, w, 2, groupConfig("", 1, tensor.BF16), false)
	for _, rows := range []int{2, 8, 32} {
		b.Run(fmt.Sprintf("rows-%d/one", rows), func(b *testing.B) {
			batch := decodeOf(rows, 0, s.vocab)
			for range b.N {
				if _, err := one.Run(&batch); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("rows-%d/two", rows), func(b *testing.B) {
			var wg sync.WaitGroup
			for r, e := range two {
				wg.Go(func() {
					batch := decodeOf(rows/2, r*rows/2, s.vocab)
					batch.RankRows = []int{rows / 2, rows / 2}
					for range b.N {
						if _, err := e.Run(&batch); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
