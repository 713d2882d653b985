package executor

import (
	"testing"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// pulling returns a gen core with one request under a pull of a prompt of n tokens.
func pulling(t *testing.T, recompute bool, n int) (*Core, *sequence) {
	t.Helper()
	cfg := testConfig(Gen)
	cfg.Blocks, cfg.LocalRecompute = 8, recompute
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := validRequest()
	gen(r)
	r.Prompt = make([]int32, n)
	h := &transfer.Handle{ID: 5, PromptTokens: n, Lease: time.Minute, Layout: c.cfg.Layout, Root: c.root("")}
	probe := &sequence{tokens: r.Prompt, root: h.Root}
	h.Hashes = probe.chain(n/cfg.BlockTokens, cfg.BlockTokens)
	c.Submit(0, r, h)
	if b := c.Plan(0); b != nil || len(c.Effects().Pulls) != 1 {
		t.Fatal("no pull")
	}
	return c, c.byID[1]
}

func TestEndsOfAPull(t *testing.T) {
	for _, tc := range []struct {
		name      string
		recompute bool
		event     transfer.PullEvent
		computed  int // of 41 known tokens before the next step; -1 = ended
		code      request.Code
	}{
		{"confirmed", true, transfer.PullEvent{Progress: 3, OK: true}, 40, ""},
		{"broken", true, transfer.PullEvent{Progress: 2, Code: "transfer_failed"}, 32, ""},
		{"broken after the last block", true, transfer.PullEvent{Progress: 3}, 40, ""},
		{"more progress than blocks", true, transfer.PullEvent{Progress: 99}, 40, ""},
		{"stale", true, transfer.PullEvent{Progress: 3, Code: transfer.RejectStale}, 0, ""},
		{"rejected", false, transfer.PullEvent{Code: transfer.RejectUnknown}, -1, request.UnknownTransfer},
		{"layout", false, transfer.PullEvent{Code: transfer.RejectLayout}, -1, request.LayoutMismatch},
		{"timeout", false, transfer.PullEvent{Code: string(request.TransferTimeout)}, -1, request.TransferTimeout},
		{"other", false, transfer.PullEvent{Code: "reset"}, -1, request.TransferFailed},
	} {
		c, s := pulling(t, tc.recompute, 40)
		tc.event.ID, tc.event.Done = 5, true
		c.PullEvent(0, tc.event)
		o := c.Effects().Outputs
		if len(o) != 1 {
			t.Fatalf("%s: %d outputs", tc.name, len(o))
		}
		if tc.computed < 0 {
			if o[0].Err == nil || o[0].Err.Code != tc.code || s.State != request.Retired {
				t.Errorf("%s: %v in %v", tc.name, o[0].Err, s.State)
			}
			continue
		}
		if s.Computed != tc.computed || len(o[0].Tokens) != 1 || o[0].First != 0 || o[0].Finish != request.Running {
			t.Errorf("%s: %d computed, output %+v", tc.name, s.Computed, o[0])
		}
		if b := c.Plan(0); b == nil || b.Rows[0].Pos != tc.computed || !b.Rows[0].Sample || b.Rows[0].Index != 1 {
			t.Errorf("%s: batch %+v", tc.name, b)
		}
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestSilentPullIsStoppedAndKeepsItsBlocks(t *testing.T) {
	for _, recompute := range []bool{true, false} {
		c, s := pulling(t, recompute, 40)
		at, ok := c.NextDeadline()
		if !ok || at != 2*c.cfg.Attach {
			t.Fatalf("deadline %v, %v", at, ok)
		}
		c.PullEvent(time.Second, transfer.PullEvent{ID: 5})
		if at, _ = c.NextDeadline(); at != time.Second+c.cfg.Progress {
			t.Fatalf("deadline %v after a sign", at)
		}
		c.Plan(at)
		e := c.Effects()
		if len(e.StopPulls) != 1 || len(e.Outputs) == 1 == recompute {
			t.Fatalf("recompute %v: %+v", recompute, e)
		}
		if st := c.Stats(); st.BlocksReceiving != 3 || st.Holds != 1 {
			t.Errorf("before the byte path is quiet: %+v", st)
		}
		c.PullEvent(at, transfer.PullEvent{ID: 5, Done: true, Code: "stopped"})
		if recompute != (s.State == request.Prefill) || c.Stats().BlocksReceiving != 0 {
			t.Errorf("recompute %v: %v", recompute, s.State)
		}
	}
}

// fixedText holds every token's text back until the next one or the end.
type fixedText struct{ held string }

func (f *fixedText) Push(int32) (string, bool) {
	out := f.held
	f.held = "x"
	return out, false
}

func (f *fixedText) Flush() string { return f.held }

func TestFirstTokenIsShownOnce(t *testing.T) {
	for _, tc := range []struct {
		emitted bool
		max     int
		events  int // because of the first token
		tokens  int
		text    string
		finish  request.Finish
	}{
		{false, 4, 1, 1, "", request.Running},
		{true, 4, 0, 0, "", request.Running},
		{false, 1, 1, 1, "x", request.FinishLength},
		{true, 1, 1, 0, "x", request.FinishLength},
	} {
		c, err := New(testConfig(Gen))
		if err != nil {
			t.Fatal(err)
		}
		r := validRequest()
		gen(r)
		r.FirstEmitted, r.MaxTokens, r.Text = tc.emitted, tc.max, &fixedText{}
		c.Submit(0, r, &transfer.Handle{ID: 5, PromptTokens: 3}) // another layout: recomputed here
		o := c.Effects().Outputs
		if len(o) != tc.events {
			t.Fatalf("%+v: %d events", tc, len(o))
		}
		if len(o) > 0 && (len(o[0].Tokens) != tc.tokens || o[0].Text != tc.text || o[0].Finish != tc.finish || o[0].Usage.CompletionTokens != 1) {
			t.Errorf("%+v: %+v", tc, o[0])
		}
		if tc.finish != request.Running {
			continue
		}
		b := c.Plan(0)
		if len(b.Rows) != 1 || len(b.Rows[0].Tokens) != 4 || b.Rows[0].Index != 1 {
			t.Fatalf("%+v", b.Rows)
		}
		c.Effects()
		c.Apply(0, Result{Sampled: []Sampled{{Token: request.Token{ID: 8}}}})
		if o := c.Effects().Outputs; len(o) != 1 || o[0].First != 1 || o[0].Text != "x" {
			t.Errorf("second token: %+v", o)
		}
	}
}

// TestOwnLeaseKeepsNobodyOutForEver: a mixed worker's gen leg that finds no room beside the lease it will fetch from renews
// that lease while steps run, and lets go when nothing does.
func TestOwnLeaseKeepsNobodyOutForEver(t *testing.T) {
	cfg := testConfig(Mixed)
	cfg.Blocks, cfg.BlockReuse, cfg.PartialReuse = 7, false, false
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	step := func(now time.Duration) *Effects {
		b := c.Plan(now)
		if b == nil {
			return c.Effects()
		}
		out := Result{Sampled: make([]Sampled, len(b.Rows))}
		for i := range out.Sampled {
			out.Sampled[i].Token.ID = 9
		}
		c.Apply(now, out)
		return c.Effects()
	}
	prompt := make([]int32, 60)
	ctx := &request.Request{ID: 1, Kind: request.ContextOnly, TransferID: 5, Prompt: prompt, MaxTokens: 4, Sampling: request.DefaultSampling()}
	c.Submit(0, ctx, nil)
	o := step(0).Outputs
	if len(o) != 1 || o[0].Handle == nil {
		t.Fatalf("%+v", o)
	}
	r := &request.Request{ID: 2, Prompt: prompt, MaxTokens: 4, Sampling: request.DefaultSampling()}
	gen(r)
	c.Submit(0, r, o[0].Handle)
	busy, now := 4*cfg.Lease, time.Duration(0)
	renewed, ended := 0, time.Duration(0)
	for ended == 0 && now < time.Hour {
		var ok bool
		if now, ok = c.NextDeadline(); !ok {
			t.Fatal("it waits for nothing")
		}
		c.applied = max(c.applied, min(now, busy)) // as if others ran
		e := step(now)
		for _, h := range e.KeepAlives {
			renewed++
			c.KeepAlive(now, transfer.KeepAlive{ID: h.ID, Epoch: h.Epoch})
		}
		for _, p := range e.Pulls {
			c.PullEvent(now, transfer.PullEvent{ID: p.Handle.ID, Done: true, Code: transfer.RejectUnknown})
			for range 4 {
				for _, o := range step(now).Outputs {
					if o.Request.ID == 2 && o.Finish != request.Running {
						ended = now
					}
				}
			}
		}
	}
	if ended < busy || ended > busy+3*cfg.Lease || renewed < 10 {
		t.Errorf("it ended at %v after %d renewals, others ran until %v", ended, renewed, busy)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

// TestALongStepIsNoReasonToLetGo: while a step runs, however long, a gen leg without room renews the lease that it will fetch from.
func TestALongStepIsNoReasonToLetGo(t *testing.T) {
	cfg := testConfig(Mixed)
	cfg.Blocks, cfg.BlockReuse, cfg.PartialReuse, cfg.MaxLeasedFraction = 7, false, false, 1
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	prompt := make([]int32, 60)
	c.Submit(0, &request.Request{ID: 1, Kind: request.ContextOnly, TransferID: 5, Prompt: prompt, MaxTokens: 4, Sampling: request.DefaultSampling()}, nil)
	c.Apply(0, Result{Sampled: make([]Sampled, len(c.Plan(0).Rows))})
	o := c.Effects().Outputs
	if len(o) != 1 || o[0].Handle == nil {
		t.Fatalf("%+v", o)
	}
	c.Submit(0, &request.Request{ID: 3, Prompt: prompt[:10], MaxTokens: 1, Sampling: request.DefaultSampling()}, nil)
	long := c.Plan(0)
	r := &request.Request{ID: 2, Prompt: prompt, MaxTokens: 4, Sampling: request.DefaultSampling()}
	gen(r)
	c.Submit(0, r, o[0].Handle)
	now, renewed := time.Duration(0), 0
	for now < 4*cfg.Lease {
		var ok bool
		if now, ok = c.NextDeadline(); !ok || c.Plan(now) != nil {
			t.Fatalf("it waits for nothing: %v", !ok)
		}
		e := c.Effects()
		if len(e.Outputs)+len(e.Pulls) > 0 {
			t.Fatalf("at %v: %+v", now, e)
		}
		for _, h := range e.KeepAlives {
			renewed++
			c.KeepAlive(now, transfer.KeepAlive{ID: h.ID, Epoch: h.Epoch})
		}
	}
	if renewed < 10 {
		t.Errorf("%d renewals in four leases", renewed)
	}
	c.Apply(now, Result{Sampled: make([]Sampled, len(long.Rows))})
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}
