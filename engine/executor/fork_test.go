package executor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// several asks for n choices.
func several(id, n, g int, prompt ...int32) *request.Request {
	q := ask(id, g, prompt...)
	q.Choices = n
	return q
}

// forkConfig has blocks of 4 tokens.
func forkConfig() Config {
	c := testConfig(Mixed)
	c.BlockTokens, c.Blocks, c.MaxNumTokens, c.MaxBatch, c.MaxSeqLen = 4, 40, 24, 8, 120
	return c
}

func TestChoicesShareOnePrefill(t *testing.T) {
	for _, tc := range []struct {
		prompt, copies, blocks int
	}{
		{10, 2, 2 + 3}, // two blocks shared, one for each of the three choices
		{8, 0, 2 + 3},  // all shared, and one for what is decoded
		{3, 2, 3},
	} {
		r := newRank(t, forkConfig())
		cl := r.submit(several(1, 3, 4, count(0, tc.prompt)...), nil)
		r.step(0)
		for i := range 3 {
			if got := cl.choice(i).tokens; len(got) != 1 {
				t.Fatalf("choice %d has %d tokens after the prefill", i, len(got))
			}
		}
		b := r.Plan(0)
		if len(b.Rows) != 3 || len(b.Copies) != tc.copies || r.kv.Total()-r.kv.Free() != tc.blocks {
			t.Errorf("%d tokens: %d rows, %d copies, %d blocks; want 3, %d, %d",
				tc.prompt, len(b.Rows), len(b.Copies), r.kv.Total()-r.kv.Free(), tc.copies, tc.blocks)
		}
		full := tc.prompt / 4
		for i, row := range b.Rows[1:] {
			if !slices.Equal(row.Pages[:full], b.Rows[0].Pages[:full]) || row.Pages[full] == b.Rows[0].Pages[full] {
				t.Errorf("choice %d has the pages %v, the first %v", i+1, row.Pages, b.Rows[0].Pages)
			}
			if row.Request.Sampling.Stream != uint32(i+1) || row.Index != 1 {
				t.Errorf("choice %d draws from stream %d at index %d", i+1, row.Request.Sampling.Stream, row.Index)
			}
		}
		r.Apply(0, r.run(b))
		r.collect()
		r.drainQueue(0)
		r.verifyEnd(true)
		if r.prefilled != tc.prompt || cl.usage.CompletionTokens != 4 || cl.forks[1].usage.PromptTokens != tc.prompt {
			t.Errorf("%d tokens prefilled, usage %+v", r.prefilled, cl.usage)
		}
	}
}

// TestChoicesGetWhatSingleRequestsGet compares with requests that draw from the
// same streams alone.
func TestChoicesGetWhatSingleRequestsGet(t *testing.T) {
	for _, reuse := range []bool{true, false} {
		cfg := forkConfig()
		cfg.BlockReuse = reuse
		r := newRank(t, cfg)
		all := r.submit(several(1, 4, 9, count(0, 30)...), nil)
		r.drainQueue(0)
		r.verifyEnd(true)
		if slices.Equal(all.tokens, all.forks[0].tokens) {
			t.Fatal("two streams give the same tokens: the test sees nothing")
		}
		for i := range 4 {
			if got, want := all.choice(i).tokens, r.oracle(all.req, i, 9); !slices.Equal(got, want) {
				t.Errorf("choice %d: %v, want %v", i, got, want)
			}
		}
	}
}

func TestChoicesAreRefusedThatCanNeverRun(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config, *request.Request)
		code   request.Code
		says   string
	}{
		{"negative", func(_ *Config, q *request.Request) { q.Choices = -1 }, request.InvalidRequest, "negative"},
		{"more than a batch", func(_ *Config, q *request.Request) { q.Choices = 9 }, request.CapacityNever, "9 choices"},
		// 2 shared blocks and 8 times 6 of their own.
		{"more than the pool", func(_ *Config, q *request.Request) { q.Choices, q.MaxTokens = 8, 20 }, request.CapacityNever, "50 KV blocks"},
		{"tokens of another worker", func(_ *Config, q *request.Request) {
			q.FirstTokens = []request.Token{{ID: 1}}
		}, request.InvalidRequest, "one choice"},
		{"generation first", func(_ *Config, q *request.Request) {
			q.Kind, q.TransferID, q.GenFirst = request.ContextOnly, 5, true
		}, request.InvalidRequest, "context_first"},
		{"texts", func(_ *Config, q *request.Request) { q.Text = fakeText{} }, request.Internal, "texts"},
	} {
		cfg, q := forkConfig(), several(1, 3, 4, count(0, 10)...)
		tc.change(&cfg, q)
		r := newRank(t, cfg)
		if err := r.Precheck(q, nil); err == nil || err.Code != tc.code || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
		q.Choices = max(q.Choices, 0)
		if tc.name == "negative" {
			continue
		}
		cl := r.submit(q, nil)
		for i := range q.Choices {
			if cl.choice(i).finish != request.FinishError {
				t.Errorf("%s: choice %d ended %q", tc.name, i, cl.choice(i).finish)
			}
		}
	}
	cfg := forkConfig()
	cfg.Policy = scheduler.MaxUtilization // runs them in turns
	r := newRank(t, cfg)
	r.submit(several(1, 8, 20, count(0, 10)...), nil)
	r.drainQueue(0)
	r.verifyEnd(true)
}

