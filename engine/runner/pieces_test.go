package runner

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// narrow is counting with room for most rows of logits.
type narrow struct {
	counting
	most, widest int
}

func (d *narrow) Run(b *tensor.Batch) ([]float32, error) {
	d.widest = max(d.widest, len(b.LogitRows))
	if len(b.LogitRows) > d.most {
		return nil, fmt.Errorf("%d rows of logits", len(b.LogitRows))
	}
	return d.counting.Run(b)
}

// TestPromptLogprobs lets scored and plain requests run together, in every lane.
func TestPromptLogprobs(t *testing.T) {
	for _, lane := range []string{"", "aside", "launched", "launched late"} {
		t.Run(lane, func(t *testing.T) {
			core := executor.DefaultConfig()
			core.Vocab, core.Blocks, core.MaxSeqLen, core.Namespace, core.MaxBatch = vocab, 64, 256, "test@0", 6
			core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}
			d := &narrow{most: 6}
			var dev Device = d
			if lane == "launched" || lane == "launched late" {
				dev = &launching{Device: d, late: lane == "launched late"}
			}
			e, err := New(Config{Core: core, Info: Info{Vocab: vocab}, Overlap: lane != ""}, dev, nil)
			if err != nil {
				t.Fatal(err)
			}
			died := make(chan error, 1)
			go func() { died <- e.Run(context.WithoutCancel(t.Context())) }()
			var streams []*Stream
			var reqs []*request.Request
			for i := range 8 {
				r := greedy(e, 6, int32(i))
				for k := range 3 + 9*i { // some follow the rule of the model, some do not
					r.Prompt = append(r.Prompt, (r.Prompt[k]+1+int32(k%3/2))%vocab)
				}
				if i%3 != 1 {
					r.Score = &request.Score{Top: i % 3}
				}
				s, err := e.Submit(t.Context(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				streams, reqs = append(streams, s), append(reqs, r)
			}
			for i, s := range streams {
				checkScored(t, reqs[i], s)
			}
			stop(t, e, died)
			if d.widest != 6 {
				t.Errorf("at most %d rows of logits at once", d.widest)
			}
		})
	}
}

func checkScored(t *testing.T, r *request.Request, s *Stream) {
	t.Helper()
	var scores []request.Token
	var ids []int32
	for {
		o, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if scores = append(scores, o.Prompt...); len(o.Prompt) > 0 && len(ids) > 0 {
			t.Error("scores after tokens")
		}
		for _, tok := range o.Tokens {
			ids = append(ids, tok.ID)
		}
		if o.Finish != request.Running {
			if o.Finish != request.FinishLength {
				t.Fatalf("request %d: %q %v", r.ID, o.Finish, o.Err)
			}
			break
		}
	}
	last := r.Prompt[len(r.Prompt)-1]
	for i, id := range ids {
		if id != (last+1+int32(i))%vocab {
			t.Fatalf("request %d: output %v", r.ID, ids)
		}
	}
	if r.Score == nil {
		if scores != nil {
			t.Errorf("request %d: scores that nobody wants", r.ID)
		}
		return
	}
	if len(scores) != len(r.Prompt)-1 {
		t.Fatalf("request %d: %d scores of %d", r.ID, len(scores), len(r.Prompt)-1)
	}
	norm := math.Log(vocab - 1 + math.E)
	for i, sc := range scores {
		want, rank := -norm, 2
		if sc.ID == (r.Prompt[i]+1)%vocab {
			want, rank = 1-norm, 1
		}
		if sc.ID != r.Prompt[i+1] || math.Abs(sc.Logprob-want) > 1e-6 || (sc.Rank == 1) != (rank == 1) || len(sc.Top) != r.Score.Top {
			t.Fatalf("request %d: score %d is %+v, want %v", r.ID, i, sc, want)
		}
		if len(sc.Top) > 0 && sc.Top[0].ID != (r.Prompt[i]+1)%vocab {
			t.Fatalf("request %d: score %d: best is %+v", r.ID, i, sc.Top[0])
		}
	}
}

// TestCutTakesEveryPositionOnce: pieces have room, keep the order of each row, and
// together are the step.
func TestCutTakesEveryPositionOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "rows")
		most := rapid.IntRange(n, n+12).Draw(t, "most")
		rows := make([]executor.Row, n)
		for i := range rows {
			r := &rows[i]
			r.Tokens, r.Sample = make([]int32, rapid.IntRange(1, 40).Draw(t, "tokens")), rapid.Bool().Draw(t, "sample")
			r.ScoreAt = rapid.IntRange(0, len(r.Tokens)).Draw(t, "at")
			most := len(r.Tokens) - r.ScoreAt
			if r.Sample {
				most--
			}
			r.Score = make([]int32, rapid.IntRange(0, max(most, 0)).Draw(t, "scores"))
			r.ScoreAt = min(r.ScoreAt, len(r.Tokens)-1)
		}
		at, scores, samples := make([]int, n), make([]int, n), make([]int, n)
		pieces := cut(rows, most)
		for _, p := range pieces {
			room := most
			for _, s := range p {
				if s.from != at[s.row] || s.to <= s.from {
					t.Fatalf("%+v at %d", s, at[s.row])
				}
				at[s.row] = s.to
				scores[s.row] += s.scores
				room -= s.scores
				if s.sample {
					samples[s.row]++
					room--
				}
			}
			if room < 0 {
				t.Fatalf("piece %+v has %d too many", p, -room)
			}
			var b tensor.Batch
			fillPiece(&b, rows, p)
			if !slices.IsSorted(b.LogitRows) || len(b.LogitRows) != most-room || len(slices.Compact(slices.Clone(b.LogitRows))) != len(b.LogitRows) {
				t.Fatalf("logit rows %v", b.LogitRows)
			}
		}
		for i := range rows {
			if r := &rows[i]; at[i] != len(r.Tokens) || scores[i] != len(r.Score) || (samples[i] == 1) != r.Sample {
				t.Fatalf("row %d: %d of %d tokens, %d of %d scores, %d samples", i, at[i], len(r.Tokens), scores[i], len(r.Score), samples[i])
			}
		}
	})
}
