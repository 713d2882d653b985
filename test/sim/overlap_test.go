package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// order is one request of a load that can be run more than once.
type order struct {
	at       int // tick
	split    bool
	genFirst bool
	emitted  bool
	prompt   []int32
	g, n     int
	eos      []int32
	stop     int32 // token that ends the text, -1 = none
	min      int
	cancel   int // when the client has so many tokens, 0 = never
}

const fewTokens = 24 // of the vocabulary, so that random tokens end answers

func drawOrders(t *rapid.T) []order {
	token := rapid.Int32Range(0, fewTokens-1)
	one := rapid.Custom(func(t *rapid.T) order {
		o := order{
			at: rapid.IntRange(0, 8).Draw(t, "at"), split: rapid.Bool().Draw(t, "split"),
			prompt: rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 50).Draw(t, "prompt"),
			g:      rapid.IntRange(1, 30).Draw(t, "g"), n: rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "n"),
			eos:  rapid.SliceOfN(token, 0, 2).Draw(t, "eos"),
			stop: rapid.SampledFrom([]int32{-1, -1, 3, 7}).Draw(t, "stop"),
			min:  rapid.SampledFrom([]int{0, 0, 5}).Draw(t, "min"),
		}
		if o.split {
			o.emitted, o.genFirst = rapid.Bool().Draw(t, "emitted"), rapid.Bool().Draw(t, "generation first")
			o.stop = -1 // legs of the fake frontend have no text
			if o.genFirst {
				o.n, o.emitted = 1, false
			}
		}
		if o.n == 1 && rapid.IntRange(0, 3).Draw(t, "cancelled") == 0 {
			o.cancel = rapid.IntRange(1, 20).Draw(t, "cancel")
		}
		return o
	})
	return rapid.SliceOfN(one, 1, 16).Draw(t, "orders")
}

func (o *order) sampling() request.Sampling {
	s := request.DefaultSampling()
	s.EOS, s.MinTokens = o.eos, o.min
	return s
}

// start gives a request to the workers and returns what its client sees.
func (o *order) start(c *Cluster, id int) *Session {
	s := session(id, o.prompt, o.g)
	s.Sampling, s.N, s.Emitted, s.GenFirst = o.sampling(), o.n, o.emitted, o.genFirst
	if o.split {
		c.Start(s)
		return s
	}
	r := full(1<<20+id, o.prompt, o.g)
	r.Sampling, r.Choices = o.sampling(), o.n
	r.Text = &stopText{stop: o.stop}
	for range o.n - 1 {
		r.ForkTexts = append(r.ForkTexts, &stopText{stop: o.stop})
	}
	s.Gen = c.Gen.Submit(c.Now, r, nil)
	return s
}

// seen is all that the client of a choice got, except how much of the prompt was
// found in the cache: that is a matter of when others came.
func (s *Session) seen(choice int) string {
	out := ""
	for _, leg := range []*Track{s.Ctx, s.Gen} {
		if leg == nil {
			out += "none; "
			continue
		}
		t := leg.Choices()[choice]
		out += fmt.Sprintf("%v %v %q %s %d+%d; ", t.Tokens, t.Probs, t.Text, t.Finish, t.Usage.PromptTokens, t.Usage.CompletionTokens)
	}
	return out
}

// runOrders runs a load to its end.
func runOrders(t *rapid.T, ctx, gen executor.Config, orders []order, seed uint64, how Overlap) *Cluster {
	c := NewCluster(worker(t, ctx), worker(t, gen), seed)
	c.Ctx.Overlap, c.Gen.Overlap = how, how
	c.Net.StopTime, c.Net.MaxDelay, c.Net.BlockTime = 20*time.Millisecond, 40*time.Millisecond, 10*time.Millisecond
	sessions := make([]*Session, len(orders))
	for tick := 0; ; tick++ {
		for i := range orders {
			o, s := &orders[i], sessions[i]
			if o.at == tick {
				sessions[i] = o.start(c, i)
			} else if s != nil && o.cancel > 0 && len(s.Tokens(0)) >= o.cancel && s.Gen != nil && s.Gen.Finish == request.Running && !s.cancelled {
				c.Cancel(s)
			}
		}
		more, err := c.Tick()
		if err != nil {
			t.Fatal(err)
		}
		if !more && tick > 30 {
			break
		}
		if tick > 100000 {
			t.Fatal("no end")
		}
	}
	c.Sessions = sessions
	return c
}