// fakeText shows nothing.
type fakeText struct{}

func (fakeText) Push(int32) (string, bool) { return "", false }
func (fakeText) Flush() string             { return "" }

// TestAChoiceEndsAlone lets one choice fail at its first token and one at a
// later step.
func TestAChoiceEndsAlone(t *testing.T) {
	r := newRank(t, forkConfig())
	cl := r.submit(several(1, 3, 6, count(0, 10)...), nil)
	bad := request.Errorf(request.BadLogits, "bad")
	res := r.run(r.Plan(0))
	res.Sampled[0].Forks[0].Err = bad
	r.Apply(0, res)
	r.collect()
	if cl.forks[0].err != bad || cl.finish != request.Running || r.Load().Active != 2 {
		t.Fatalf("%v, %q, %+v", cl.forks[0].err, cl.finish, r.Load())
	}
	res = r.run(r.Plan(0))
	res.Sampled[0].Err = bad // the first choice, whose record stands for the request
	r.Apply(0, res)
	r.collect()
	if cl.err != bad || cl.retired {
		t.Fatalf("%v, retired %v", cl.err, cl.retired)
	}
	r.drainQueue(0)
	if got := cl.forks[1]; got.finish != request.FinishLength || !slices.Equal(got.tokens, r.oracle(cl.req, 2, 6)) || !cl.retired {
		t.Errorf("%+v, retired %v", got, cl.retired)
	}
	r.check()
}

func TestCancelEndsAllChoices(t *testing.T) {
	for steps := range 6 {
		for _, between := range []bool{false, true} {
			r := newRank(t, forkConfig())
			cl := r.submit(several(1, 3, 8, count(0, 50)...), nil) // three chunks
			for range steps {
				r.step(0)
			}
			cancel := func() { r.Cancel(0, 1) }
			if between {
				r.between = cancel
				r.step(0)
			} else {
				cancel()
				r.collect()
			}
			for i := range 3 {
				if cl.choice(i).finish != request.FinishCancelled {
					t.Errorf("after %d steps: choice %d ended %q", steps, i, cl.choice(i).finish)
				}
			}
			if !cl.retired || r.step(0) {
				t.Errorf("after %d steps: something is left", steps)
			}
			r.verifyEnd(true)
			r.Cancel(0, 1)
			if r.Stats().UnknownCancels != 1 {
				t.Error("a cancel of what has ended is not counted")
			}
		}
	}
}

func TestADeadlineEndsAllChoices(t *testing.T) {
	for steps := range 4 {
		r := newRank(t, forkConfig())
		q := several(1, 3, 8, count(0, 30)...)
		q.Deadline = time.Second
		cl := r.submit(q, nil)
		for range steps {
			r.step(0)
		}
		r.step(time.Second)
		for i := range 3 {
			if got := cl.choice(i); got.finish != request.FinishCancelled || got.err.Code != request.DeadlineExceeded {
				t.Errorf("after %d steps: choice %d ended %q", steps, i, got.finish)
			}
		}
		r.verifyEnd(true)
	}
}

// TestAChoiceWithoutRoomWaits has no block for the copies of the third choice.
func TestAChoiceWithoutRoomWaits(t *testing.T) {
	cfg := forkConfig()
	cfg.Policy, cfg.Blocks = scheduler.MaxUtilization, 5
	r := newRank(t, cfg)
	cl := r.submit(several(1, 4, 6, count(0, 10)...), nil)
	r.step(0)
	if st := r.Stats(); st.Paused != 1 || st.PausedNow != 1 || len(cl.forks[2].tokens) != 1 {
		t.Fatalf("%+v", st)
	}
	r.drainQueue(0)
	r.verifyEnd(true)
}

