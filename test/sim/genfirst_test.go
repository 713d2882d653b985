package sim

import (
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

func both(id int, prompt []int32, g int) *Session {
	s := session(id, prompt, g)
	s.GenFirst = true
	return s
}

// TestGenerationFirstEqualsOracle proves for all lengths around a block that the
// gen worker gives all tokens once, the first one included, and a request that
// ends with its first token ends at both workers.
func TestGenerationFirstEqualsOracle(t *testing.T) {
	c := pair(t, nil)
	c.Gen.BeforeApply = func(b *executor.Batch) {
		for _, r := range b.Rows {
			if first := r.Request.FirstTokens; len(first) != 1 || first[0].ID != c.Gen.Tracks[r.Request.ID].Tokens[0] {
				t.Errorf("the sampler of request %d sees %v as first tokens", r.Request.ID, first)
			}
		}
	}
	for i, p := range []int{1, 15, 16, 17, 64, 100} {
		c.Start(both(i, prompt(i, p), 1+i*5))
	}
	settle(t, c)
	verifySessions(t, c)
	for _, s := range c.Sessions {
		expect(t, "finish", s.Gen.Finish, request.FinishLength)
		expect(t, "tokens of the gen leg", len(s.Gen.Tokens), s.MaxTokens)
		expect(t, "completion tokens", s.Gen.Usage.CompletionTokens, s.MaxTokens)
	}
	expect(t, "blocks moved", c.Moved, 1+1+2+4+7)
	expect(t, "recomputed", c.Gen.Core.Stats().Recomputed, 0)
	expect(t, "ctx leg of one token", c.Sessions[0].Ctx.Finish, request.FinishLength)
	expect(t, "another ctx leg", c.Sessions[1].Ctx.Finish, request.FinishNotFinished)
}

// TestNothingIsPrefilledBeforeThePeerCame lets the gen worker have no room: the
// ctx worker waits, kept patient by it, and computes nothing meanwhile.
func TestNothingIsPrefilledBeforeThePeerCame(t *testing.T) {
	c := pair(t, func(ctx, gen *executor.Config) {
		ctx.PeerWait = time.Second
		gen.Blocks = 8
	})
	c.Gen.Submit(0, full(100, prompt(7, 60), 60), nil) // all of the pool, for 3 s
	c.Step = 50 * time.Millisecond
	if _, err := c.Tick(); err != nil {
		t.Fatal(err)
	}
	s := both(0, prompt(0, 60), 20)
	c.Start(s)
	for s.Gen.Finish == request.Running && c.Gen.Tracks[100].Finish == request.Running {
		if _, err := c.Tick(); err != nil {
			t.Fatal(err)
		}
		if st := c.Ctx.Core.Stats(); c.Gen.Tracks[100].Finish == request.Running && (st.PrefillTokens > 0 || st.BlocksFree != st.BlocksTotal || st.Waiting != 1) {
			t.Fatalf("at %v, before the peer came: %+v", c.Now, st)
		}
	}
	settle(t, c)
	verifySessions(t, c)
	if c.Now < 3*time.Second {
		t.Errorf("only %v passed", c.Now)
	}
	expect(t, "finish", s.Gen.Finish, request.FinishLength)
}

// TestPeerWait ends a ctx leg that nobody comes for, at its time.
func TestPeerWait(t *testing.T) {
	c := pairConfig(executor.Ctx, 16, 16)
	c.PeerWait = time.Second
	w := worker(t, c)
	r := full(1, prompt(1, 40), 8)
	r.Kind, r.TransferID, r.GenFirst = request.ContextOnly, 9, true
	tr := w.Submit(0, r, nil)
	for _, at := range []time.Duration{0, 999 * time.Millisecond} {
		if ran, err := w.Step(at); err != nil || ran {
			t.Fatal(ran, err)
		}
	}
	expect(t, "before its time", tr.Finish, request.Running)
	at, _ := w.Core.NextDeadline()
	expect(t, "next deadline", at, time.Second)
	if _, err := w.Step(time.Second); err != nil {
		t.Fatal(err)
	}
	if tr.Err == nil || tr.Err.Code != request.TransferTimeout || !tr.Retired {
		t.Errorf("%s %v, retired %t", tr.Finish, tr.Err, tr.Retired)
	}
	verify(t, w)
}

// attachOf is the ATTACH of a gen leg with the prompt of r.
func attachOf(t *testing.T, w *Worker, r *request.Request) transfer.Attach {
	t.Helper()
	gen := worker(t, pairConfig(executor.Gen, 16, 16))
	var got transfer.Attach
	gen.OnEffects = func(e *executor.Effects) {
		for _, p := range e.Pulls {
			h := &p.Handle
			got = transfer.Attach{
				Peer: 1, ID: h.ID, Incarnation: h.Incarnation, Layout: h.Layout, Have: p.Have,
				GenFirst: true, PromptTokens: h.PromptTokens, Prompt: p.Prompt,
			}
		}
	}
	leg := *r
	leg.ID, leg.Kind = 77, request.GenerationOnly
	gen.Submit(0, &leg, &transfer.Handle{
		ID: transfer.ID(r.TransferID), Incarnation: w.cfg.Incarnation, Lease: time.Minute, Layout: w.cfg.Layout, GenFirst: true,
	})
	mustRun(t, gen)
	if got.ID == 0 {
		t.Fatal("no pull")
	}
	return got
}

// replies are the messages of a ctx worker to pullers.
type replies struct {
	progress []transfer.Progress
	rejects  []transfer.Reject
	accepts  []transfer.Accept
	ends     []transfer.End
}

func (r *replies) hear(w *Worker) {
	w.OnEffects = func(e *executor.Effects) {
		r.progress = append(r.progress, e.Progress...)
		r.rejects = append(r.rejects, e.Rejects...)
		r.accepts = append(r.accepts, e.Accepts...)
		r.ends = append(r.ends, e.Ends...)
	}
}

// TestParkedAttach follows an ATTACH that comes before its ctx leg: it hears that
// it is not forgotten, and ends by the leg, an abort, the time or a shutdown.
func TestParkedAttach(t *testing.T) {
	for name, tc := range map[string]struct {
		end    func(w *Worker, r *request.Request)
		reason string // of the reject, "" = accepted
		detail string
	}{
		"the ctx leg":  {func(w *Worker, r *request.Request) { w.Submit(2*time.Second, r, nil); mustRun(t, w) }, "", ""},
		"an abort":     {func(w *Worker, _ *request.Request) { w.Core.Abort(time.Second, 9); w.flush() }, transfer.RejectUnknown, "aborted"},
		"its time":     {func(w *Worker, _ *request.Request) { _, _ = w.Step(time.Minute) }, transfer.RejectUnknown, "the context leg did not come in time"},
		"a shutdown":   {func(w *Worker, _ *request.Request) { w.Core.Drain(time.Second); w.flush() }, transfer.RejectUnknown, "this worker is shutting down"},
		"other prompt": {func(w *Worker, r *request.Request) { r.Prompt = prompt(2, 40); w.Submit(0, r, nil) }, transfer.RejectPrompt, "the prompt, model or cache_salt differs"},
		"other salt":   {func(w *Worker, r *request.Request) { r.CacheSalt = "x"; w.Submit(0, r, nil) }, transfer.RejectPrompt, "the prompt, model or cache_salt differs"},
	} {
		t.Run(name, func(t *testing.T) {
			w := worker(t, pairConfig(executor.Ctx, 16, 16))
			r := full(1, prompt(1, 40), 8)
			r.Kind, r.TransferID, r.GenFirst = request.ContextOnly, 9, true
			m := attachOf(t, w, r)
			var got replies
			got.hear(w)
			w.Core.Attach(0, m)
			w.flush()
			for range 2 {
				at, ok := w.Core.NextDeadline()
				if _, err := w.Step(at); err != nil || !ok || at > w.cfg.Progress {
					t.Fatal(at, ok, err)
				}
			}
			expect(t, "signs of life", len(got.progress), 3)
			expect(t, "claimed", got.progress[2].Claimed, false)
			tc.end(w, r)
			if tc.reason != "" {
				if len(got.rejects) != 1 || got.rejects[0].Reason != tc.reason || got.rejects[0].Detail != tc.detail {
					t.Errorf("rejects %+v", got.rejects)
				}
				verify(t, w)
				return
			}
			if len(got.rejects) != 0 || len(got.accepts) != 1 || len(got.accepts[0].Blocks) != 3 || len(got.accepts[0].First) != 1 {
				t.Fatalf("%+v", got)
			}
			expect(t, "claimed", got.progress[3].Claimed, true)
			expect(t, "first token", got.accepts[0].First[0].ID, w.Tracks[1].Tokens[0])
			w.Core.Done(3*time.Second, transfer.Done{Peer: 1, ID: 9, Epoch: got.accepts[0].Epoch})
			w.flush()
			verify(t, w)
		})
	}
}

// TestPullersOfAWaitingContextLeg covers what may happen between ATTACH and the
// end of the prefill.
func TestPullersOfAWaitingContextLeg(t *testing.T) {
	for name, tc := range map[string]struct {
		between func(w *Worker, m transfer.Attach)
		accepts int
		rejects string
		finish  request.Finish
	}{
		"nothing": {func(*Worker, transfer.Attach) {}, 1, "", request.FinishNotFinished},
		"the puller leaves for good": {func(w *Worker, m transfer.Attach) {
			w.Core.Detach(0, transfer.Detach{Peer: m.Peer, ID: m.ID, Cancelled: true})
		}, 0, "", request.FinishNotFinished},
		"its connection breaks and it comes again": {func(w *Worker, m transfer.Attach) {
			w.Core.Detach(0, transfer.Detach{Peer: m.Peer, ID: m.ID})
			m.Peer = 2
			w.Core.Attach(0, m)
		}, 1, "", request.FinishNotFinished},
		"another one comes":        {func(w *Worker, m transfer.Attach) { m.Peer = 2; w.Core.Attach(0, m) }, 1, transfer.RejectStale, request.FinishNotFinished},
		"the request is cancelled": {func(w *Worker, _ transfer.Attach) { w.Core.Cancel(0, 1) }, 0, transfer.RejectUnknown, request.FinishCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			w := worker(t, pairConfig(executor.Ctx, 16, 16))
			r := full(1, prompt(1, 40), 8)
			r.Kind, r.TransferID, r.GenFirst = request.ContextOnly, 9, true
			m := attachOf(t, w, r)
			var got replies
			got.hear(w)
			tr := w.Submit(0, r, nil)
			w.Core.Attach(0, m)
			tc.between(w, m)
			w.flush()
			mustRun(t, w)
			if len(got.accepts) != tc.accepts || (len(got.rejects) > 0) != (tc.rejects != "") || tc.rejects != "" && got.rejects[0].Reason != tc.rejects {
				t.Errorf("%+v", got)
			}
			expect(t, "finish", tr.Finish, tc.finish)
			for _, a := range got.accepts {
				w.Core.Done(0, transfer.Done{Peer: a.Peer, ID: 9, Epoch: a.Epoch})
			}
			w.flush()
			verify(t, w)
		})
	}
}

