package tinymodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/engine/cpu"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

// longWindow makes a model whose layers have windows of such sizes, 0 = none, for
// prompts over several of the pieces in which kernels read the cache.
func longWindow(t *testing.T, windows ...int) (*model.Checkpoint, Sequence) {
	t.Helper()
	m, err := Get("mistral-window")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path, model.AsF32())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	ck.Config.Context, ck.Config.Windows = 2048, windows
	rng, s := rand.New(rand.NewPCG(1, 2)), Sequence{}
	for range 720 {
		s.Tokens = append(s.Tokens, rng.Int32N(int32(ck.Config.Vocab)))
	}
	return ck, s
}

// windowed runs a sequence in chunks and returns the logits of every position.
// Where every layer has a window, pages before the largest are not there.
func windowed(t *testing.T, b Backend, ck *model.Checkpoint, s Sequence, kv tensor.KVShape, chunk func(pos int) int) [][]float32 {
	t.Helper()
	var out [][]float32
	gone := int32(-1)
	if _, ok := b.(cpuRunner); ok {
		gone = -1 << 20 // far from all that is mapped, where reading crashes
	}
	for pos := 0; pos < len(s.Tokens); {
		n := min(chunk(pos), len(s.Tokens)-pos)
		var batch tensor.Batch
		batch.Reset()
		var pages []int32
		for p := range (pos + n + kv.BlockTokens - 1) / kv.BlockTokens {
			pages = append(pages, int32(kv.Blocks-1-p))
		}
		if reach := ck.Config.Reach(); reach > 0 {
			for p := range max(0, pos+1-reach) / kv.BlockTokens {
				pages[p] = gone
			}
		}
		batch.Add(s.Tokens[pos:pos+n], pos, pages, false)
		for i := range n {
			batch.LogitRows = append(batch.LogitRows, int32(i))
		}
		logits, err := b.Run(&batch)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, logits...)
		pos += n
	}
	return out
}

// A window may begin in any piece of the cache that a kernel reads at a time, and
// the rows of a chunk begin in several. A row's bits must not depend on which rows
// it is computed with, nor on the size of blocks, and pages before the window are
// not touched: they are no blocks at all.
func TestCPUWindows(t *testing.T) {
	for _, windows := range [][]int{{300, 300}, {5, 0}, {256, 257}, {1, 1}, {700, 31}} {
		ck, s := longWindow(t, windows...)
		kv := KVShape(ck, 50, tensor.F32)
		want := windowed(t, openReference(t, ck, kv), ck, s, kv, func(int) int { return 144 })
		for _, isa := range []string{"portable", "avx2", "avx512"} {
			t.Run(fmt.Sprint(isa, windows), func(t *testing.T) {
				if b, err := cpu.New(cpu.Config{Threads: 1, MaxRows: 1, ISA: isa, KV: kv}); err != nil {
					t.Skip(err)
				} else {
					b.Close()
				}
				var first [][]float32
				for i, chunk := range []func(int) int{
					func(int) int { return 240 },
					func(int) int { return 48 },
					func(pos int) int { return []int{37, 1, 1, 64, 2}[pos%5] },
				} {
					kv.BlockTokens, kv.Blocks = []int{16, 8, 32}[i], []int{50, 100, 25}[i]
					got := windowed(t, openCPU(isa)(t, ck, kv), ck, s, kv, chunk)
					if i == 0 {
						first = got
					}
					for pos := range got {
						if !slices.Equal(got[pos], first[pos]) {
							t.Fatalf("chunking %d, position %d: the bits differ", i, pos)
						}
						if err := Compare(got[pos], want[pos], Tolerance{Abs: 1e-4, Rel: 1e-4}); err != nil {
							t.Fatalf("chunking %d, position %d: %v", i, pos, err)
						}
					}
				}
			})
		}
	}
}

// A page that a window still needs must be there.
func TestPageInWindowIsMissing(t *testing.T) {
	ck, s := longWindow(t, 20, 20)
	b := openCPU("")(t, ck, KVShape(ck, 50, tensor.F32))
	for first, ok := range map[int]bool{5: true, 6: false} { // position 100 sees 81 and what follows
		var batch tensor.Batch
		batch.Reset()
		pages := []int32{-1, -1, -1, -1, -1, 5, 6}
		if !ok {
			pages[5] = -1
		}
		batch.Add(s.Tokens[100:101], 100, pages, true)
		if _, err := b.Run(&batch); (err == nil) != ok {
			t.Errorf("the first page is %d: %v", first, err)
		}
	}
}
