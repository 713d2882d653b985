package executor

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// scoreOf is the fake log-probability of a token after those before it.
func scoreOf(known []int32, at int, next int32) float64 {
	h := uint64(7)
	for _, t := range known[:at+1] {
		h = mixToken(h, t)
	}
	return -float64(mixToken(h, next)%1000) / 10
}

// runScored is rank.run with the scores that rows want.
func (r *rank) runScored(b *Batch) Result {
	res := r.run(b)
	for i, row := range b.Rows {
		known := r.known(row.Request)
		for k, next := range row.Score {
			at := row.Pos + row.ScoreAt + k
			if known[at+1] != next || row.ScoreAt+k >= len(row.Tokens) {
				r.t.Fatalf("request %d: position %d is to score %d", row.Request.ID, at, next)
			}
			res.Sampled[i].Scores = append(res.Sampled[i].Scores, request.Token{ID: next, Logprob: scoreOf(known, at, next)})
		}
	}
	return res
}

// TestPromptScores lets requests with and without scores run under pressure, with
// reuse, pauses and failed steps: each that wants them gets every score once.
func TestPromptScores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := holdConfig()
		cfg.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization}).Draw(t, "policy")
		cfg.Chunking = rapid.SampledFrom([]scheduler.Chunking{scheduler.FirstCome, scheduler.EqualProgress}).Draw(t, "chunking")
		cfg.Blocks = rapid.IntRange(24, 40).Draw(t, "blocks")
		r := newRank(t, cfg)
		scores := map[request.ID][]request.Token{}
		collect := func() {
			for _, o := range r.effects[r.side].Outputs {
				if o.Prompt == nil {
					continue
				}
				if _, twice := scores[o.Request.ID]; twice || o.Choice != 0 || o.First != 0 {
					t.Fatalf("request %d: scores twice, or with %+v", o.Request.ID, o)
				}
				scores[o.Request.ID] = slices.Clone(o.Prompt)
			}
			r.collect()
		}
		var all []*client
		n := rapid.IntRange(1, 8).Draw(t, "requests")
		for i := range n {
			q := ask(i+1, rapid.IntRange(1, 20).Draw(t, "g"), count(rapid.SampledFrom([]int{0, 0, 40}).Draw(t, "from"), rapid.IntRange(1, 50).Draw(t, "p"))...)
			if rapid.Bool().Draw(t, "scored") {
				q.Score = &request.Score{Top: i}
			}
			q.Choices = rapid.IntRange(1, 2).Draw(t, "choices")
			all = append(all, r.submit(q, nil))
		}
		for range 2000 {
			b := r.Plan(0)
			collect()
			if b == nil {
				break
			}
			if rapid.IntRange(0, 19).Draw(t, "fault") == 0 {
				r.Apply(0, Result{Err: errors.New("injected")})
			} else {
				r.Apply(0, r.runScored(b))
			}
			collect()
		}
		for _, cl := range all {
			got := scores[cl.req.ID]
			if cl.finish != request.FinishLength {
				continue // a step failed twice, or it can never fit
			}
			if cl.req.Score == nil {
				if got != nil {
					t.Fatalf("request %d: scores that nobody wants", cl.req.ID)
				}
				continue
			}
			if len(got) != len(cl.req.Prompt)-1 {
				t.Fatalf("request %d: %d scores of %d", cl.req.ID, len(got), len(cl.req.Prompt)-1)
			}
			for i, s := range got {
				if s.ID != cl.req.Prompt[i+1] || s.Logprob != scoreOf(cl.req.Prompt, i, s.ID) {
					t.Fatalf("request %d: score %d is %+v", cl.req.ID, i, s)
				}
			}
		}
	})
}

func TestScoredPromptsComputeAllAndShareWhatTheyComputed(t *testing.T) {
	r := newRank(t, holdConfig())
	run := func(id int, score *request.Score) (*client, int) {
		before := r.prefilled
		q := ask(id, 1, count(0, 21)...)
		q.Score = score
		cl := r.submit(q, nil)
		for b := r.Plan(0); b != nil; b = r.Plan(0) {
			r.collect()
			r.Apply(0, r.runScored(b))
			r.collect()
		}
		return cl, r.prefilled - before
	}
	for i, c := range []struct {
		score *request.Score
		want  int
	}{{nil, 21}, {&request.Score{}, 21}, {nil, 1}} {
		if cl, n := run(i+1, c.score); n != c.want || cl.usage.CachedTokens != 21-c.want {
			t.Errorf("%s: %d tokens computed, want %d; %+v", fmt.Sprint(c.score != nil), n, c.want, cl.usage)
		}
	}
	r.verifyEnd(true)
}
