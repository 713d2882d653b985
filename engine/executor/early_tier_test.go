package executor

import (
	"testing"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// TestNothingIsPublishedBeforeItHasCome lets a puller come while the beginning of
// the prompt is still on its way from the host: it must not read that yet.
func TestNothingIsPublishedBeforeItHasCome(t *testing.T) {
	cfg := tierConfig()
	cfg.Incarnation, cfg.MaxNumTokens = "c", 9 // the rest of the prompt takes two steps
	r := withTiers(t, cfg)
	r.submit(ask(1, 1, count(0, 20)...), nil)
	r.finish(0)
	evictAll(r, 2)
	leg := ask(3, 4, append(count(0, 20), count(60, 16)...)...)
	leg.Kind, leg.TransferID, leg.GenFirst = request.ContextOnly, 9, true
	r.submit(leg, nil)
	s := r.byCtx[9]
	m := transfer.Attach{
		Peer: 1, ID: 9, Incarnation: "c", Layout: r.Config().Layout, GenFirst: true, Early: true,
		PromptTokens: len(leg.Prompt), Prompt: r.ownPromptHash(s),
	}
	r.Attach(0, m)
	r.collect()
	r.step(0)
	m.Peer = 2 // its connection broke, and it comes again
	r.Attach(0, m)
	r.collect()
	if s.holds&holdOffload == 0 || s.lease.granted {
		t.Fatalf("holds %b, granted %v", s.holds, s.lease.granted)
	}
	r.below.settle(r)
	r.step(0)
	if !s.lease.granted || s.lease.skip+s.lease.shown != s.done/r.cfg.BlockTokens {
		t.Errorf("granted %v, %d blocks of %d tokens", s.lease.granted, s.lease.shown, s.done)
	}
	r.Cancel(0, 3)
	r.finish(0)
}

// TestNothingIsPublishedBeforeItsStepIsOver does the same with a beginning that
// another request computes in the same step.
func TestNothingIsPublishedBeforeItsStepIsOver(t *testing.T) {
	cfg := holdConfig()
	cfg.Incarnation, cfg.ShareInPass, cfg.PartialReuse = "c", true, false
	r := newRank(t, cfg)
	r.submit(ask(1, 4, count(0, 17)...), nil)
	leg := ask(2, 4, append(count(0, 16), 90, 91, 92)...)
	leg.Kind, leg.TransferID, leg.GenFirst = request.ContextOnly, 9, true
	r.submit(leg, nil)
	s := r.byCtx[9]
	m := transfer.Attach{
		Peer: 1, ID: 9, Incarnation: "c", Layout: r.Config().Layout, GenFirst: true, Early: true,
		PromptTokens: len(leg.Prompt), Prompt: r.ownPromptHash(s),
	}
	r.Attach(0, m)
	r.between = func() {
		if s.done != 16 {
			t.Fatalf("%d tokens are shared", s.done)
		}
		m.Peer = 2
		r.Attach(0, m)
		if s.lease.granted {
			t.Error("blocks are published that the step is to compute")
		}
	}
	r.step(0)
	r.Cancel(0, 2)
	r.drainQueue(0)
}