// TestOverlapChangesNothing proves OV-8: whatever is asked of the workers, clients
// see the same whether steps overlap or not.
func TestOverlapChangesNothing(t *testing.T) {
	fed, vain, paused := 0, uint64(0), uint64(0)
	property := func(t *rapid.T) {
		b := 1 << rapid.IntRange(1, 4).Draw(t, "logB")
		draw := func(role executor.Role) executor.Config {
			c := pairConfig(role, b, rapid.IntRange(300/b, 600/b).Draw(t, "N"))
			c.Vocab = fewTokens
			c.MaxNumTokens, c.MaxBatch = b+rapid.IntRange(3, 40).Draw(t, "rows"), rapid.IntRange(3, 8).Draw(t, "batch")
			c.BlockReuse, c.PartialReuse = rapid.IntRange(0, 4).Draw(t, "reuse") > 0, rapid.Bool().Draw(t, "partial")
			c.ShareInPass = rapid.Bool().Draw(t, "share")
			c.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization, scheduler.MaxUtilization}).Draw(t, "policy")
			c.Chunking = rapid.SampledFrom([]scheduler.Chunking{scheduler.FirstCome, scheduler.EqualProgress}).Draw(t, "chunking")
			return c
		}
		ctx, gen := draw(executor.Ctx), draw(executor.Gen)
		if gen.Policy == scheduler.MaxUtilization {
			gen.Blocks = 80/b + 1 // one request fits, others are paused
		}
		orders, seed := drawOrders(t), rapid.Uint64().Draw(t, "seed")
		want := runOrders(t, ctx, gen, orders, seed, InTurn)
		for _, how := range []Overlap{Heard, Eager, Lazy} {
			got := runOrders(t, ctx, gen, orders, seed, how)
			for i, s := range want.Sessions {
				for j := range max(1, orders[i].n) {
					a, b := s.seen(j), got.Sessions[i].seen(j)
					if s.cancelled || got.Sessions[i].cancelled { // at another moment
						if x, y := s.Tokens(j), got.Sessions[i].Tokens(j); !slices.Equal(x[:min(len(x), len(y))], y[:min(len(x), len(y))]) {
							t.Fatalf("request %d, overlap %d: %v, want %v", i, how, y, x)
						}
						continue
					}
					if a != b {
						t.Fatalf("request %d, choice %d, overlap %d:\n%s, want\n%s", i, j, how, b, a)
					}
				}
			}
			for _, w := range []*Worker{got.Ctx, got.Gen} {
				st := w.Core.Stats()
				if st.BlocksFree+st.BlocksReusable != st.BlocksTotal || st.Holds+st.HandoffsOpen+st.Receiving != 0 || st.Deadlocks+st.IllegalTransition != 0 {
					t.Fatalf("left over: %+v", st)
				}
				if w.cfg.Policy != scheduler.MaxUtilization && st.Paused > 0 {
					t.Fatalf("SP-7: %d pauses", st.Paused)
				}
				fed += w.Fed
				vain += uint64(w.Rows) - st.PrefillTokens - st.DecodeTokens
				paused += st.Paused
			}
		}
	}
	rapid.Check(t, property)
	for range 4 { // one short run in thirty has drawn no load that pauses anybody
		if paused == 0 {
			rapid.Check(t, property)
		}
	}
	t.Logf("%d rows took a token over, %d ran in vain, %d pauses", fed, vain, paused)
	if fed == 0 || vain == 0 || paused == 0 {
		t.Error("the loads do not reach what is to be proved")
	}
}

// TestScenario19Fences proves that a pull never writes a block that a running step
// may still write.
func TestScenario19Fences(t *testing.T) {
	for _, how := range []Overlap{Eager, Lazy} {
		c := pair(t, func(_, gen *executor.Config) {
			gen.Blocks, gen.Policy = 12, scheduler.MaxUtilization
		})
		c.Ctx.Overlap, c.Gen.Overlap = how, how
		for i := range 6 {
			c.Start(session(i, prompt(i, 60), 60))
			c.Gen.Submit(0, full(1<<20+i, prompt(100+i, 30), 40), nil)
		}
		settle(t, c)
		verifySessions(t, c)
		verify(t, c.Gen)
	}
}

// TestNobodyIsPausedForBlocksThatComeBack gives a request its next block when the
// other one, which has its last token coming, needs its own no more.
func TestNobodyIsPausedForBlocksThatComeBack(t *testing.T) {
	waited := 0
	for g := 1; g < 40; g++ {
		pauses := map[Overlap]uint64{}
		for _, how := range []Overlap{InTurn, Eager, Lazy} {
			c := config(16, 6)
			c.Policy, c.BlockReuse = scheduler.MaxUtilization, false
			w := worker(t, c)
			w.Overlap = how
			w.Submit(0, full(0, prompt(0, 30), 60), nil)
			w.Submit(0, full(1, prompt(1, 28), g), nil)
			mustRun(t, w)
			verify(t, w)
			pauses[how] = w.Core.Stats().Paused
		}
		if pauses[Eager] != pauses[InTurn] || pauses[Lazy] != pauses[InTurn] {
			t.Errorf("%d tokens: %v pauses", g, pauses)
		}
		if pauses[InTurn] == 0 {
			waited++
		}
	}
	if waited == 0 || waited == 39 {
		t.Errorf("%d of 39 loads fit", waited)
	}
}

