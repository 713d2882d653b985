package lockstep

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// world drives ranks over an exchange in memory; every rank's tokens are 1.
type world struct {
	t      testing.TB
	now    time.Duration
	ranks  []*Rank
	rows   []Row
	outs   []Delivery
	steps  []*Step
	ended  []executor.Output
	fates  []Fates
	routes []adprouter.Placed
}

func newWorld(t testing.TB, ranks int, change func(*Config, *executor.Config)) *world {
	t.Helper()
	w := &world{t: t, rows: make([]Row, ranks), outs: make([]Delivery, ranks), steps: make([]*Step, ranks), fates: make([]Fates, ranks)}
	for i := range ranks {
		core := executor.DefaultConfig()
		core.Vocab, core.Blocks, core.BlockTokens, core.MaxBatch, core.MaxNumTokens, core.MaxSeqLen = 100, 64, 4, 4, 64, 200
		core.Rank, core.Namespace = i, "m"
		c := Config{Rank: i, Router: adprouter.Defaults(ranks, 4), MaxQueued: 8}
		c.Router.Kind = adprouter.ConversationAware
		if change != nil {
			change(&c, &core)
		}
		k, err := executor.New(core)
		if err != nil {
			t.Fatal(err)
		}
		l, err := New(c, k)
		if err != nil {
			t.Fatal(err)
		}
		w.ranks = append(w.ranks, l)
	}
	return w
}

func (w *world) enter(id int, key string, tokens, answer int, change func(*request.Request)) {
	w.t.Helper()
	r := &request.Request{ID: request.ID(id), MaxTokens: answer, Sampling: request.DefaultSampling(), ConversationID: key, DPRank: -1}
	for i := range tokens {
		r.Prompt = append(r.Prompt, int32((id*7+i)%90))
	}
	if change != nil {
		change(r)
	}
	if err := w.ranks[0].Offer(r, nil); err != nil {
		w.t.Fatalf("request %d: %v", id, err)
	}
	w.ranks[0].Enter(w.now, &Arrival{Item: adprouter.NewItem(r, 0), Prompt: r.Prompt, Body: r, Deadline: r.Deadline})
}

// iterate runs one iteration of all ranks and reports an error of Decide.
func (w *world) iterate() error {
	gather := false
	for i, l := range w.ranks {
		l.Plan(w.now)
		w.collect(i)
		row, out := l.Row()
		w.rows[i], w.outs[i] = row, *out
		gather = gather || !out.Empty()
	}
	for i, l := range w.ranks {
		step, err := l.Decide(w.rows, gather)
		if err != nil {
			return err
		}
		w.steps[i] = step
		if step.Batch != nil {
			l.Apply(w.now, result(step.Batch))
			w.collect(i)
		}
	}
	for i, l := range w.ranks {
		var all []Delivery
		if gather {
			all = w.outs
		}
		for _, t := range l.Route(w.now, all) {
			w.routes = append(w.routes, t.Placed)
			l.Core().Submit(w.now, t.Body.(*request.Request), t.Lent)
		}
		w.collect(i)
		w.fates[i] = l.Fates()
		if err := l.Check(); err != nil {
			w.t.Fatalf("rank %d: %v", i, err)
		}
	}
	return nil
}

func result(b *executor.Batch) (res executor.Result) {
	for range b.Rows {
		res.Sampled = append(res.Sampled, executor.Sampled{Token: request.Token{ID: 1}})
	}
	return res
}

func (w *world) collect(i int) {
	for _, o := range w.ranks[i].Effects().Outputs {
		if o.Finish != request.Running {
			w.ended = append(w.ended, o)
		}
	}
}

