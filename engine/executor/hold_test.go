package executor

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// standing is what a held request must have again.
type standing struct {
	state     request.State
	computed  int
	committed int
	cached    int
	pauses    int
	admitted  bool
	fresh     bool
	holds     hold
	due       time.Duration
	table     []int32
}

func (r *rank) standings() map[request.ID]standing {
	all := map[request.ID]standing{}
	for id, s := range r.byID {
		st := standing{
			state: s.State, computed: s.Computed, committed: s.committed, cached: s.cached, pauses: s.Pauses,
			admitted: s.admitted, fresh: s.fresh, holds: s.holds, due: never, table: slices.Clone(s.Table),
		}
		if s.heapAt >= 0 {
			st.due = s.due
		}
		all[id] = st
	}
	return all
}

// checkHeld proves that a held batch has no prefill and that Load agrees.
func (r *rank) checkHeld(before, b *Batch) {
	r.t.Helper()
	if b != nil && (len(b.Rows) == 0 || before == nil || strayCopies(b)) || b == nil && r.flights.n > 0 {
		r.t.Fatalf("hold left %+v, %d steps run", b, r.flights.n)
	}
	if b != nil {
		for _, row := range b.Rows {
			if row.Context {
				r.t.Fatalf("hold left a prefill of request %d", row.Request.ID)
			}
		}
	}
	r.checkLoad(b)
	if again := r.Hold(); again != b {
		r.t.Fatalf("held twice: %p, then %p", b, again)
	}
	r.check()
}

func holdConfig() Config {
	c := testConfig(Mixed)
	c.BlockTokens, c.Blocks, c.MaxNumTokens, c.MaxBatch, c.MaxSeqLen = 4, 40, 24, 6, 120
	return c
}

func ask(id int, g int, prompt ...int32) *request.Request {
	return &request.Request{ID: request.ID(id), Prompt: prompt, MaxTokens: g, Sampling: request.DefaultSampling()}
}

// count returns the n tokens from, from+1, ...
func count(from, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((from + i) % 100)
	}
	return out
}

func TestHoldPutsAllBackAsItWas(t *testing.T) {
	r := newRank(t, holdConfig())
	first := r.submit(ask(1, 8, count(0, 10)...), nil)
	r.drainQueue(0) // leaves two cached blocks and part of a third
	if first.finish != request.FinishLength {
		t.Fatalf("%q", first.finish)
	}
	r.submit(ask(2, 30, count(50, 4)...), nil)
	r.step(0) // decodes from now on
	r.submit(ask(3, 4, count(70, 50)...), nil)
	r.step(0)                                                        // a long prefill is under way
	r.submit(ask(4, 4, append(count(0, 9), 90, 91, 92)...), nil)     // shares two blocks
	r.submit(ask(5, 4, append(count(0, 5), 93, 94, 95, 96)...), nil) // shares one block and a part
	r.submit(ask(6, 4, append(count(0, 9), 90, 91, 92, 7)...), nil)  // shares what 4 computes
	before, free, stats := r.standings(), r.kv.Free(), r.Stats()
	for range 3 {
		b := r.Plan(0)
		rows := len(b.Rows)
		left := r.Hold()
		r.check()
		if rows < 2 || left == nil || len(left.Rows) != 1 || left.Rows[0].Request.ID != 2 {
			t.Fatalf("%d rows, left %+v", rows, left)
		}
		after := r.standings()
		for id := request.ID(3); id <= 6; id++ {
			if a, b := after[id], before[id]; !equalStanding(a, b) {
				t.Errorf("request %d: %+v, before %+v", id, a, b)
			}
		}
		r.Apply(0, r.run(left))
		r.collect()
	}
	if st := r.Stats(); st.PrefillTokens != stats.PrefillTokens || st.PrefixQueryTokens != stats.PrefixQueryTokens || st.PrefixHitTokens != stats.PrefixHitTokens {
		t.Errorf("counted: %+v, before %+v", st, stats)
	}
	if got := r.kv.Free(); got < free-1 {
		t.Errorf("%d blocks free, before %d", got, free)
	}
	r.drainQueue(0)
	r.verifyEnd(true)
	if st := r.Stats(); st.PrefillTokens != uint64(r.prefilled) || st.PrefixQueryTokens != 10+4+50+12+9+13 {
		t.Errorf("counted: %+v, ran %d", st, r.prefilled)
	}
}

