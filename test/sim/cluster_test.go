package sim

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/executor"
	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

func pairConfig(role executor.Role, b, n int) executor.Config {
	c := config(b, n)
	c.Role = role
	c.Incarnation = string(role)
	c.Layout = transfer.Layout{Layers: 2, KVHeads: 1, HeadDim: 4, DType: "F32", Packing: "p"}
	return c
}

func pair(t tb, change func(ctx, gen *executor.Config)) *Cluster {
	t.Helper()
	cc, gc := pairConfig(executor.Ctx, 16, 128), pairConfig(executor.Gen, 16, 128)
	if change != nil {
		change(&cc, &gc)
	}
	return NewCluster(worker(t, cc), worker(t, gc), 1)
}

func session(id int, prompt []int32, g int) *Session {
	return &Session{ID: request.ID(id), Prompt: prompt, MaxTokens: g, Sampling: request.DefaultSampling()}
}

// verifySessions checks clients' tokens and that both workers are empty.
func verifySessions(t tb, c *Cluster) {
	t.Helper()
	for _, s := range c.Sessions {
		last := s.Ctx
		if s.Gen != nil {
			last = s.Gen
		}
		for i, choice := range last.Choices() {
			want := OracleChoice(50000, c.Ctx.Root(s.Ctx.Req), s.Prompt, i, s.MaxTokens)
			got := s.Tokens(i)
			complete := choice.Finish == request.FinishLength
			if !slices.Equal(got, want[:min(len(got), len(want))]) || complete && len(got) != len(want) {
				t.Fatalf("session %d, choice %d (%s): tokens %v, want %v", s.ID, i, choice.Finish, got, want)
			}
		}
		for _, leg := range []*Track{s.Ctx, s.Gen} {
			if leg == nil {
				continue
			}
			for _, choice := range leg.Choices() {
				if choice.Finish == request.Running || !choice.Retired {
					t.Fatalf("session %d, choice %d: a leg ended %q, retired %v", s.ID, choice.Choice, choice.Finish, choice.Retired)
				}
			}
		}
	}
	for _, w := range []*Worker{c.Ctx, c.Gen} {
		st := w.Core.Stats()
		if st.BlocksFree+st.BlocksReusable != st.BlocksTotal || st.Holds+st.HandoffsOpen+st.Receiving != 0 || st.Deadlocks+st.IllegalTransition != 0 {
			t.Fatalf("%s: left over %+v", w.cfg.Role, st)
		}
	}
}

func settle(t tb, c *Cluster) {
	t.Helper()
	if err := c.Settle(100000); err != nil {
		t.Fatal(err)
	}
}

func TestSplitEqualsOracle(t *testing.T) {
	for _, emitted := range []bool{false, true} {
		c := pair(t, nil)
		for i, p := range []int{1, 15, 16, 17, 64, 100} {
			s := session(i, prompt(i, p), 1+i*5)
			s.Emitted = emitted
			c.Start(s)
		}
		settle(t, c)
		verifySessions(t, c)
		expect(t, "one token needs no gen leg", c.Sessions[0].Gen, nil)
		for _, s := range c.Sessions[1:] {
			expect(t, "finish", s.Gen.Finish, request.FinishLength)
			expect(t, "completion tokens", s.Gen.Usage.CompletionTokens, s.MaxTokens)
		}
		expect(t, "blocks moved", c.Moved, 1+1+2+4+7)
	}
}

func TestScenario17GenSideReuse(t *testing.T) {
	c := pair(t, nil)
	long := prompt(3, 164)
	c.Start(session(0, long[:144], 4)) // 9 whole blocks
	settle(t, c)
	before := c.Moved
	c.Start(session(1, long, 8))
	settle(t, c)
	verifySessions(t, c)
	expect(t, "blocks moved", c.Moved-before, 2)
	expect(t, "cached on gen", c.Sessions[1].Gen.Usage.CachedTokens, 144)
}