// TestOverlapHidesOneStep counts steps: a request costs one row in vain if it is
// ended by a token, none if its length ends it, and none of it is seen.
func TestOverlapHidesOneStep(t *testing.T) {
	c := config(16, 32)
	oracle := Oracle(50000, worker(t, c).Root(full(0, nil, 1)), prompt(0, 20), 10)
	for _, tc := range []struct {
		eos          []int32
		tokens, rows int
	}{{nil, 10, 20 + 9}, {oracle[4:5], 5, 20 + 4 + 1}, {oracle[9:], 10, 20 + 9}, {oracle[:1], 1, 20 + 1}} {
		for _, how := range []Overlap{Eager, Lazy} {
			w := worker(t, c)
			w.Overlap = how
			r := full(0, prompt(0, 20), 10)
			r.Sampling.EOS = tc.eos
			tr := w.Submit(0, r, nil)
			mustRun(t, w)
			verify(t, w)
			if !slices.Equal(tr.Tokens, oracle[:tc.tokens]) || w.Rows != tc.rows || tr.Usage.CompletionTokens != tc.tokens {
				t.Errorf("eos %v: %d tokens, %d rows, usage %+v; want %d, %d", tc.eos, len(tr.Tokens), w.Rows, tr.Usage, tc.tokens, tc.rows)
			}
		}
	}
}

// TestScenario19ReceiveWaitsForTheFence lets a request end at step k while k+1 still
// writes its blocks. A pull that needs them gets none before that step is over, and
// nobody is paused for it.
func TestScenario19ReceiveWaitsForTheFence(t *testing.T) {
	for _, how := range []Overlap{Eager, Lazy} {
		c := pair(t, func(_, gen *executor.Config) {
			gen.Blocks, gen.Policy, gen.BlockReuse = 8, scheduler.MaxUtilization, false
		})
		c.Gen.Overlap, c.Step = how, time.Millisecond
		oracle := Oracle(50000, c.Gen.Root(full(0, nil, 1)), prompt(50, 80), 48)
		holder := full(1<<20, prompt(50, 80), 48) // five blocks, then seven
		holder.Sampling.EOS = oracle[19:20]       // nobody knows before its result
		tr := c.Gen.Submit(0, holder, nil)
		c.Start(session(0, prompt(0, 60), 4)) // four blocks
		var pages []int32
		closed, started := false, false
		c.Gen.BeforeApply = func(b *executor.Batch) { pages = slices.Clone(b.Rows[0].Pages) }
		c.Gen.OnEffects = func(e *executor.Effects) {
			if len(e.Outputs) > 0 && tr.Finish != request.Running && !closed {
				closed = true
				if st := c.Gen.Core.Stats(); tr.Retired || st.BlocksFenced != 7 || c.Gen.flying == nil {
					t.Errorf("the first ends in no step that another overlaps: %+v", st)
				}
			}
			for _, p := range e.Pulls {
				started = true
				shared := slices.ContainsFunc(p.Dst, func(id int32) bool { return slices.Contains(pages, id) })
				if !closed || !tr.Retired || c.Gen.flying != nil || !shared {
					t.Errorf("a pull into %v begins; closed %v, retired %v, a step runs %v, blocks %v", p.Dst, closed, tr.Retired, c.Gen.flying != nil, pages)
				}
			}
			c.effects(e)
		}
		settle(t, c)
		if verifySessions(t, c); !started {
			t.Error("nothing was pulled")
		}
		expect(t, "pauses", c.Gen.Core.Stats().Paused, 0)
	}
}

// TestSharesWhatTheStepBeforeComputes lets a prompt come while a step runs that
// computes its beginning for another, beside one that decodes all the time.
func TestSharesWhatTheStepBeforeComputes(t *testing.T) {
	for _, how := range []Overlap{Eager, Lazy} {
		c := config(16, 64)
		c.ShareInPass = true
		w := worker(t, c)
		w.Overlap = how
		w.Submit(0, full(0, prompt(0, 20), 20), nil)
		for i := range 4 {
			if _, err := w.Step(0); err != nil {
				t.Fatal(err)
			}
			if i > 1 {
				w.Submit(0, full(i, prompt(9, 97), 4), nil)
			}
		}
		mustRun(t, w)
		verify(t, w)
		expect(t, "tokens shared before they were computed", w.Core.Stats().PendingShare, 96)
		expect(t, "prefilled", w.Core.Stats().PrefillTokens, 20+97+1)
	}
}
