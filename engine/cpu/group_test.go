package cpu

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tandem/engine/pass"
	"tandem/engine/tensor"
)

func groupConfig(isa string, threads int, kv tensor.DType) Config {
	return Config{Threads: threads, MaxRows: 320, ISA: isa, KV: tensor.KVShape{BlockTokens: 16, Blocks: 96, DType: kv}}
}

// sequence is a prompt fed in chunks, then decoded.
type sequence struct {
	tokens, pages []int32
	done          int
}

func sequencesOf(rng *rand.Rand, vocab int, lengths ...int) []*sequence {
	free := shuffledPages(rng, 96, 96)
	var all []*sequence
	for _, n := range lengths {
		blocks := (n + 15) / 16
		all = append(all, &sequence{tokens: tokensOf(rng, n, vocab), pages: free[:blocks]})
		free = free[blocks:]
	}
	return all
}

// next adds a chunk of the sequence to a batch, with the logits of all its rows.
func (s *sequence) next(batch *tensor.Batch, n int) {
	end := min(s.done+n, len(s.tokens))
	if end == s.done {
		return
	}
	first := batch.Rows()
	batch.Add(s.tokens[s.done:end], s.done, s.pages, false)
	for i := first; i < batch.Rows(); i++ {
		batch.LogitRows = append(batch.LogitRows, int32(i))
	}
	s.done = end
}

var chunkSizes = []int{1, 1, 7, 40, 150, 1, 64, 300, 2, 1}

var tpShapes = map[string]shape{
	"9 heads of 3":       {layers: 2, hidden: 100, heads: 9, kvHeads: 3, headDim: 32, inter: 75, vocab: 41, dtype: tensor.F32, bias: true},
	"6 heads of 1":       {layers: 1, hidden: 64, heads: 6, kvHeads: 1, headDim: 16, inter: 96, vocab: 33, dtype: tensor.Q8_0, qkNorm: true},
	"experts":            {layers: 2, hidden: 64, heads: 4, kvHeads: 2, headDim: 16, inter: 48, vocab: 33, dtype: tensor.F32, experts: 16, used: 5},
	"9 heads of 3, Q8_0": {layers: 2, hidden: 96, heads: 9, kvHeads: 3, headDim: 32, inter: 160, vocab: 41, dtype: tensor.Q8_0, adjacent: true},
}

// Ranks that split heads, MLP and vocabulary compute the bits of one rank, for
// each instruction set, uneven cuts and ranks that share a KV head included.
func TestTensorParallelBits(t *testing.T) {
	for name, s := range tpShapes {
		w := newWeights(s, 5)
		for _, isa := range levels() {
			for _, kv := range []tensor.DType{tensor.BF16, tensor.F32} {
				if kv == tensor.F32 && (isa == "portable" || s.dtype == tensor.F32) {
					continue // slow, and the same code but for the loads
				}
				want := tpLogits(t, w, 1, isa, kv)
				for _, size := range []int{2, 3, 4, 5} {
					if s.experts > 0 && size != 2 && size != 4 {
						continue // shares add up to the same bits in aligned ranges only
					}
					if isa == "portable" && size != 2 && size != 4 {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%d", name, isa, kv, size), func(t *testing.T) {
						for step, got := range tpLogits(t, w, size, isa, kv) {
							if !slices.Equal(got, want[step]) {
								t.Fatalf("step %d of %d rows: other logits", step, len(got)/w.vocab)
							}
						}
					})
				}
			}
		}
	}
}

// tpLogits runs prompts in chunks on a group, or for size 1 on a backend that
// records the plain pass alone. All ranks must return the same.
func tpLogits(t *testing.T, w *weights, size int, isa string, kv tensor.DType) (all [][]float32) {
	t.Helper()
	cfg := groupConfig(isa, 1+size%2, kv)
	ranks := []*Backend{}
	if size == 1 {
		ranks = append(ranks, plain(t, w, cfg))
	} else {
		ranks, _ = ranksOf(t, w, size, cfg, true)
	}
	rng := rand.New(rand.NewPCG(8, 8))
	seqs := sequencesOf(rng, w.vocab, 290, 3, 300, 40)
	for step, chunk := range chunkSizes {
		batches := make([]tensor.Batch, len(ranks))
		batches[0].Reset()
		for i, s := range seqs {
			if room := 320 - batches[0].Rows(); (step+i)%3 > 0 {
				s.next(&batches[0], min(chunk, room))
			}
		}
		for r := range batches {
			batches[r] = batches[0]
		}
		logits := runAll(t, ranks, batches)
		for r := range logits {
			if !slices.Equal(logits[r], logits[0]) {
				t.Fatalf("step %d: ranks 0 and %d have other logits", step, r)
			}
		}
		all = append(all, slices.Clone(logits[0]))
	}
	return all
}