func equalStanding(a, b standing) bool {
	same := slices.Equal(a.table, b.table)
	a.table, b.table = nil, nil
	return same && a.state == b.state && a.computed == b.computed && a.committed == b.committed && a.cached == b.cached &&
		a.pauses == b.pauses && a.admitted == b.admitted && a.fresh == b.fresh && a.holds == b.holds && a.due == b.due
}

func TestHoldOfOnlyPrefillsLeavesNothing(t *testing.T) {
	r := newRank(t, holdConfig())
	if r.Hold() != nil {
		t.Error("a batch from nowhere")
	}
	r.submit(ask(1, 4, count(0, 30)...), nil)
	for range 5 {
		if r.Plan(0) == nil || r.Hold() != nil || r.kv.Free() != 40 || r.Load().CtxRequests != 0 {
			t.Fatal("something stays")
		}
		r.check()
	}
	r.Plan(0)
	r.Cancel(0, 1)
	if r.Hold() != nil {
		t.Fatal("a cancelled row stays")
	}
	r.collect()
	r.verifyEnd(true)
}

// TestHoldGivesAGrownBlockBack holds a prefill that runs already and needs one
// more block: that of a prompt whose pull failed, for its first token.
func TestHoldGivesAGrownBlockBack(t *testing.T) {
	c, s := pulling(t, true, 32)
	c.PullEvent(0, transfer.PullEvent{ID: 5, Progress: 1, Done: true, Code: "reset"})
	for range 3 {
		free := c.kv.Free()
		if b := c.Plan(0); b == nil || c.kv.Free() != free-1 || len(b.Rows[0].Pages) != 3 {
			t.Fatalf("%+v", b)
		}
		if c.Hold() != nil || c.kv.Free() != free || len(s.Table) != 2 || s.Computed != 16 || s.State != request.Prefill {
			t.Fatalf("%d of %d blocks free, table %v", c.kv.Free(), free, s.Table)
		}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRandomHolds is the property: whatever is held, cancelled or fails, every
// request gets the tokens that it gets alone, nothing leaks, nothing is counted
// twice, and a plan that is held as a whole comes again as it was.
func TestRandomHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRank(t, drawConfig(t, Mixed))
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 50)
		n, failed, cancelled := 0, false, false
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				n++
				q := ask(n, rapid.IntRange(1, 20).Draw(t, "g"), tokens.Draw(t, "prompt")...)
				q.CacheSalt = rapid.SampledFrom([]string{"", "a"}).Draw(t, "salt")
				q.Priority = float64(rapid.IntRange(0, 2).Draw(t, "priority")) / 2
				r.drawChoices(t, q)
				r.submit(q, nil)
			},
			"step": func(t *rapid.T) {
				for range rapid.IntRange(1, 5).Draw(t, "steps") {
					r.hold = rapid.Bool().Draw(t, "hold")
					if r.hold {
						r.checkRepeat()
					}
					r.step(0)
				}
			},
			"cancel between": func(t *rapid.T) {
				id := request.ID(rapid.IntRange(1, n+1).Draw(t, "id"))
				cancelled = true
				r.between = func() { r.Cancel(0, id) }
				r.hold = rapid.Bool().Draw(t, "hold")
				r.step(0)
			},
			"fail": func(t *rapid.T) {
				r.failNext, failed = true, true
				r.step(0)
			},
		})
		r.failNext = false
		r.drainQueue(0)
		if r.Fatal() != nil {
			return
		}
		r.verifyEnd(!failed)
		prompts := 0
		for _, cl := range r.clients {
			if cl.err == nil {
				prompts += len(cl.req.Prompt)
			}
		}
		st := r.Stats()
		if st.PrefillTokens != uint64(r.prefilled) || !failed && !cancelled && st.PrefixQueryTokens != uint64(prompts) {
			t.Fatalf("counted %+v; %d ran of prompts of %d", st, r.prefilled, prompts)
		}
		if r.cfg.Policy != scheduler.MaxUtilization && st.Paused != 0 {
			t.Fatalf("SP-7: %d pauses", st.Paused)
		}
	})
}

