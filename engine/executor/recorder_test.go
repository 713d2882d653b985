package executor

import (
	"errors"
	"sync"
	"testing"
	"time"

	"tandem/engine/request"
)

func TestRecorderTellsStepsAndEvents(t *testing.T) {
	r := newRank(t, holdConfig())
	r.submit(ask(1, 3, count(0, 30)...), nil)
	r.submit(ask(2, 3, count(1, 9)...), nil) // too long to go beside it
	r.submit(ask(3, 3), nil)                 // refused
	none := func(*Batch) error { return nil }
	r.stepWith(1*time.Second, none)
	r.stepWith(2*time.Second, func(*Batch) error { return errors.New("kernel refused") })
	r.Recorder().Time(1, time.Millisecond, time.Second, 2*time.Millisecond)
	b := r.Plan(3 * time.Second)
	steps := r.Recorder().Steps(nil)
	if len(steps) != 3 {
		t.Fatalf("%+v", steps)
	}
	first, failed, runs := steps[0], steps[1], steps[2]
	if first.Iter != 1 || first.CtxRequests != 1 || first.CtxTokens != 24 || first.GenRequests != 0 || first.Outcome != StepOK ||
		first.Planned != time.Second || first.Applied != time.Second || first.Arrived != 3 || first.Admitted != 1 ||
		first.IDs[0] != 1 || first.IDs[1] != 0 || first.Sched != time.Millisecond || first.Run != time.Second {
		t.Errorf("%+v", first)
	}
	if failed.Outcome != StepError || failed.Applied != 2*time.Second || failed.Waiting != 0 || failed.Free == 0 {
		t.Errorf("%+v", failed)
	}
	prior, context := 0, 0
	for i := range b.Rows {
		if row := &b.Rows[i]; row.Context {
			prior += len(row.Tokens) * row.Pos
		} else {
			context += row.Pos + len(row.Tokens)
		}
	}
	if runs.Outcome != StepRunning || runs.Applied != 0 || runs.Iter != b.Iter || prior == 0 || runs.CtxPrior != prior || runs.GenContext != context {
		t.Errorf("%+v, want %d and %d", runs, prior, context)
	}
	r.Core.Cancel(3*time.Second, 2)
	r.Apply(3*time.Second, r.run(b))
	r.collect()
	var kinds []EventKind
	for _, e := range r.Recorder().Events(nil) {
		kinds = append(kinds, e.Kind)
		if e.Kind == EventRefused && (e.ID != 3 || e.Code != request.InvalidRequest || e.Text == "") ||
			e.Kind == EventStepFailed && (e.Text != "kernel refused" || e.At != 2*time.Second || e.Iter != 2) {
			t.Errorf("%+v", e)
		}
	}
	if len(kinds) != 3 || kinds[0] != EventRefused || kinds[1] != EventStepFailed || kinds[2] != EventCancelled {
		t.Errorf("events %v", kinds)
	}
	r.drainQueue(4 * time.Second)
	r.verifyEnd(true)
}

func TestRecorderIsBoundedAndReadableMeanwhile(t *testing.T) {
	r := newRank(t, holdConfig())
	stop, wg := make(chan struct{}), sync.WaitGroup{}
	wg.Add(1)
	go func() {
		defer wg.Done()
		var steps []StepRecord
		var events []EventRecord
		for {
			select {
			case <-stop:
				return
			default:
			}
			steps, events = r.Recorder().Steps(steps[:0]), r.Recorder().Events(events[:0])
			for i := 1; i < len(steps); i++ {
				if steps[i].Iter != steps[i-1].Iter+1 {
					t.Errorf("step %d after %d", steps[i].Iter, steps[i-1].Iter)
					return
				}
			}
		}
	}()
	for id := 1; id <= 600; id++ {
		r.submit(ask(id, 1, 1, 2, 3), nil)
		r.step(0)
		r.submit(ask(10000+id, 1), nil) // refused
	}
	close(stop)
	wg.Wait()
	if n := len(r.Recorder().Steps(nil)); n != recordedSteps {
		t.Errorf("%d steps", n)
	}
	if n := len(r.Recorder().Events(nil)); n != recordedEvents {
		t.Errorf("%d events", n)
	}
	if s, ok := r.Recorder().Running(); ok {
		t.Errorf("%+v runs", s)
	}
	for id := range 2 {
		r.submit(ask(1000+id, 4, 1, 2, 3), nil)
		r.Plan(0)
		if s, ok := r.Recorder().Running(); !ok || s.Iter != 601 {
			t.Errorf("%+v runs", s)
		}
	}
}

// TestReportsTellWhatHolds looks at a ctx leg under a lease and at a gen leg that
// pulls.
func TestReportsTellWhatHolds(t *testing.T) {
	r := newRank(t, testConfig(Ctx))
	q := ask(7, 5, count(0, 40)...)
	q.Kind, q.TransferID = request.ContextOnly, 77
	r.submit(q, nil)
	for r.step(time.Second) {
	}
	r.Plan(3 * time.Second)
	all := r.Requests(nil)
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	a := all[0]
	if a.ID != 7 || a.Transfer != 77 || a.State != request.CtxSend || a.Held[HoldLease] != time.Second || a.Held[HoldStep] != 0 ||
		a.Blocks == 0 || a.Prompt != 40 || a.Due != time.Second+r.cfg.Lease || a.Attached {
		t.Errorf("%+v", a)
	}
	if st := r.Stats(); st.HoldAges[HoldLease] != 2*time.Second || st.HoldAges[HoldRecv] != 0 {
		t.Errorf("%v", st.HoldAges)
	}
	c, s := pulling(t, true, 40)
	rep := c.Requests(nil)
	if len(rep) != 1 || rep[0].State != request.GenRecv || rep[0].Held[HoldRecv] == 0 || rep[0].ID != s.req.ID {
		t.Errorf("%+v", rep)
	}
}

func TestFullPoolWithoutHeadwayIsTold(t *testing.T) {
	cfg := testConfig(Ctx)
	cfg.Blocks, cfg.BlockTokens, cfg.MaxLeasedFraction = 2, 16, 1
	r := newRank(t, cfg)
	q := ask(1, 5, count(0, 32)...)
	q.Kind, q.TransferID = request.ContextOnly, 5
	r.submit(q, nil)
	for r.step(0) {
	}
	if st := r.Stats(); st.BlocksLeased != 2 {
		t.Fatalf("%+v, %v", st, r.clients[1].err)
	}
	for _, at := range []time.Duration{time.Second, 31 * time.Second} {
		r.Plan(at)
		if st := r.Stats(); st.PoolFull != at {
			t.Errorf("at %v: full for %v", at, st.PoolFull)
		}
	}
	r.Core.Cancel(32*time.Second, 1)
	r.collect()
	if st := r.Stats(); st.PoolFull != 0 {
		t.Errorf("an empty pool is full for %v", st.PoolFull)
	}
}
