package executor

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// handedOver is a ctx rank, and a gen rank that has the beginning of the prompt below
// its device.
type handedOver struct {
	ctx, gen *rank
	prompt   []int32
	client   *client
}

// handOver lets a gen rank have the first n tokens of a prompt of 38 in the host,
// and sends it the request that a ctx rank has prefilled.
func handOver(t fatal, n int, change func(*Config)) *handedOver {
	x := &handedOver{prompt: append(count(0, 20), count(60, 18)...)}
	cfg := tierConfig()
	cfg.LocalRecompute = true
	if change != nil {
		change(&cfg)
	}
	x.gen, x.ctx = withTiers(t, cfg), newRank(t, cfg)
	x.gen.submit(ask(1, 1, x.prompt[:n]...), nil)
	x.gen.finish(0)
	evictAll(x.gen, 2)
	leg := ask(3, 6, x.prompt...)
	leg.Kind, leg.TransferID = request.ContextOnly, 9
	first := x.ctx.submit(leg, nil)
	x.ctx.drainQueue(0)
	if first.handle == nil {
		t.Fatalf("no hand-over: %v", first.err)
	}
	q := ask(3, 6, x.prompt...)
	q.Kind, q.TransferID = request.GenerationOnly, 9
	q.FirstTokens = []request.Token{{ID: first.tokens[0]}}
	x.client = x.gen.submit(q, first.handle)
	return x
}

// deliver ends the only pull, well or not.
func (x *handedOver) deliver(t fatal, ok bool) {
	if len(x.gen.pulls) != 1 {
		t.Fatalf("%d pulls", len(x.gen.pulls))
	}
	p := x.gen.pulls[0]
	from := x.ctx.byCtx[9].Table[len(p.Have):]
	if len(from) != len(p.Dst) {
		t.Fatalf("%d blocks are pulled behind %d of %d", len(p.Dst), len(p.Have), len(x.ctx.byCtx[9].Table))
	}
	e := transfer.PullEvent{ID: 9, Done: true, OK: ok, Progress: len(p.Dst)}
	if !ok {
		e.Progress, e.Code = 0, "broken"
	}
	for i, id := range p.Dst[:e.Progress] {
		copy(x.gen.block(id), x.ctx.block(from[i]))
	}
	x.gen.PullEvent(x.gen.now, e)
	x.gen.collect()
}

// end runs what is left and compares the answer with the oracle.
func (x *handedOver) end(now time.Duration) {
	x.gen.finish(now)
	x.gen.verifyEnd(true)
}

func TestPullsOnlyWhatNoTierHas(t *testing.T) {
	x := handOver(t, 20, nil)
	before := x.gen.prefilled
	if x.gen.step(0) || len(x.gen.pulls) != 0 {
		t.Fatalf("%d pulls before the content is here", len(x.gen.pulls))
	}
	if st := x.gen.Stats(); st.Loading != 1 || st.Running != 0 || st.Holds != 1 {
		t.Errorf("%+v", st)
	}
	x.gen.below.settle(x.gen)
	if len(x.gen.pulls) != 1 || len(x.gen.pulls[0].Have) != 5 {
		t.Fatalf("pulls %+v", x.gen.pulls)
	}
	x.deliver(t, true)
	x.end(0)
	if x.client.usage.CachedTokens != 20 || x.gen.prefilled != before || x.gen.Stats().OnboardBytes == 0 {
		t.Errorf("%+v, %d tokens computed", x.client.usage, x.gen.prefilled-before)
	}
}

// What does not come from the tiers is pulled, and what is not pulled is computed.
func TestLoadThatFailsBeforeAPull(t *testing.T) {
	for _, pull := range []bool{true, false} {
		x := handOver(t, 20, nil)
		x.gen.step(0)
		for q := &x.gen.below.queue; len(*q) > 0; {
			res := kvcache.Done
			if (*q)[0].Kind == kvcache.Onboard {
				res = kvcache.Failed
			}
			x.gen.below.next(x.gen, res)
		}
		x.gen.step(0)
		x.gen.below.settle(x.gen)
		x.deliver(t, pull)
		if n := len(x.gen.pulls[0].Have); n >= 5 {
			t.Errorf("%d blocks are said to be here", n)
		}
		x.end(0)
	}
}

func TestLoadThatHangsBeforeAPull(t *testing.T) {
	x := handOver(t, 12, nil)
	x.gen.step(0)
	stuck := x.gen.below.queue
	x.gen.below.queue = nil
	if x.gen.step(loadTimeout-1) || len(x.gen.pulls) != 0 {
		t.Fatal("gave up too early")
	}
	x.gen.step(loadTimeout)
	if len(x.gen.pulls) != 1 || len(x.gen.pulls[0].Have) != 1 { // which was on the device
		t.Fatalf("pulls %+v", x.gen.pulls)
	}
	x.deliver(t, true)
	x.gen.below.queue = append(x.gen.below.queue, stuck...)
	x.end(loadTimeout)
}

func TestCancelWhileALoadIsBeforeAPull(t *testing.T) {
	x := handOver(t, 20, nil)
	x.gen.step(0)
	x.gen.Cancel(0, 3)
	x.gen.collect()
	x.gen.finish(0)
	if len(x.gen.pulls) != 0 || x.client.finish != request.FinishCancelled || x.gen.Check() != nil {
		t.Errorf("%d pulls, %s", len(x.gen.pulls), x.client.finish)
	}
	x.gen.verifyEnd(false)
}

// Where the ctx worker is nearer than the tiers, all is pulled.
func TestPullThatIsFasterThanTheTiers(t *testing.T) {
	x := handOver(t, 20, func(c *Config) { c.OnboardAlways = false })
	l := &x.gen.loads
	l.onboard, l.pull, l.refused = time.Second, time.Millisecond, 0
	x.gen.step(0)
	if len(x.gen.pulls) != 1 || len(x.gen.pulls[0].Have) != 1 || x.gen.Stats().RecomputedCheaper != 1 {
		t.Fatalf("pulls %+v", x.gen.pulls)
	}
	x.deliver(t, true)
	x.end(0)
}

// Whatever of a prompt is below, comes or fails, and in whatever order, the answer is
// that of the oracle.
func TestPullsBesideTiers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := handOver(t, rapid.IntRange(1, 38).Draw(t, "below"), func(c *Config) {
			c.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization, scheduler.StaticBatch}).Draw(t, "policy")
		})
		for len(x.gen.pulls) == 0 {
			x.gen.step(0)
			for range rapid.IntRange(0, 3).Draw(t, "moves") {
				if len(x.gen.below.queue) > 0 {
					x.gen.below.next(x.gen, rapid.SampledFrom([]kvcache.Result{kvcache.Done, kvcache.Done, kvcache.Done, kvcache.Failed}).Draw(t, "result"))
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "other") == 0 {
				id := 10 + len(x.gen.clients)
				x.gen.submit(ask(id, 2, x.prompt[:rapid.IntRange(1, 38).Draw(t, "shared")]...), nil)
			}
		}
		x.deliver(t, rapid.IntRange(0, 3).Draw(t, "pull") > 0)
		x.end(0)
	})
}