// checkRepeat plans, holds and plans again, if nothing decodes.
func (r *rank) checkRepeat() {
	type key struct {
		id     request.ID
		pos, n int
	}
	for _, s := range r.slots {
		if s != nil && (s.State == request.Decode || s.State == request.GenReady) {
			return
		}
	}
	keys := func() (out []key) {
		before := r.standings()
		b := r.Plan(0)
		if b == nil {
			return nil
		}
		for _, row := range b.Rows {
			out = append(out, key{row.Request.ID, row.Pos, len(row.Tokens)})
		}
		if r.Hold() != nil {
			r.t.Fatalf("a decode from nowhere")
		}
		r.check()
		for id, a := range r.standings() {
			if !equalStanding(a, before[id]) {
				r.t.Fatalf("request %d: %+v, before %+v", id, a, before[id])
			}
		}
		return out
	}
	free := r.kv.Free()
	first, second := keys(), keys()
	if !slices.Equal(first, second) || r.kv.Free() != free {
		r.t.Fatalf("planned %v, then %v; %d blocks free, then %d", first, second, free, r.kv.Free())
	}
}

// drawChoices makes some requests ask for as many choices as the rank can hold.
func (r *rank) drawChoices(t *rapid.T, q *request.Request) {
	q.Choices = min(rapid.SampledFrom([]int{0, 1, 1, 2, 3, 5}).Draw(t, "n"), r.cfg.MaxBatch)
	for q.Choices > 1 && r.needs(q) > r.cfg.Blocks {
		q.Choices--
	}
	if rapid.IntRange(0, 3).Draw(t, "retention") == 0 {
		keep := request.Keep{
			From: rapid.IntRange(0, 40).Draw(t, "from"), To: rapid.IntRange(1, 90).Draw(t, "to"),
			Priority: uint8(rapid.IntRange(0, 100).Draw(t, "keep")), For: time.Duration(rapid.IntRange(0, 5).Draw(t, "for")) * time.Second,
		}
		q.Retention = &request.Retention{Prompt: []request.Keep{keep}, Output: &keep}
	}
}

// strayCopies reports whether a batch copies to a block that none of its rows has.
func strayCopies(b *Batch) bool {
	return slices.ContainsFunc(b.Copies, func(c Copy) bool {
		return !slices.ContainsFunc(b.Rows, func(row Row) bool { return slices.Contains(row.Pages, c.To) })
	})
}

func drawConfig(t *rapid.T, role Role) Config {
	b := 1 << rapid.IntRange(0, 4).Draw(t, "logB")
	c := testConfig(role)
	c.BlockTokens, c.MaxSeqLen = b, 80
	c.Blocks = rapid.IntRange(80/b+1, 300/b+1).Draw(t, "N")
	c.MaxNumTokens = b + rapid.IntRange(1, 60).Draw(t, "rows")
	c.MaxBatch = rapid.IntRange(1, 8).Draw(t, "batch")
	c.BlockReuse = rapid.IntRange(0, 5).Draw(t, "reuse") > 0
	c.PartialReuse = rapid.Bool().Draw(t, "partial")
	c.ShareInPass = rapid.Bool().Draw(t, "share")
	c.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization, scheduler.StaticBatch}).Draw(t, "policy")
	c.Chunking = rapid.SampledFrom([]scheduler.Chunking{scheduler.FirstCome, scheduler.EqualProgress}).Draw(t, "chunking")
	c.Queue = rapid.SampledFrom([]scheduler.Queue{scheduler.FCFS, scheduler.Priority}).Draw(t, "queue")
	c.ChunkPrefill = rapid.IntRange(0, 3).Draw(t, "chunk") > 0
	c.PrefillMixed = rapid.SampledFrom([]int{0, b, 2 * b}).Draw(t, "mixed cap")
	c.PrefillPerDecode = rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "per decode")
	return c
}