// TestAFailedStepCopiesAgain fails the step that the copies belong to.
func TestAFailedStepCopiesAgain(t *testing.T) {
	r := newRank(t, forkConfig())
	r.submit(several(1, 3, 6, count(0, 10)...), nil)
	r.step(0)
	if b := r.Plan(0); len(b.Copies) != 2 {
		t.Fatalf("%d copies", len(b.Copies))
	}
	r.Apply(0, Result{Err: errors.New("injected")}) // nothing of it was done
	r.collect()
	r.drainQueue(0)
	r.verifyEnd(true)
}

// TestChoicesTakePlaces keeps a request out while its choices do not fit beside
// those that run.
func TestChoicesTakePlaces(t *testing.T) {
	cfg := forkConfig()
	cfg.MaxBatch = 4
	r := newRank(t, cfg)
	r.submit(several(1, 3, 6, 1, 2, 3), nil)
	second := r.submit(several(2, 2, 2, 4, 5, 6), nil)
	for range 6 {
		if r.step(0); len(second.tokens) > 0 {
			t.Fatal("five sequences run in a batch of four")
		}
	}
	r.step(0)
	if len(second.tokens) != 1 {
		t.Error("nothing runs and it still waits")
	}
	r.drainQueue(0)
	r.verifyEnd(true)
}

// ctxLeg is a prefill for n choices of a prompt of ten tokens.
func ctxLeg(n int) *request.Request {
	q := several(1, n, 6, count(0, 10)...)
	q.Kind, q.TransferID = request.ContextOnly, 5
	return q
}

func TestContextLegGivesAFirstTokenForEachChoice(t *testing.T) {
	r := newRank(t, forkConfig())
	cl := r.submit(ctxLeg(3), nil)
	r.step(0)
	for i := range 3 {
		got := cl.choice(i)
		if got.finish != request.FinishNotFinished || !slices.Equal(got.tokens, r.oracle(cl.req, i, 1)) || (got.handle != nil) != (i == 0) {
			t.Errorf("choice %d: %+v", i, got)
		}
	}
	st := r.Stats()
	if st.HandoffsOpen != 1 || st.BlocksLeased != 3 || cl.retired || r.Load().Active != 0 {
		t.Errorf("%+v", st)
	}
	r.Cancel(0, 1)
	r.collect()
	r.verifyEnd(true)
}

// TestContextLegKeepsBlocksForTheChoicesThatGoOn ends some choices at their
// first token: the blocks are needed as long as one goes on.
func TestContextLegKeepsBlocksForTheChoicesThatGoOn(t *testing.T) {
	for stops := range 8 {
		r := newRank(t, forkConfig())
		q := ctxLeg(3)
		q.Sampling.StopTokenIDs = []int32{99}
		cl := r.submit(q, nil)
		res := r.run(r.Plan(0))
		for i, s := range []*Sampled{&res.Sampled[0], &res.Sampled[0].Forks[0], &res.Sampled[0].Forks[1]} {
			if s.Token.ID = 98; stops>>i&1 == 1 {
				s.Token.ID = 99
			}
		}
		r.Apply(0, res)
		r.collect()
		for i := range 3 {
			want := request.FinishNotFinished
			if stops>>i&1 == 1 {
				want = request.FinishStop
			}
			if got := cl.choice(i).finish; got != want {
				t.Errorf("%03b: choice %d ended %q, want %q", stops, i, got, want)
			}
		}
		if open := stops != 7; (cl.handle != nil) != open || cl.retired == open || r.Stats().HandoffsOpen == 1 != open {
			t.Errorf("%03b: handle %v, %+v", stops, cl.handle, r.Stats())
		}
		r.Abort(0, 5)
		r.collect()
		if !cl.retired || r.kv.Free() != r.kv.Total() {
			t.Errorf("%03b: blocks are left", stops)
		}
	}
}

