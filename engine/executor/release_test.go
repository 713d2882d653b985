package executor

import (
	"testing"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// leased returns a ctx core with the lease of transfer 5 open, and its epoch.
func leased(t *testing.T) (*Core, uint32) {
	t.Helper()
	cfg := testConfig(Ctx)
	cfg.Blocks = 8
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := validRequest()
	r.Kind, r.TransferID, r.Prompt = request.ContextOnly, 5, make([]int32, 40)
	c.Submit(0, r, nil)
	var h *transfer.Handle
	for range 10 {
		b := c.Plan(0)
		if b == nil {
			break
		}
		c.Apply(0, Result{Sampled: make([]Sampled, len(b.Rows))})
		for _, o := range c.Effects().Outputs {
			if o.Handle != nil {
				h = o.Handle
			}
		}
	}
	if h == nil || c.openLeases != 1 {
		t.Fatal("no lease")
	}
	return c, h.Epoch
}

// A lease that nobody will come for ends at once, unless a puller has it that did
// not give up.
func TestReleaseEndsALease(t *testing.T) {
	attach := func(peer transfer.Peer) func(*Core, uint32) {
		return func(c *Core, first uint32) {
			c.Attach(0, transfer.Attach{Peer: peer, ID: 5, Incarnation: c.cfg.Incarnation, Epoch: first, Layout: c.cfg.Layout})
		}
	}
	for name, tc := range map[string]struct {
		before []func(*Core, uint32)
		epoch  func(c *Core, first uint32) uint32
		ends   bool
	}{
		"nobody attached":        {nil, func(_ *Core, first uint32) uint32 { return first }, true},
		"its stream broke":       {[]func(*Core, uint32){attach(1), func(c *Core, _ uint32) { c.Detach(0, transfer.Detach{Peer: 1, ID: 5}) }}, func(_ *Core, first uint32) uint32 { return first }, true},
		"the break is not known": {[]func(*Core, uint32){attach(1)}, func(c *Core, _ uint32) uint32 { return c.byCtx[5].lease.epoch }, true},
		"another puller came":    {[]func(*Core, uint32){attach(2)}, func(_ *Core, first uint32) uint32 { return first }, false},
		"another puller reads":   {[]func(*Core, uint32){attach(1), attach(2)}, func(_ *Core, first uint32) uint32 { return first }, false},
	} {
		c, first := leased(t)
		for _, f := range tc.before {
			f(c, first)
		}
		c.Release(time.Second, transfer.Release{ID: 5, Epoch: tc.epoch(c, first)})
		if ended := c.openLeases == 0; ended != tc.ends || (c.Stats().BlocksLeased == 0) != tc.ends {
			t.Errorf("%s: ended %v, %d blocks leased", name, ended, c.Stats().BlocksLeased)
		}
		if tc.ends {
			unknown := c.stats.UnknownMessages
			c.Release(time.Second, transfer.Release{ID: 5, Epoch: first}) // late
			if c.stats.UnknownMessages != unknown+1 {
				t.Errorf("%s: a late message is not counted", name)
			}
		}
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Gen gives a lease up where it computes the prompt itself, and only there: else
// another gen worker may come for it.
func TestWhoRecomputesReleases(t *testing.T) {
	for _, tc := range []struct {
		name      string
		recompute bool
		event     transfer.PullEvent
		epoch     uint32 // 0 = no release
	}{
		{"broken before the grant", true, transfer.PullEvent{Code: "transfer_failed"}, 3},
		{"broken behind it", true, transfer.PullEvent{Code: "transfer_failed", Epoch: 4}, 4},
		{"stale", true, transfer.PullEvent{Code: transfer.RejectStale, Epoch: 4}, 0},
		{"unknown", true, transfer.PullEvent{Code: transfer.RejectUnknown}, 0},
		{"confirmed", true, transfer.PullEvent{OK: true, Progress: 3, Epoch: 4}, 0},
		{"an error for the client", false, transfer.PullEvent{Code: "transfer_failed"}, 0},
	} {
		c, s := pulling(t, tc.recompute, 40)
		s.pull.handle.Epoch = 3
		tc.event.ID, tc.event.Done = 5, true
		c.PullEvent(0, tc.event)
		got := c.Effects().Releases
		if (len(got) == 1) != (tc.epoch > 0) || len(got) == 1 && (got[0].ID != 5 || got[0].Epoch != tc.epoch) {
			t.Errorf("%s: releases %+v", tc.name, got)
		}
	}
}

// Blocks that cannot be used here are not asked for, and not left to their lease.
func TestMisfitReleases(t *testing.T) {
	cfg := testConfig(Gen)
	cfg.LocalRecompute = true
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := validRequest()
	gen(r)
	r.Prompt = make([]int32, 40)
	h := &transfer.Handle{ID: 5, PromptTokens: 40, Lease: time.Minute, Layout: c.cfg.Layout, Root: c.root("")}
	h.Layout.DType = "F8"
	c.Submit(0, r, h)
	if got := c.Effects().Releases; len(got) != 1 || got[0].ID != 5 {
		t.Errorf("releases %+v", got)
	}
}

// An id that is used again has another lease, which a handle of the first is not for.
func TestAttachNeedsTheEpochOfTheLease(t *testing.T) {
	for late, want := range []string{"", transfer.RejectStale} {
		c, first := leased(t)
		c.Attach(0, transfer.Attach{Peer: 1, ID: 5, Incarnation: c.cfg.Incarnation, Epoch: first + uint32(late), Layout: c.cfg.Layout})
		e := c.Effects()
		if want == "" && len(e.Accepts) != 1 || want != "" && (len(e.Rejects) != 1 || e.Rejects[0].Reason != want || len(e.Accepts) > 0) {
			t.Errorf("epoch %d of lease %d: accepted %+v, refused %+v", first+uint32(late), first, e.Accepts, e.Rejects)
		}
	}
}

// A lease is renewed by who has its handle or reads it now, not by who read it before.
func TestKeepAliveNeedsAnEpochOfTheLease(t *testing.T) {
	for _, tc := range []struct {
		name   string
		epoch  func(first, older, now uint32) uint32
		renews bool
	}{
		{"the handle's", func(first, _, _ uint32) uint32 { return first }, true},
		{"the puller's", func(_, _, now uint32) uint32 { return now }, true},
		{"that of the puller before", func(_, older, _ uint32) uint32 { return older }, false},
		{"no lease's", func(_, _, now uint32) uint32 { return now + 9 }, false},
	} {
		c, first := leased(t)
		l := &c.byCtx[5].lease
		attach := func(peer transfer.Peer) uint32 {
			c.Attach(0, transfer.Attach{Peer: peer, ID: 5, Incarnation: c.cfg.Incarnation, Epoch: first, Layout: c.cfg.Layout})
			return l.epoch
		}
		older, now := attach(1), attach(2)
		c.KeepAlive(time.Second, transfer.KeepAlive{ID: 5, Epoch: tc.epoch(first, older, now)})
		if renewed := l.expires == time.Second+c.cfg.Lease; renewed != tc.renews || (c.stats.UnknownMessages == 0) != tc.renews {
			t.Errorf("%s epoch: renewed %v, %d unknown messages", tc.name, renewed, c.stats.UnknownMessages)
		}
	}
}