// TestFirstTokenEndsBoth: the ctx worker tells the waiting puller of the end.
func TestFirstTokenEndsBoth(t *testing.T) {
	w := worker(t, pairConfig(executor.Ctx, 16, 16))
	r := full(1, prompt(1, 40), 1)
	r.Kind, r.TransferID, r.GenFirst = request.ContextOnly, 9, true
	m := attachOf(t, w, r)
	var got replies
	got.hear(w)
	tr := w.Submit(0, r, nil)
	w.Core.Attach(0, m)
	mustRun(t, w)
	if len(got.ends) != 1 || len(got.ends[0].First) != 1 || got.ends[0].First[0].ID != tr.Tokens[0] || len(got.accepts)+len(got.rejects) > 0 {
		t.Errorf("%+v", got)
	}
	w.Core.Attach(0, m) // it comes once more, too late
	w.flush()
	expect(t, "afterwards", len(got.rejects), 1)
	verify(t, w)
}

// TestGenerationFirstHasItAll lets a pull fail that was to bring a first token only:
// the blocks that are here already are others' too, and not written again.
func TestGenerationFirstHasItAll(t *testing.T) {
	c := pair(t, nil)
	same := c.Gen.Submit(0, full(1<<20, prompt(0, 96), 40), nil)
	for len(same.Tokens) < 2 {
		if _, err := c.Tick(); err != nil {
			t.Fatal(err)
		}
	}
	c.Net.Lose = 1
	s := both(0, prompt(0, 96), 20)
	s.Alone = true
	c.Start(s)
	settle(t, c)
	verifySessions(t, c)
	verify(t, c.Gen)
	expect(t, "finish", s.Gen.Finish, request.FinishLength)
	expect(t, "recomputed", c.Gen.Core.Stats().Recomputed, 1)
}

// TestGenerationFirstPullFails: the gen worker computes the whole prompt itself,
// or ends the request, and nothing is kept anywhere.
func TestGenerationFirstPullFails(t *testing.T) {
	for _, recompute := range []bool{true, false} {
		c := pair(t, func(ctx, gen *executor.Config) {
			gen.LocalRecompute, gen.Progress = recompute, time.Second
			ctx.Lease = 2 * time.Second
		})
		c.Net.BlockTime = 10 * time.Millisecond
		s := both(0, prompt(0, 96), 20)
		s.Alone = true
		c.Start(s)
		for c.Moved < 6 {
			if _, err := c.Tick(); err != nil {
				t.Fatal(err)
			}
		}
		c.Net.Lose = 1 // all blocks came, the confirmation never does
		settle(t, c)
		verifySessions(t, c)
		if recompute != (s.Gen.Finish == request.FinishLength) {
			t.Errorf("recompute %t: %s %v", recompute, s.Gen.Finish, s.Gen.Err)
		}
	}
}
