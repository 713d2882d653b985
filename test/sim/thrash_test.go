package sim

import (
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// TestNobodyIsPausedForEver has requests of a higher priority come all the time
// and push an unimportant one out of the pool. After some pauses it keeps what it
// has, and ends although they never stop coming.
func TestNobodyIsPausedForEver(t *testing.T) {
	for _, reuse := range []bool{true, false} {
		c := config(16, 100)
		c.Policy, c.Queue, c.BlockReuse = scheduler.MaxUtilization, scheduler.Priority, reuse
		w := worker(t, c)
		w.Strict = true
		low := w.Submit(0, full(0, prompt(0, 30), 1500), nil)
		pauses, last, others := 0, (*Track)(nil), 1
		var reports []executor.RequestReport
		for step := 0; low.Finish == request.Running; step++ {
			if step > 50000 {
				t.Fatalf("it never ends, after %d pauses", pauses)
			}
			if step%12 == 0 && (last == nil || last.Finish != request.Running) {
				for range 4 {
					r := full(others, prompt(others, 16), 200)
					r.Priority = 1
					last = w.Submit(0, r, nil)
					others++
				}
			}
			if _, err := w.Step(0); err != nil {
				t.Fatal(err)
			}
			reports = w.Core.Requests(reports[:0])
			for _, r := range reports {
				if r.ID == 0 {
					pauses = r.Pauses
				}
			}
		}
		mustRun(t, w)
		verify(t, w)
		if pauses != 9 {
			t.Errorf("reuse %v: it was paused %d times, by %d others", reuse, pauses, others-1)
		}
	}
}