func TestScenario15StaleLease(t *testing.T) {
	for _, recompute := range []bool{true, false} {
		for _, readOn := range []bool{false, true} {
			c := pair(t, func(ctx, gen *executor.Config) {
				ctx.Lease, ctx.Blocks = time.Second, 10
				gen.LocalRecompute = recompute
			})
			c.Net.Deaf, c.Net.ReadOn, c.Net.BlockTime = true, readOn, 3*time.Second/7
			c.Start(session(0, prompt(0, 100), 20))
			c.at(1500*time.Millisecond, func() { // reuses the ctx worker's blocks while they are read
				for i := 1; i < 3; i++ {
					s := session(i, prompt(i, 140), 2)
					s.NoGen = true
					c.Start(s)
				}
			})
			settle(t, c)
			verifySessions(t, c)
			gen := c.Sessions[0].Gen
			if recompute {
				expect(t, "finish", gen.Finish, request.FinishLength)
				expect(t, "recomputed", c.Gen.Core.Stats().Recomputed, 1)
			} else if gen.Finish != request.FinishError || gen.Err.Code != request.TransferFailed {
				t.Errorf("without recompute: %s %v", gen.Finish, gen.Err)
			}
			if readOn {
				expect(t, "stale", c.Ctx.Core.Stats().StalePulls, 1)
			}
		}
	}
}

func TestRecomputeKeepsVerifiedBlocks(t *testing.T) {
	c := pair(t, func(_, gen *executor.Config) { gen.Progress = time.Second })
	c.Net.BlockTime = 10 * time.Millisecond
	c.Start(session(0, prompt(0, 100), 20))
	for c.Moved < 4 {
		if _, err := c.Tick(); err != nil {
			t.Fatal(err)
		}
	}
	c.Net.BlockTime = time.Hour // the peer stalls
	settle(t, c)
	verifySessions(t, c)
	st := c.Gen.Core.Stats()
	expect(t, "recomputed", st.Recomputed, 1)
	if st.PrefillTokens > 101-64 || st.PrefillTokens < 101-96 {
		t.Errorf("recomputed %d tokens", st.PrefillTokens)
	}
	expect(t, "blocks shared that rest on an unconfirmed pull", st.BlocksReusable, 0)
}

func TestForeignHandles(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Worker, *transfer.Handle)
		code   request.Code
	}{
		"restarted": {func(_ *Worker, h *transfer.Handle) { h.Incarnation = "other" }, request.UnknownTransfer},
		"unknown":   {func(w *Worker, h *transfer.Handle) { w.Core.Abort(0, h.ID) }, request.UnknownTransfer},
		"layout":    {func(_ *Worker, h *transfer.Handle) { h.Layout.Layers++ }, request.LayoutMismatch},
		"root":      {func(_ *Worker, h *transfer.Handle) { h.Root[0]++ }, request.TransferFailed},
	} {
		for _, recompute := range []bool{false, true} {
			c := pair(t, func(_, gen *executor.Config) { gen.LocalRecompute = recompute })
			s := session(0, prompt(0, 40), 5)
			s.NoGen = true
			c.Start(s)
			for s.Ctx.Handle == nil {
				if _, err := c.Tick(); err != nil {
					t.Fatal(err)
				}
			}
			tc.change(c.Ctx, s.Ctx.Handle)
			c.Ctx.flush()
			s.NoGen = false
			settle(t, c)
			verifySessions(t, c)
			if recompute != (s.Gen.Finish == request.FinishLength) || !recompute && s.Gen.Err.Code != tc.code {
				t.Errorf("%s, recompute %v: %s %v", name, recompute, s.Gen.Finish, s.Gen.Err)
			}
		}
	}
}