func (w *world) run(n int) {
	w.t.Helper()
	for range n {
		if err := w.iterate(); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestRanksWithoutRowsTakePart(t *testing.T) {
	w := newWorld(t, 3, nil)
	w.enter(1, "a", 10, 3, nil)
	w.run(1) // it is delivered and placed
	if w.steps[0].Forward || !w.steps[0].Gather {
		t.Errorf("the delivery: %+v", w.steps[0])
	}
	for n := range 3 {
		w.run(1)
		want := "[1 0 0]"
		if n == 0 {
			want = "[10 0 0]"
		}
		for i, s := range w.steps {
			if !s.Forward || s.Pad != (i != 0) || (s.Batch != nil) != (i == 0) || fmt.Sprint(s.RankRows) != want {
				t.Errorf("pass %d of rank %d: %+v, rows %v, want %s", n, i, *s, s.RankRows, want)
			}
		}
	}
	w.run(2)
	if len(w.ended) != 1 || w.ended[0].Finish != request.FinishLength {
		t.Errorf("ended %+v", w.ended)
	}
	for i, l := range w.ranks {
		if st := l.Stats(0); !l.Quiet() || st.Steps != 3 || st.Padded != uint64(min(i, 1)*3) {
			t.Errorf("rank %d: quiet %v, %+v", i, l.Quiet(), st)
		}
	}
}

func TestDifferentStatesAreFound(t *testing.T) {
	w := newWorld(t, 2, nil)
	w.enter(1, "a", 5, 2, nil)
	w.run(6)
	w.ranks[1].Router().Move("a", 1)
	err := w.iterate()
	var diverged *DivergenceError
	if !errors.As(err, &diverged) || diverged.Rank != 1 || !strings.Contains(diverged.Dump, "1 bindings") {
		t.Errorf("%v", err)
	}
}

func TestHeldPrefillWaits(t *testing.T) {
	w := newWorld(t, 2, func(c *Config, _ *executor.Config) {
		c.Balance = &adprouter.Balance{TimeoutIters: 3, BatchingWaitIters: 1, MaxBatch: 4}
	})
	w.enter(1, "a", 5, 20, nil)
	w.enter(2, "b", 5, 20, nil)
	w.run(4) // both ranks decode
	w.enter(3, "a", 40, 1, nil)
	w.run(1)
	free := w.ranks[0].Core().Stats().BlocksFree
	held := 0
	for w.iterate() == nil && w.steps[0].Held {
		held++
		if fmt.Sprint(w.steps[0].RankRows) != "[1 1]" || w.ranks[0].Core().Stats().BlocksFree < free-1 {
			t.Fatalf("held: rows %v, %d of %d blocks free", w.steps[0].RankRows, w.ranks[0].Core().Stats().BlocksFree, free)
		}
	}
	if held != 2 || fmt.Sprint(w.steps[1].RankRows) != "[41 1]" {
		t.Errorf("held %d times, then rows %v", held, w.steps[1].RankRows)
	}
}

func TestQueueEndsWaits(t *testing.T) {
	w := newWorld(t, 2, func(c *Config, _ *executor.Config) { c.QueueTimeout = time.Second })
	full := func(r *request.Request) { r.DPRank = 1 } // strict
	for id := 1; id <= 4; id++ {
		w.enter(id, "", 5, 100, full)
	}
	w.run(2)
	w.enter(5, "", 5, 1, full)
	w.enter(6, "", 5, 1, func(r *request.Request) { full(r); r.Deadline = 500 * time.Millisecond })
	w.enter(7, "", 5, 1, full)
	w.run(1)
	w.ranks[0].Cancel(7)
	w.run(1)
	if f := w.fates[0].Ended; len(f) != 1 || f[0] != (Removal{7, request.Cancelled}) || len(w.fates[1].Ended) != 0 {
		t.Errorf("cancelled: %+v %+v", f, w.fates[1].Ended)
	}
	if at, ok := w.ranks[0].NextDeadline(); !ok || at != 500*time.Millisecond {
		t.Errorf("next deadline %v %v", at, ok)
	}
	w.now = 600 * time.Millisecond
	if st := w.ranks[0].Stats(w.now); st.Queued != 2 || st.Strict != w.now {
		t.Errorf("waiting: %+v", st)
	}
	w.run(1)
	if f := w.fates[0].Ended; len(f) != 1 || f[0] != (Removal{6, request.DeadlineExceeded}) {
		t.Errorf("after the deadline: %+v", f)
	}
	w.now = 1100 * time.Millisecond
	w.run(1)
	if f := w.fates[0].Ended; len(f) != 1 || f[0] != (Removal{5, request.QueueTimeout}) {
		t.Errorf("after the time in the queue: %+v", f)
	}
}

func TestOfferJudges(t *testing.T) {
	w := newWorld(t, 2, func(c *Config, _ *executor.Config) { c.MaxQueued = 1 })
	r := &request.Request{ID: 9, Prompt: []int32{1}, MaxTokens: 1, Sampling: request.DefaultSampling(), DPRank: 2}
	if err := w.ranks[0].Offer(r, nil); err == nil || err.Param != "attention_dp_rank" {
		t.Errorf("rank 2 of 2: %v", err)
	}
	r.DPRank, r.Prompt = -1, nil
	if err := w.ranks[0].Offer(r, nil); err == nil || err.Param != "prompt" {
		t.Errorf("no prompt: %v", err)
	}
	w.enter(1, "", 5, 1, nil)
	r.Prompt = []int32{1}
	if err := w.ranks[0].Offer(r, nil); err == nil || err.Code != request.QueueFull {
		t.Errorf("a full queue: %v", err)
	}
	w.ranks[0].Drain()
	if err := w.ranks[0].Offer(r, nil); err == nil || err.Code != request.EngineDead {
		t.Errorf("draining: %v", err)
	}
}

func TestDrainEndsTogether(t *testing.T) {
	w := newWorld(t, 2, nil)
	for id := 1; id <= 12; id++ { // more than fit
		w.enter(id%9+1, fmt.Sprint(id%3), 5, 3, func(r *request.Request) { r.ID = request.ID(id) })
		if id%8 == 0 {
			w.run(2)
		}
	}
	w.ranks[0].Drain()
	for n := range 200 {
		w.run(1)
		if w.steps[0].Stop != w.steps[1].Stop {
			t.Fatalf("iteration %d: one rank stops", n)
		}
		if w.steps[0].Stop {
			break
		}
	}
	if !w.steps[0].Stop || len(w.ended) != 12 {
		t.Fatalf("stopped %v with %d of 12 ended", w.steps[0].Stop, len(w.ended))
	}
	for _, o := range w.ended {
		if o.Finish != request.FinishLength {
			t.Errorf("request %d ended %q %v", o.Request.ID, o.Finish, o.Err)
		}
	}
}

func TestAbortIsAnsweredByAll(t *testing.T) {
	w := newWorld(t, 3, nil)
	w.ranks[0].Abort(7)
	w.run(1)
	for i, f := range w.fates {
		if len(f.Aborts) != 1 || f.Aborts[0] != (Abort{transfer.ID(7), executor.AbortUnknown}) {
			t.Errorf("rank %d: %+v", i, f.Aborts)
		}
	}
}

// An iteration in which two ranks decode, and nothing arrives.
func BenchmarkIteration(b *testing.B) {
	w := newWorld(b, 2, func(_ *Config, c *executor.Config) {
		c.BlockTokens, c.MaxNumTokens, c.Blocks, c.MaxSeqLen = 1<<12, 1<<13, 1<<12, 1<<24
	})
	for i, key := range []string{"a", "b"} {
		w.enter(i+1, key, 5, 1<<23, nil)
	}
	w.run(3)
	rows, results := make([]Row, 2), make([]executor.Result, 2)
	for i := range results {
		results[i].Sampled = []executor.Sampled{{Token: request.Token{ID: 1}}}
	}
	b.ReportAllocs()
	for b.Loop() {
		for i, l := range w.ranks {
			l.Plan(0)
			rows[i], _ = l.Row()
		}
		for i, l := range w.ranks {
			if s, err := l.Decide(rows, false); err != nil || s.Batch == nil {
				b.Fatal(err)
			}
			l.Apply(0, results[i])
			l.Route(0, nil)
			l.Effects()
		}
	}
}