var adpShape = shape{
	layers: 4, hidden: 64, heads: 4, kvHeads: 2, headDim: 16, inter: 50, vocab: 29, dtype: tensor.F32,
	experts: 16, used: 5,
}

// Ranks that have their own rows, and share experts and MLPs, compute the bits of
// one rank that has all rows, also in steps in which some of them have none.
func TestAttentionDataParallelBits(t *testing.T) {
	s := adpShape
	s.dtype, s.inter, s.renorm = tensor.Q8_0, 64, true
	for name, w := range map[string]*weights{"F32": newWeights(adpShape, 6), "Q8_0": newWeights(s, 6)} {
		for _, isa := range levels() {
			cfg := groupConfig(isa, 2, tensor.BF16)
			one := plain(t, w, cfg)
			cfg.MaxRows = 100 // fewer than all ranks have together
			cfg.MaxSharedRows = 320
			for _, size := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, isa, size), func(t *testing.T) {
					ranks, _ := ranksOf(t, w, size, cfg, false)
					checkADP(t, one, ranks)
				})
			}
		}
	}
}

func checkADP(t *testing.T, one *Backend, ranks []*Backend) {
	t.Helper()
	rng := rand.New(rand.NewPCG(2, uint64(len(ranks))))
	seqs := sequencesOf(rng, one.Vocab, 290, 3, 100, 40, 60, 17)
	for step, chunk := range chunkSizes {
		var all tensor.Batch
		all.Reset()
		batches := make([]tensor.Batch, len(ranks))
		for r := range batches {
			batches[r].Reset()
			for i, s := range seqs {
				if i%len(ranks) != r || rng.IntN(3) == 0 || step%4 == 3 && r > 0 {
					continue // the last makes only rank 0 work
				}
				n, again := min(chunk, 320-all.Rows(), 100-batches[r].Rows()), *s
				again.next(&all, n)
				s.next(&batches[r], n)
			}
		}
		want, err := one.Run(&all)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Concat(runAll(t, ranks, batches)...); !slices.Equal(got, want) {
			t.Fatalf("step %d of %v rows: other logits", step, batches[0].RankRows)
		}
	}
}

// Ops read and write views of one wide buffer as they do buffers of their own.
func TestViewsBits(t *testing.T) {
	for name, s := range tpShapes {
		w := newWeights(s, 5)
		for _, isa := range levels() {
			cfg := groupConfig(isa, 2, tensor.BF16)
			cfg.KV.KVHeads = w.kvHeads
			one, views := plain(t, w, cfg), sealed(t, w, cfg, (*part).recordViews)
			tokens, pages := tokensOf(rand.New(rand.NewPCG(3, 3)), 70, w.vocab), shuffledPages(rand.New(rand.NewPCG(4, 4)), 5, 96)
			if !slices.Equal(alone(t, one, tokens, pages), alone(t, views, tokens, pages)) {
				t.Errorf("%s, %s: other logits", name, isa)
			}
		}
	}
}