func TestSecondPullerReplacesTheFirst(t *testing.T) {
	c := pairConfig(executor.Ctx, 16, 16)
	w := worker(t, c)
	r := full(1, prompt(1, 40), 8)
	r.Kind, r.TransferID = request.ContextOnly, 9
	tr := w.Submit(0, r, nil)
	mustRun(t, w)
	var dones []transfer.DoneReply
	var accepts []transfer.Accept
	w.OnEffects = func(e *executor.Effects) {
		dones = append(dones, e.Dones...)
		accepts = append(accepts, e.Accepts...)
	}
	for peer := range transfer.Peer(2) {
		w.Core.Attach(0, transfer.Attach{Peer: peer, ID: 9, Incarnation: c.Incarnation, Epoch: tr.Handle.Epoch, Layout: tr.Handle.Layout})
	}
	w.flush()
	w.Core.Done(0, transfer.Done{Peer: 0, ID: 9, Epoch: accepts[0].Epoch})
	w.Core.Done(0, transfer.Done{Peer: 0, ID: 9, Epoch: accepts[1].Epoch}) // a wrong peer
	w.Core.Done(0, transfer.Done{Peer: 1, ID: 9, Epoch: accepts[0].Epoch}) // an old epoch
	w.Core.Done(0, transfer.Done{Peer: 1, ID: 9, Epoch: accepts[1].Epoch})
	w.flush()
	if len(dones) != 4 || dones[0].OK || dones[1].OK || dones[2].OK || !dones[3].OK {
		t.Errorf("replies %+v", dones)
	}
	expect(t, "open", w.Core.Stats().HandoffsOpen, 0)
	expect(t, "abort after the end", w.Core.Abort(0, 9), executor.AbortDone)
	expect(t, "abort of an unseen id", w.Core.Abort(0, 77), executor.AbortUnknown)
	r2 := full(2, prompt(1, 40), 8)
	r2.Kind, r2.TransferID = request.ContextOnly, 77
	expect(t, "refused afterwards", w.Submit(time.Second, r2, nil).Finish, request.FinishCancelled)
	r3 := full(3, prompt(1, 40), 8)
	r3.Kind, r3.TransferID = request.ContextOnly, 77
	expect(t, "forgotten after a lease", w.Submit(2*c.Lease, r3, nil).Finish, request.Running)
}

func TestWaitingGenRequestKeepsItsLease(t *testing.T) {
	c := pair(t, func(ctx, gen *executor.Config) {
		ctx.Lease = time.Second
		gen.Blocks = 8
	})
	for i := range 2 {
		c.Start(session(i, prompt(i, 60), 60)) // 8 blocks each: one at a time
	}
	c.Step = 50 * time.Millisecond // 3 s for the first
	settle(t, c)
	verifySessions(t, c)
	expect(t, "recomputed", c.Gen.Core.Stats().Recomputed, 0)
	expect(t, "expired", c.Ctx.Core.Stats().LeasesExpired, 0)
}

func TestDeadlinesAndQueueTimeout(t *testing.T) {
	c := config(16, 8)
	c.QueueTimeout = time.Second
	w := worker(t, c)
	r := full(0, prompt(0, 100), 29)
	r.Deadline = 5 * time.Second
	running := w.Submit(0, r, nil)
	queued := w.Submit(0, full(1, prompt(1, 100), 29), nil)
	for _, at := range []time.Duration{0, time.Second, 5 * time.Second} {
		if _, err := w.Step(at); err != nil {
			t.Fatal(err)
		}
	}
	if queued.Finish != request.FinishError || queued.Err.Code != request.QueueTimeout {
		t.Errorf("queued: %s %v", queued.Finish, queued.Err)
	}
	if running.Finish != request.FinishCancelled || running.Err.Code != request.DeadlineExceeded {
		t.Errorf("running: %s %v", running.Finish, running.Err)
	}
	verify(t, w)
}

func TestDrainEndsLeasesThatNobodyReads(t *testing.T) {
	c := pairConfig(executor.Ctx, 16, 16)
	w := worker(t, c)
	r := full(1, prompt(1, 40), 8)
	r.Kind, r.TransferID = request.ContextOnly, 9
	w.Submit(0, r, nil)
	mustRun(t, w)
	w.Core.Drain(0)
	w.flush()
	late := w.Submit(0, full(2, prompt(2, 4), 2), nil)
	if late.Err == nil || late.Err.Code != request.EngineDead {
		t.Errorf("late: %v", late.Err)
	}
	if _, err := w.Step(c.Attach); err != nil {
		t.Fatal(err)
	}
	verify(t, w)
}

