package executor

import (
	"testing"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// TestDrainCompletesHandOvers: two leases are open when a ctx worker is told to
// stop, and a third opens while it drains. Who comes in time gets the blocks; the
// lease of who does not ends soon, and not only after its whole time.
func TestDrainCompletesHandOvers(t *testing.T) {
	cfg := testConfig(Ctx)
	cfg.Blocks = 40
	r := newRank(t, cfg)
	leg := func(id int) *client {
		q := ask(id, 5, count(10*id, 20)...)
		q.Kind, q.TransferID = request.ContextOnly, int64(100+id)
		return r.submit(q, nil)
	}
	one, two := leg(1), leg(2)
	for r.step(0) {
	}
	late := leg(3) // computes when the order to stop comes
	at := time.Second
	r.Drain(at)
	if refused := leg(4); refused.err == nil || refused.err.Code != request.EngineDead {
		t.Fatalf("a request after the order to stop: %v", refused.err)
	}
	for r.step(at) {
	}
	if one.retired || two.retired || late.retired || late.handle == nil {
		t.Fatal("a lease was revoked at once")
	}
	at += cfg.Attach / 2
	r.Attach(at, transfer.Attach{Peer: 9, ID: 101, Incarnation: cfg.Incarnation, Epoch: one.handle.Epoch, Layout: r.cfg.Layout})
	accepts := r.Effects().Accepts
	if len(accepts) != 1 {
		t.Fatalf("%+v", accepts)
	}
	if due, ok := r.NextDeadline(); !ok || due != time.Second+cfg.Attach {
		t.Errorf("the next deadline is %v", due)
	}
	at = time.Second + cfg.Attach
	r.Plan(at)
	r.collect()
	if !two.retired || !late.retired || one.retired {
		t.Errorf("after %v: %v %v, and the one that is read %v", cfg.Attach, two.retired, late.retired, one.retired)
	}
	r.Done(at, transfer.Done{Peer: 9, ID: 101, Epoch: accepts[0].Epoch})
	r.collect()
	if st := r.Stats(); !one.retired || st.HandoffsOpen != 0 || st.BlocksActive+st.BlocksLeased != 0 {
		t.Errorf("left: %+v", st)
	}
}