// A batch that one rank refuses leaves the group as it was.
func TestBadBatchMeetsNobody(t *testing.T) {
	w := newWeights(tpShapes["6 heads of 1"], 5)
	ranks, world := ranksOf(t, w, 2, groupConfig("", 1, tensor.BF16), true)
	good := func() tensor.Batch {
		var batch tensor.Batch
		batch.Reset()
		batch.Add([]int32{1, 2}, 0, []int32{0}, true)
		batch.RankRows = []int{2, 2}
		return batch
	}
	for name, spoil := range map[string]func(*tensor.Batch){
		"token":             func(b *tensor.Batch) { b.Tokens[0] = 99 },
		"no rows of ranks":  func(b *tensor.Batch) { b.RankRows = nil },
		"too few ranks":     func(b *tensor.Batch) { b.RankRows = []int{2} },
		"too many ranks":    func(b *tensor.Batch) { b.RankRows = []int{2, 2, 2} },
		"other own rows":    func(b *tensor.Batch) { b.RankRows = []int{2, 1} },
		"unequal rows":      func(b *tensor.Batch) { b.RankRows = []int{1, 2} },
		"negative rows":     func(b *tensor.Batch) { b.RankRows = []int{-1, 2} },
		"too many rows":     func(b *tensor.Batch) { b.RankRows = []int{1<<20 + 1, 2} },
		"rows overflow":     func(b *tensor.Batch) { b.RankRows = []int{1<<63 - 1, 2} },
		"nothing but ranks": func(b *tensor.Batch) { *b = tensor.Batch{RankRows: []int{2, 0}} },
	} {
		batch := good()
		if err := ranks[1].Check(&batch); err != nil {
			t.Fatal(err)
		}
		spoil(&batch)
		if err := ranks[1].Check(&batch); !errors.Is(err, pass.ErrBatch) {
			t.Errorf("%s: check gives %v", name, err)
			continue // Run would wait for the peer
		}
		if _, err := ranks[1].Run(&batch); !errors.Is(err, pass.ErrBatch) || errors.Is(err, ErrGroup) {
			t.Errorf("%s: run gives %v", name, err)
		}
	}
	if world.calls > 0 || world.arrived > 0 {
		t.Fatalf("%d collectives, %d ranks wait in one", world.calls, world.arrived)
	}
	runAll(t, ranks, []tensor.Batch{good(), good()})
	if want := 5 * w.shape.layers; world.calls < 4 || world.calls > want {
		t.Errorf("%d collectives a step", world.calls)
	}
}

// Rows of all ranks must fit their buffers; a pass without such has no limit.
func TestRowsOfAllRanksMustFit(t *testing.T) {
	w, cfg := newWeights(adpShape, 6), groupConfig("", 1, tensor.BF16)
	cfg.MaxSharedRows = 330
	for _, tp := range []bool{true, false} {
		ranks, _ := ranksOf(t, w, 2, cfg, tp)
		for _, rows := range []int{10, 165, 166} {
			var batch tensor.Batch
			batch.Reset()
			batch.Add(make([]int32, rows), 0, shuffledPages(rand.New(rand.NewPCG(1, 1)), 20, 96), false)
			batch.RankRows = []int{rows, rows}
			if err := ranks[0].Check(&batch); errors.Is(err, pass.ErrBatch) != (!tp && rows > 165) {
				t.Errorf("%d rows each, split rows %t: %v", rows, tp, err)
			}
		}
	}
}

// A step in which no rank has rows meets nobody, and one in which this rank has
// none meets all.
func TestRanksWithoutRows(t *testing.T) {
	w := newWeights(adpShape, 6)
	ranks, world := ranksOf(t, w, 2, groupConfig("", 1, tensor.BF16), false)
	batches := make([]tensor.Batch, 2)
	for r := range batches {
		batches[r].Reset()
	}
	runAll(t, ranks, batches)
	if world.calls != 0 {
		t.Fatalf("%d collectives without rows", world.calls)
	}
	batches[1].Add([]int32{4}, 0, []int32{1}, true)
	if got := runAll(t, ranks, batches); len(got[0]) != 0 || len(got[1]) != w.vocab || world.calls == 0 {
		t.Fatalf("%d and %d logits, %d collectives", len(got[0]), len(got[1]), world.calls)
	}
}

// A peer that goes makes Run fail with ErrGroup.
func TestLostPeer(t *testing.T) {
	w := newWeights(adpShape, 6)
	ranks, world := ranksOf(t, w, 2, groupConfig("", 1, tensor.BF16), false)
	var batch tensor.Batch
	batch.Reset()
	batch.Add([]int32{4}, 0, []int32{1}, true)
	batch.RankRows = []int{1, 3}
	got := make(chan error)
	go func() {
		_, err := ranks[0].Run(&batch)
		got <- err
	}()
	world.fail(errFake)
	if err := <-got; !errors.Is(err, ErrGroup) || !errors.Is(err, errFake) || errors.Is(err, pass.ErrBatch) || !strings.Contains(err.Error(), "gather rows") {
		t.Errorf("got %v", err)
	}
}

func TestGroupStepsDoNotAllocate(t *testing.T) {
	for _, tp := range []bool{true, false} {
		ranks, _ := ranksOf(t, newWeights(adpShape, 6), 1, groupConfig("", 1, tensor.BF16), tp)
		var batch tensor.Batch
		batch.Reset()
		batch.Add([]int32{1, 2, 3}, 0, []int32{1}, true)
		batch.RankRows = []int{3}
		if n := testing.AllocsPerRun(20, func() { _, _ = ranks[0].Run(&batch) }); n > 0 {
			t.Errorf("%g allocations a step", n)
		}
	}
}