// TestRandomRuns is the property test: any interleaving of arrivals, cancels,
// faults and clock jumps gives each client a prefix of the oracle's tokens (all
// of them if nothing was cancelled or failed) and leaves nothing behind.
func TestRandomRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := randomCluster(t)
		tokens := rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 70)
		n := 0
		fault := 0
		fail := func(*executor.Batch) error {
			if fault > 0 {
				fault--
				return errors.New("injected")
			}
			return nil
		}
		c.Ctx.FailStep, c.Gen.FailStep = fail, fail
		start := func(t *rapid.T, w *Worker, kindFull bool) {
			p := tokens.Draw(t, "prompt")
			g := rapid.IntRange(1, 40).Draw(t, "g")
			n++
			salt := rapid.SampledFrom([]string{"", "a"}).Draw(t, "salt")
			talk := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "conversation")
			if kindFull {
				r := full(n, p, g)
				r.CacheSalt, r.ConversationID = salt, talk
				r.Choices = someChoices(t)
				r.Priority = float64(rapid.IntRange(0, 2).Draw(t, "priority")) / 2
				if rapid.IntRange(0, 4).Draw(t, "deadline") == 0 {
					r.Deadline = c.Now + time.Second
				}
				w.Submit(c.Now, r, nil)
				return
			}
			s := session(n, p, g)
			s.Salt, s.Talk = salt, talk
			s.Emitted = rapid.Bool().Draw(t, "emitted")
			s.NoGen = rapid.IntRange(0, 9).Draw(t, "frontend gone") == 0
			s.N = someChoices(t)
			if s.GenFirst = rapid.Bool().Draw(t, "generation first"); s.GenFirst {
				s.Emitted, s.NoGen, s.N = false, false, 1
				s.Alone = rapid.IntRange(0, 4).Draw(t, "unsupervised") == 0
			}
			c.Start(s)
		}
		cancelAt := func(t *rapid.T) func(*executor.Batch) {
			return func(b *executor.Batch) {
				for _, w := range []*Worker{c.Ctx, c.Gen} {
					w.BeforeApply = nil
				}
				id := b.Rows[len(b.Rows)/2].Request.ID
				c.Gen.Core.Cancel(c.Now, id)
				if c.Ctx != c.Gen {
					c.Ctx.Core.Cancel(c.Now, id)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"split": func(t *rapid.T) { start(t, nil, false) },
			"full":  func(t *rapid.T) { start(t, c.Gen, true) },
			"tick": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "ticks") {
					if _, err := c.Tick(); err != nil {
						t.Fatal(err)
					}
				}
			},
			"cancel": func(t *rapid.T) {
				if len(c.Sessions) == 0 {
					t.Skip()
				}
				c.Cancel(rapid.SampledFrom(c.Sessions).Draw(t, "session"))
			},
			"cancel in flight": func(t *rapid.T) { c.Gen.BeforeApply = cancelAt(t); c.Ctx.BeforeApply = cancelAt(t) },
			"abort": func(t *rapid.T) {
				c.Gen.Core.Abort(c.Now, transfer.ID(rapid.IntRange(1, n+2).Draw(t, "id")))
				c.Gen.flush()
			},
			"jump": func(t *rapid.T) { c.Now += time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond },
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "rare") == 0 {
					w := rapid.SampledFrom(c.workers()).Draw(t, "worker") // whose step may run
					w.Core.ResetCache()
					w.flush()
				}
			},
			"cut": func(t *rapid.T) { c.Cut() },
			"kill": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rare") == 0 {
					if err := c.Kill(rapid.SampledFrom(c.workers()).Draw(t, "worker")); err != nil {
						t.Fatal(err)
					}
				}
			},
			"tiers hang": func(t *rapid.T) {
				c.Net.Stuck = c.Now + time.Duration(rapid.IntRange(0, 15000).Draw(t, "ms"))*time.Millisecond
				c.at(c.Net.Stuck, func() {})
			},
			"all leave": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rare") == 0 {
					allLeave(t, c)
				}
			},
			"fault": func(t *rapid.T) { fault = rapid.IntRange(1, 2).Draw(t, "steps") },
			"net": func(t *rapid.T) {
				c.Net.Lose = rapid.SampledFrom([]float64{0, 0, 0.1, 1}).Draw(t, "lose")
				c.Net.Repeat = rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "repeat")
				c.Net.Deaf = rapid.Bool().Draw(t, "deaf")
				c.Net.MaxDelay = time.Duration(rapid.IntRange(0, 300).Draw(t, "delay")) * time.Millisecond
				c.Net.BlockTime = time.Duration(rapid.IntRange(0, 300).Draw(t, "block")) * time.Millisecond
			},
		})
		settle(t, c)
		for _, w := range []*Worker{c.Ctx, c.Gen} {
			if st := w.Core.Stats(); w.cfg.Policy != scheduler.MaxUtilization && st.Paused != 0 {
				t.Fatalf("SP-7: %d pauses under %s", st.Paused, w.cfg.Policy)
			}
		}
		if c.Ctx.Core.Fatal() == nil && c.Gen.Core.Fatal() == nil {
			verifySessions(t, c)
			verify(t, c.Gen)
		}
	})
}