// genLeg is a worker that is about to pull the ten tokens of two blocks and a
// half for choices with these first tokens, and the transfer's handle.
func genLeg(t *testing.T, cfg Config, first ...int32) (*rank, *client) {
	t.Helper()
	cfg.Role = Gen
	r := newRank(t, cfg)
	q := several(1, len(first), 6, count(0, 10)...)
	q.Kind, q.TransferID = request.GenerationOnly, 5
	q.Sampling.StopTokenIDs = []int32{99}
	for _, id := range first {
		q.FirstTokens = append(q.FirstTokens, request.Token{ID: id})
	}
	s := &sequence{root: r.root(""), tokens: q.Prompt}
	h := &transfer.Handle{ID: 5, PromptTokens: 10, Layout: r.cfg.Layout, Root: s.root, Hashes: s.chain(2, 4)}
	cl := r.submit(q, h)
	r.Plan(0)
	e := r.Effects()
	if len(e.Pulls) != 1 || len(e.Pulls[0].Dst) != 3 {
		t.Fatalf("%+v", e.Pulls)
	}
	hash := seed(q)
	for p, id := range q.Prompt { // the pull writes what the ctx worker had
		hash = mixToken(hash, id)
		r.cache[int(e.Pulls[0].Dst[p/4])*4+p%4] = hash
	}
	return r, cl
}

func TestGenerationLegForksAfterOnePull(t *testing.T) {
	r, cl := genLeg(t, forkConfig(), 7, 99, 8)
	r.PullEvent(0, transfer.PullEvent{ID: 5, Progress: 3, Done: true, OK: true})
	r.collect()
	if cl.forks[0].finish != request.FinishStop || !slices.Equal(cl.forks[1].tokens, []int32{8}) {
		t.Fatalf("%+v", cl.forks)
	}
	r.drainQueue(0)
	if r.prefilled != 0 || len(cl.tokens) != 6 || len(cl.forks[1].tokens) != 6 || !cl.retired || r.kv.Free() != r.kv.Total() {
		t.Errorf("%d tokens prefilled, %+v %+v", r.prefilled, cl, cl.forks[1])
	}
}

// TestGenerationLegComputesForAllWhenItsPullFails also ends the choice that was
// to compute the prompt for the others.
func TestGenerationLegComputesForAllWhenItsPullFails(t *testing.T) {
	for _, first := range [][]int32{{7, 8, 9}, {99, 8, 9}, {99, 99, 9}, {7, 99, 9}, {99, 99, 99}} {
		for _, progress := range []int{0, 1, 3} {
			r, cl := genLeg(t, forkConfig(), first...)
			r.PullEvent(0, transfer.PullEvent{ID: 5, Progress: progress, Done: true, Code: "reset"})
			r.collect()
			r.drainQueue(0)
			for i, id := range first {
				got, want := cl.choice(i), request.FinishLength
				if id == 99 {
					want = request.FinishStop
				}
				if got.finish != want || got.tokens[0] != id || want == request.FinishLength && len(got.tokens) != 6 {
					t.Errorf("%v after %d blocks: choice %d %q %v", first, progress, i, got.finish, got.tokens)
				}
			}
			if !cl.retired || r.kv.Free() != r.kv.Total() || r.prefilled > 11 {
				t.Errorf("%v: %d blocks left, %d tokens prefilled", first, r.kv.Total()-r.kv.Free(), r.prefilled)
			}
		}
	}
}

func TestGenerationLegNeedsATokenForEachChoice(t *testing.T) {
	r := newRank(t, forkConfig())
	q := several(1, 3, 6, count(0, 10)...)
	q.Kind, q.TransferID = request.GenerationOnly, 5
	q.FirstTokens = []request.Token{{ID: 1}, {ID: 2}}
	err := r.Precheck(q, &transfer.Handle{ID: 5, PromptTokens: 10})
	if err == nil || err.Param != "disaggregated_params.first_gen_tokens" {
		t.Errorf("%v", err)
	}
}

// TestAbortFindsChoicesWhoseFirstHasEnded lets the first choice end before the
// others.
func TestAbortFindsChoicesWhoseFirstHasEnded(t *testing.T) {
	r, cl := genLeg(t, forkConfig(), 99, 8, 9)
	r.PullEvent(0, transfer.PullEvent{ID: 5, Progress: 3, Done: true, OK: true})
	r.collect()
	r.step(0)
	if st := r.Abort(0, 5); st != AbortAborted {
		t.Errorf("%v", st)
	}
	r.collect()
	if cl.forks[1].finish != request.FinishCancelled || !cl.retired || r.kv.Free() != r.kv.Total() {
		t.Errorf("%+v", cl.forks[1])
	}
	if st := r.Abort(0, 5); st != AbortDone {
		t.Errorf("%v", st)
	}
}
