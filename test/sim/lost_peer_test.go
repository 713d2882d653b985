package sim

import (
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
)

// TestScenario13LostPeer kills the gen worker while eight requests are under leases
// of two seconds. Nothing new arrives, and 2,100 ms after its last sign all blocks
// are free; the worker was never full, so it stayed ready.
func TestScenario13LostPeer(t *testing.T) {
	const lease, late = 2000 * time.Millisecond, 2100 * time.Millisecond
	leg := func(w *Worker, now time.Duration, id int) *Track {
		r := full(id, prompt(id, 100), 8)
		r.Kind, r.TransferID = request.ContextOnly, int64(id+1)
		return w.Submit(now, r, nil)
	}
	ready := func(w *Worker) {
		if st := w.Core.Stats(); st.PoolFull > 0 || w.Core.Fatal() != nil || st.Deadlocks > 0 {
			t.Errorf("not ready: %+v", st)
		}
	}
	c := config(16, 64)
	c.Role, c.MaxLeasedFraction, c.Lease = executor.Ctx, 1, lease
	w := worker(t, c)
	for i := range 8 {
		leg(w, 0, i)
	}
	mustRun(t, w)
	expect(t, "leased", w.Core.Stats().BlocksLeased, 56)
	for now := time.Duration(0); now <= late; now += 100 * time.Millisecond { // only the clock goes on
		if ran, err := w.Step(now); ran || err != nil {
			t.Fatalf("ran %v, %v", ran, err)
		}
		ready(w)
		st := w.Core.Stats()
		if free := st.BlocksFree + st.BlocksReusable; now < lease && free != 8 || now >= late && free != 64 {
			t.Errorf("%d blocks are free after %v", free, now)
		}
	}
	expect(t, "leases expired", w.Core.Stats().LeasesExpired, 8)
	ninth := leg(w, late, 8)
	if err := w.Run(late, 100); err != nil {
		t.Fatal(err)
	}
	expect(t, "ninth", ninth.Finish, request.FinishNotFinished)
	if err := w.Run(late+lease, 100); err != nil {
		t.Fatal(err)
	}
	verify(t, w)
}

// TestScenario13KilledReader kills the gen worker in the middle of its pulls, and
// the network with it: leases count from the last byte that was read.
func TestScenario13KilledReader(t *testing.T) {
	c := pair(t, func(ctx, _ *executor.Config) {
		ctx.Blocks, ctx.MaxLeasedFraction, ctx.Lease = 64, 1, 2000*time.Millisecond
	})
	c.Net.MaxDelay, c.Net.BlockTime = 0, 300*time.Millisecond
	for i := range 8 {
		c.Start(session(i, prompt(i, 100), 8))
	}
	for c.Moved < 20 {
		if _, err := c.Tick(); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, "leased", c.Ctx.Core.Stats().BlocksLeased, 56)
	c.Net.Lose = 1 // no word of its end arrives
	if err := c.Kill(c.Gen); err != nil {
		t.Fatal(err)
	}
	last, at := c.Now, c.Now
	for c.Ctx.Core.Stats().BlocksLeased > 0 {
		at = c.Now // the tick ends at the time of the next event
		more, err := c.Tick()
		if err != nil || !more {
			t.Fatalf("%d blocks are leased for ever, %v", c.Ctx.Core.Stats().BlocksLeased, err)
		}
		expect(t, "full for", c.Ctx.Core.Stats().PoolFull, 0)
	}
	if at > last+2100*time.Millisecond {
		t.Errorf("the last lease ended %v after the kill", at-last)
	}
	expect(t, "leases expired", c.Ctx.Core.Stats().LeasesExpired, 8)
	c.Net.Lose = 0
	c.Start(session(8, prompt(8, 100), 8))
	settle(t, c)
	verifySessions(t, c)
	expect(t, "ninth", c.Sessions[8].Gen.Finish, request.FinishLength)
}