// allLeave proves INV-14.
func allLeave(t *rapid.T, c *Cluster) {
	c.CancelAll()
	for _, part := range c.emptied() {
		for end := c.Now + part.wait; c.Now <= end; {
			more, err := c.Tick()
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				break
			}
		}
		if err := c.gone(part.w); err != nil {
			t.Fatal(err)
		}
	}
}

// someChoices draws how many choices a request asks for.
func someChoices(t *rapid.T) int { return rapid.SampledFrom([]int{0, 1, 2, 4}).Draw(t, "n") }

func randomCluster(t *rapid.T) *Cluster {
	b := 1 << rapid.IntRange(0, 4).Draw(t, "logB")
	window := rapid.SampledFrom([]int{0, 0, 0, 1, 7, 30}).Draw(t, "window") // of the model that both serve
	draw := func(role executor.Role) executor.Config {
		c := pairConfig(role, b, rapid.IntRange(110/b+1, 400/b+1).Draw(t, "N"))
		c.Window = window
		c.Reuse = rapid.SampledFrom([]executor.ReusePolicy{executor.AllReusable, executor.AllReusable, executor.PerRequest, executor.PerConversation}).Draw(t, "when to share")
		c.MaxNumTokens = b + rapid.IntRange(1, 64).Draw(t, "rows")
		c.MaxBatch = rapid.IntRange(1, 8).Draw(t, "batch")
		c.BlockReuse = rapid.IntRange(0, 4).Draw(t, "reuse") > 0
		c.PartialReuse = rapid.Bool().Draw(t, "partial")
		c.ShareInPass = rapid.Bool().Draw(t, "share")
		c.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization, scheduler.StaticBatch}).Draw(t, "policy")
		c.Chunking = rapid.SampledFrom([]scheduler.Chunking{scheduler.FirstCome, scheduler.EqualProgress}).Draw(t, "chunking")
		c.Queue = rapid.SampledFrom([]scheduler.Queue{scheduler.FCFS, scheduler.Priority}).Draw(t, "queue")
		c.ChunkPrefill = rapid.IntRange(0, 3).Draw(t, "chunk") > 0
		c.PrefillMixed = rapid.SampledFrom([]int{0, b, 2 * b}).Draw(t, "mixed cap")
		c.PrefillPerDecode = rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "per decode")
		c.QueueTimeout = rapid.SampledFrom([]time.Duration{0, 300 * time.Millisecond}).Draw(t, "queue timeout")
		c.MaxInflightBytes = rapid.SampledFrom([]int64{1, 5000, 1 << 30}).Draw(t, "bytes")
		c.MaxConcurrentRecv = rapid.IntRange(1, 4).Draw(t, "recv")
		c.LocalRecompute = rapid.Bool().Draw(t, "recompute")
		c.Lease = time.Duration(rapid.IntRange(200, 3000).Draw(t, "lease")) * time.Millisecond
		c.Attach, c.Progress, c.RecvTotal = time.Second, time.Second, 5*time.Second
		c.PeerWait = time.Duration(rapid.IntRange(100, 3000).Draw(t, "peer wait")) * time.Millisecond
		c.MaxLeasedFraction = rapid.SampledFrom([]float64{0.5, 1}).Draw(t, "leased")
		c.Tiers = kvcache.Tiers{HostBlocks: rapid.IntRange(0, 40).Draw(t, "host"), MinPriority: 30}
		if c.Tiers.HostBlocks > 0 {
			c.Tiers.DiskBlocks = rapid.IntRange(0, 80).Draw(t, "disk")
		}
		c.OnboardAlways = rapid.Bool().Draw(t, "onboard")
		return c
	}
	var ctx, gen *Worker
	var err error
	if rapid.IntRange(0, 3).Draw(t, "mixed") == 0 {
		gen, err = NewWorker(draw(executor.Mixed))
		ctx = gen
	} else {
		ctx, err = NewWorker(draw(executor.Ctx))
		if err == nil {
			gen, err = NewWorker(draw(executor.Gen))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []*Worker{ctx, gen} {
		w.Overlap = rapid.SampledFrom([]Overlap{InTurn, Heard, Eager, Lazy}).Draw(t, "overlap")
		w.Strict = true
	}
	c := NewCluster(ctx, gen, rapid.Uint64().Draw(t, "seed"))
	c.Net.StopTime = 20 * time.Millisecond
	c.Net.Moves, c.Net.MoveFail = rapid.IntRange(0, 4).Draw(t, "moves"), rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "bad moves")
	c.Net.AttachTime = time.Duration(rapid.IntRange(500, 4000).Draw(t, "attach")) * time.Millisecond
	c.Net.ReadOn = rapid.Bool().Draw(t, "read on")
	return c
}

