package parallel

import (
	"fmt"
	"math"
	"testing"

	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/test/tinymodel"
)

// lane is the sequences that a rank runs.
type lane struct {
	mine  []int // of all sequences
	got   [][][]float32
	batch tensor.Batch
	owner []int // of each row
}

// fill makes the batch of the next tokens, at most chunk of each sequence.
func (l *lane) fill(sequences []tinymodel.Sequence, pages [][]int32, chunk int) {
	l.batch.Reset()
	l.owner = l.owner[:0]
	for _, i := range l.mine {
		from := len(l.got[i])
		tokens := sequences[i].Tokens[from:min(from+chunk, len(sequences[i].Tokens))]
		if len(tokens) == 0 {
			continue
		}
		l.batch.Add(tokens, from, pages[i], false)
		for range tokens {
			l.batch.LogitRows = append(l.batch.LogitRows, int32(len(l.owner)))
			l.owner = append(l.owner, i)
		}
	}
}

// logits returns the logits of every position of every sequence. Under tensor
// parallelism each rank runs all sequences, and all must give the same; else
// sequence i runs on rank place[i], and ranks without rows take part.
func (w *world) logits(sequences []tinymodel.Sequence, place []int, chunk int) ([][][]float32, error) {
	pages, next := make([][]int32, len(sequences)), int32(15)
	for i, s := range sequences {
		for range (len(s.Tokens) + tinymodel.BlockTokens - 1) / tinymodel.BlockTokens {
			pages[i] = append(pages[i], next)
			next--
		}
	}
	lanes, batches := make([]lane, len(w.devices)), make([]*tensor.Batch, len(w.devices))
	for r := range lanes {
		lanes[r].got = make([][][]float32, len(sequences))
		batches[r] = &lanes[r].batch
		for i := range sequences {
			if !w.p.AttentionDP || place[i]%len(lanes) == r {
				lanes[r].mine = append(lanes[r].mine, i)
			}
		}
	}
	for {
		total := 0
		for r := range lanes {
			lanes[r].fill(sequences, pages, chunk)
			total += len(lanes[r].owner)
		}
		if total == 0 {
			return merge(lanes)
		}
		logits, err := w.step(batches)
		if err != nil {
			return nil, err
		}
		for r := range lanes {
			for row, i := range lanes[r].owner {
				lanes[r].got[i] = append(lanes[r].got[i], logits[r][row])
			}
		}
	}
}

// merge returns the logits of each sequence, which must be the same on all ranks
// that have it.
func merge(lanes []lane) ([][][]float32, error) {
	out := make([][][]float32, len(lanes[0].got))
	for r, l := range lanes {
		for _, i := range l.mine {
			if out[i] == nil {
				out[i] = l.got[i]
			} else if err := same(l.got[i], out[i]); err != nil {
				return nil, fmt.Errorf("rank %d differs from a lower one: sequence %d, %w", r, i, err)
			}
		}
	}
	return out, nil
}

// same compares the bits of the logits of one sequence.
func same(got, want [][]float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d positions, want %d", len(got), len(want))
	}
	for pos := range want {
		if len(got[pos]) != len(want[pos]) {
			return fmt.Errorf("position %d: %d values, want %d", pos, len(got[pos]), len(want[pos]))
		}
		for i, x := range got[pos] {
			if math.Float32bits(x) != math.Float32bits(want[pos][i]) {
				return fmt.Errorf("position %d: value %d is %v, want the bits of %v", pos, i, x, want[pos][i])
			}
		}
	}
	return nil
}

// placements are where sequences go under attention DP: spread, and all on the
// last rank.
var placements = [][]int{{0, 1, 2}, {3, 3, 3}}

// check compares all modes with one rank, and that, with a cache in float32, with the
// second implementation.
func check(t *testing.T, name string, modes []mode, device open, tol tinymodel.Tolerance, opts ...model.Option) {
	m, err := tinymodel.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	kv := tinymodel.KVShape(ck, 16, tensor.BF16)
	if ck.F32() {
		kv.DType = tensor.F32
	}
	want, err := tinymodel.Logits(device(t, ck, kv, model.Parallel{}, nil), m.Sequences, 16)
	if err != nil {
		t.Fatal(err)
	}
	// The second implementation has its cache in float32, beside which rounding that to
	// bfloat16 is most of the difference, and no matter of ranks (engine/cpu has a
	// reference that rounds alike).
	plain := want
	if kv.DType != tensor.F32 {
		long := kv
		long.DType = tensor.F32
		if plain, err = tinymodel.Logits(device(t, ck, long, model.Parallel{}, nil), m.Sequences, 16); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range m.Sequences {
		for pos := range s.Logits {
			if err := tinymodel.Compare(plain[i][pos], s.Logits[pos], tol); err != nil {
				t.Fatalf("one rank: sequence %d, position %d: %v", i, pos, err)
			}
		}
	}
	for _, mode := range modes {
		if mode.p.Check(&ck.Config) != nil {
			continue // engine/model tests which divisions are refused
		}
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t, ck, mode, kv, device)
			for _, place := range placements {
				for _, chunk := range []int{1 << 20, 5} {
					got, err := w.logits(m.Sequences, place, chunk)
					if err != nil {
						t.Fatal(err)
					}
					for i := range got {
						if err := same(got[i], want[i]); err != nil {
							t.Fatalf("chunks of %d: sequence %d, %v", chunk, i, err)
						}
					}
				}
				if !mode.p.AttentionDP {
					break
				}
			}
		})
	}
}
