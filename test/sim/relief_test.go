package sim

import (
	"testing"

	"tandem/engine/executor"
	"tandem/engine/scheduler"
)

// TestShortPromptsDoNotWaitForLongOnes has 11 short prompts come among 18 that are
// twelve times longer: the last of them starts long before the last long one, and
// the first long one is slowed down by no more than a third.
func TestShortPromptsDoNotWaitForLongOnes(t *testing.T) {
	const long, short, budget = 2400, 200, 256
	run := func(change func(*executor.Config)) (firstLong, lastLong, lastShort uint64) {
		c := config(16, 4096)
		c.MaxNumTokens = budget
		if change != nil {
			change(&c)
		}
		w := worker(t, c)
		for i := range 29 {
			p := long
			if i*11%29 < 11 && i > 0 {
				p = short
			}
			w.Submit(0, full(i, prompt(i, p), 4), nil)
		}
		mustRun(t, w)
		verify(t, w)
		for _, tr := range w.Tracks {
			if len(tr.Req.Prompt) == short {
				lastShort = max(lastShort, tr.FirstAt)
			} else {
				lastLong = max(lastLong, tr.FirstAt)
			}
		}
		return w.Tracks[0].FirstAt, lastLong, lastShort
	}
	firstLong, lastLong, lastShort := run(nil)
	if lastShort*10 > lastLong*3 || lastLong > 200 || firstLong > 13 {
		t.Errorf("the first long prompt took %d steps, the last %d, the last short one %d", firstLong, lastLong, lastShort)
	}
	// Without room for all: nobody takes what the first in the queue waits for.
	for _, policy := range []scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization} {
		_, lastLong, lastShort = run(func(c *executor.Config) { c.Blocks, c.Policy = 400, policy })
		if lastLong > 200 {
			t.Errorf("%s: the last long prompt took %d steps, the last short one %d", policy, lastLong, lastShort)
		}
	}
}