// TestScenario12CancelStorm cancels 10,000 split and full requests at random
// moments, with overlap and without.
func TestScenario12CancelStorm(t *testing.T) {
	for how, n := range map[Overlap]int{InTurn: 3000, Heard: 3000, Eager: 10000, Lazy: 3000} {
		cancelStorm(t, how, n)
	}
}

func cancelStorm(t *testing.T, how Overlap, n int) {
	c := pair(t, func(ctx, gen *executor.Config) {
		for _, cfg := range []*executor.Config{ctx, gen} {
			cfg.PartialReuse, cfg.ShareInPass, cfg.MaxSeqLen = true, true, 512
		}
		gen.Policy = scheduler.MaxUtilization
	})
	c.Net.MaxDelay, c.Net.Repeat = 20*time.Millisecond, 0.1
	c.Ctx.CheckEvery, c.Gen.CheckEvery = 16, 16
	c.Ctx.Overlap, c.Gen.Overlap = how, how
	states := map[string]int{}
	for i := 0; i < n; {
		for range c.rng.IntN(8) {
			s := session(i, prompt(c.rng.IntN(300), 1+c.rng.IntN(120)), 1+c.rng.IntN(60))
			if s.GenFirst = c.rng.IntN(2) == 0; !s.GenFirst {
				s.N = c.rng.IntN(4)
			}
			if i++; i%3 == 0 {
				r := full(1<<20+i, s.Prompt, s.MaxTokens)
				r.Choices = s.N
				c.Gen.Submit(c.Now, r, nil)
				c.at(c.Now+time.Duration(c.rng.IntN(1500))*time.Millisecond, func() { c.Gen.Core.Cancel(c.Now, r.ID); c.Gen.flush() })
				continue
			}
			c.Start(s)
			c.at(c.Now+time.Duration(c.rng.IntN(1500))*time.Millisecond, func() {
				if s.Gen != nil {
					states["gen "+string(s.Gen.Finish)]++
				} else {
					states["ctx "+string(s.Ctx.Finish)]++
				}
				c.Cancel(s)
				for _, leg := range []*Track{s.Ctx, s.Gen} { // it is closed at once, not in the next iteration
					for i := 0; leg != nil && i < leg.Req.Answers(); i++ {
						if leg.Choices()[i].Finish == request.Running {
							t.Errorf("session %d goes on after its cancel", s.ID)
						}
					}
				}
			})
		}
		if _, err := c.Tick(); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, c)
	verifySessions(t, c)
	verify(t, c.Gen)
	for _, state := range []string{"gen ", "gen length", "ctx ", "ctx not_finished"} {
		if state != "ctx not_finished" && states[state] == 0 {
			t.Errorf("nothing was cancelled in %q: %v", state, states)
		}
	}
}
