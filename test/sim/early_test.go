package sim

import (
	"errors"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/scheduler"
)

// pipelined runs one generation-first request of 8,192 tokens in chunks of 1,024
// and returns how many blocks gen had when the prefill ended, and how long gen then
// waited for the rest.
func pipelined(t *testing.T, early bool) (had int, waited time.Duration) {
	change := func(c *executor.Config) {
		c.BlockTokens, c.Blocks, c.MaxSeqLen, c.MaxNumTokens, c.ChunkPrefill = 32, 300, 9000, 1024, true
		c.Layout.BlockTokens = 32
	}
	c := pair(t, func(ctx, gen *executor.Config) { change(ctx); change(gen) })
	c.Step, c.Net.Steady = 100*time.Millisecond, true
	id := 0
	if early { // see startPull
		id = 1
	}
	s := both(id, prompt(3, 8192), 4)
	c.Start(s)
	tick := func() {
		if _, err := c.Tick(); err != nil {
			t.Fatal(err)
		}
	}
	var end, first time.Duration // of the prefill, and when gen shows the token
	c.Ctx.OnEffects = func(e *executor.Effects) {
		if len(e.Outputs) > 0 && end == 0 {
			had, end = c.Moved, c.Now
		}
		c.effects(e)
	}
	c.Gen.OnEffects = func(e *executor.Effects) {
		if len(e.Outputs) > 0 && first == 0 {
			first = c.Now
		}
		c.effects(e)
	}
	for end == 0 || first == 0 {
		tick()
	}
	waited = first - end
	settle(t, c)
	verifySessions(t, c)
	expect(t, "blocks moved", c.Moved, 256)
	expect(t, "early pulls", c.Early > 0, early)
	expect(t, "recomputed", c.Gen.Core.Stats().Recomputed, 0)
	return had, waited
}

// TestScenario18PipelinedPull: most of a long prompt is at gen when its prefill
// ends, and the rest takes a quarter of the time at most.
func TestScenario18PipelinedPull(t *testing.T) {
	had, waited := pipelined(t, true)
	none, whole := pipelined(t, false)
	t.Logf("pipelined: %d of 256 blocks at the end of prefill, %v for the rest; otherwise %d, %v", had, waited, none, whole)
	if had < 256*8/10 || none != 0 {
		t.Errorf("%d blocks at the end of prefill, %d without a pipeline", had, none)
	}
	if waited > whole/4 {
		t.Errorf("%v for the rest, %v without a pipeline", waited, whole)
	}
}

// A ctx leg that loses its blocks takes back what gen was reading; gen goes on alone.
func TestEarlyPullOfAPausedLeg(t *testing.T) {
	c := pair(t, func(ctx, gen *executor.Config) {
		ctx.Role, ctx.Policy, ctx.Blocks, ctx.PrefillMixed = executor.Mixed, scheduler.MaxUtilization, 19, 16
	})
	for i := range 3 { // they want 9 blocks soon, and came first
		c.Ctx.Submit(0, full(100+i, prompt(50+i, 30), 30), nil)
	}
	c.Start(both(1, prompt(1, 190), 6))
	settle(t, c)
	verifySessions(t, c)
	if st := c.Ctx.Core.Stats(); c.Early == 0 || st.Paused == 0 {
		t.Errorf("%d early pulls, %d pauses", c.Early, st.Paused)
	}
	expect(t, "recomputed", c.Gen.Core.Stats().Recomputed, 1)
}

// A ctx leg whose step fails tells nobody what came of it, and ends its puller's
// wait when it ends itself.
func TestEarlyPullOfAFailedLeg(t *testing.T) {
	change := func(c *executor.Config) {
		c.Blocks, c.MaxSeqLen, c.MaxNumTokens, c.ChunkPrefill = 64, 900, 64, true
	}
	c := pair(t, func(ctx, gen *executor.Config) { change(ctx); change(gen) })
	failed := 0
	c.Ctx.FailStep = func(b *executor.Batch) error {
		if c.Early > 0 && failed < 2 { // twice ends the request
			failed++
			return errors.New("injected")
		}
		return nil
	}
	for i := range 4 {
		c.Start(both(i, prompt(i, 500), 6))
	}
	settle(t, c)
	if c.Early == 0 || failed == 0 {
		t.Errorf("%d early pulls, %d failed steps", c.Early, failed)
	}
	verifySessions(t, c)
	for _, w := range []*Worker{c.Ctx, c.Gen} {
		st := w.Core.Stats()
		expect(t, "free blocks", st.BlocksFree+st.BlocksReusable, st.BlocksTotal)
	}
}
