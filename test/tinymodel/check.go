package tinymodel

import (
	"fmt"
	"math"
	"testing"

	"tandem/engine/model"
	"tandem/engine/tensor"
)

// Backend is what a check needs of a backend on which the model was built: it
// runs a batch and returns a copy of the logits of each of its LogitRows.
type Backend interface {
	Run(b *tensor.Batch) ([][]float32, error)
}

// Open builds a model on a fresh backend whose cache has the given shape, and
// cleans up through t.
type Open func(t testing.TB, ck *model.Checkpoint, kv tensor.KVShape) Backend

// Tolerance bounds |got - want| by Abs + Rel*|want|.
type Tolerance struct{ Abs, Rel float64 }

// BlockTokens is the block size that checks use: small enough for sequences to
// span blocks, of the size that backends are made for.
const BlockTokens = 16

// KVShape returns the cache geometry for a checkpoint.
func KVShape(ck *model.Checkpoint, blocks int, dtype tensor.DType) tensor.KVShape {
	c := &ck.Config
	return tensor.KVShape{
		Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		BlockTokens: BlockTokens, Blocks: blocks, DType: dtype,
	}
}

// Check runs every sequence of m in several groupings — whole, in chunks, token
// by token, all sequences in one batch — with a float32 cache, and compares the
// logits of every position.
func Check(t *testing.T, m Model, open Open, tol Tolerance, opts ...model.Option) {
	t.Helper()
	ck, err := model.Open(m.Path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	for _, chunk := range []int{1 << 20, 16, 5, 1} {
		t.Run(fmt.Sprintf("chunk %d", chunk), func(t *testing.T) {
			backend := open(t, ck, KVShape(ck, 16, tensor.F32))
			got, err := Logits(backend, m.Sequences, chunk)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range m.Sequences {
				for pos, want := range s.Logits {
					if err := Compare(got[i][pos], want, tol); err != nil {
						t.Fatalf("%s: sequence %d, position %d: %v", m.Name, i, pos, err)
					}
				}
			}
		})
	}
}

// Logits runs all sequences side by side, at most chunk tokens of each in a
// step, and returns the logits of every position. Pages are handed out in
// descending order, so that a backend which ignores the page table fails.
func Logits(b Backend, sequences []Sequence, chunk int) ([][][]float32, error) {
	out := make([][][]float32, len(sequences))
	pages := make([][]int32, len(sequences))
	next := int32(15)
	for i, s := range sequences {
		for range (len(s.Tokens) + BlockTokens - 1) / BlockTokens {
			pages[i] = append(pages[i], next)
			next--
		}
	}
	for {
		var batch tensor.Batch
		batch.Reset()
		var owner []int
		for i, s := range sequences {
			from := len(out[i])
			tokens := s.Tokens[from:min(from+chunk, len(s.Tokens))]
			if len(tokens) == 0 {
				continue
			}
			need := (from + len(tokens) + BlockTokens - 1) / BlockTokens
			batch.Add(tokens, from, pages[i][:need], false)
			for range tokens {
				batch.LogitRows = append(batch.LogitRows, int32(len(owner)))
				owner = append(owner, i)
			}
		}
		if len(owner) == 0 {
			return out, nil
		}
		logits, err := b.Run(&batch)
		if err != nil {
			return nil, err
		}
		if len(logits) != len(owner) {
			return nil, fmt.Errorf("%d rows of logits, want %d", len(logits), len(owner))
		}
		for row, i := range owner {
			out[i] = append(out[i], logits[row])
		}
	}
}

// Compare returns an error that names the worst element outside the tolerance.
func Compare(got, want []float32, tol Tolerance) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d values, want %d", len(got), len(want))
	}
	worst, at := 0.0, -1
	for i := range want {
		g, w := float64(got[i]), float64(want[i])
		excess := math.Abs(g-w) - tol.Abs - tol.Rel*math.Abs(w)
		if math.IsNaN(excess) {
			return fmt.Errorf("value %d is %v, want %v", i, g, w)
		}
		if excess > worst {
			worst, at = excess, i
		}
	}
	if at >= 0 {
		return fmt.Errorf("value %d is %v, want %v (tolerance %+v)", at, got[at], want[at], tol)
	}
	return nil
}
