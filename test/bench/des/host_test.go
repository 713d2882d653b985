package des

import (
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// crowded are more conversations than a pool has room for, on one worker.
func crowded(ranks, hostBlocks int, band float64) Config {
	cfg := chats(11, 40)
	cfg.Ctx, cfg.Gen, cfg.Frontends = small(executor.Mixed, 1, ranks), Group{}, 1
	cfg.Ctx.Core.Blocks, cfg.Ctx.Core.PartialReuse = 1200/ranks, false
	cfg.Ctx.Cost.CtxToken = 1e-4
	cfg.Ctx.Core.Tiers.HostBlocks, cfg.Net.HostBand = hostBlocks, band
	cfg.Workload = workload.MultiTurn(workload.MultiTurnOptions{
		Conversations: 400, Turns: workload.Fixed(6), First: workload.Uniform(400, 800), Next: workload.Fixed(60), Output: workload.Fixed(8),
		Think: workload.Exponential(1), Seed: 11,
	})
	cfg.Load = schedule.Options{Mode: schedule.Sessions, Concurrency: 40, Seed: 11}
	cfg.Warmup, cfg.Measure = 2*time.Second, 6*time.Second
	return cfg
}

// What a pool has no room for comes back from the host, which is quicker than to compute it, alone and in lockstep;
// where copies are slower than that, it is computed.
func TestHostTier(t *testing.T) {
	const fast, slow = 1e9, 6e6
	for _, ranks := range []int{1, 4} {
		ttft := func(hostBlocks int, band float64) (mean float64, brought uint64) {
			s, r := run(t, crowded(ranks, hostBlocks/ranks, band))
			for _, rec := range r.Good() {
				mean += rec.TTFT().Seconds() / float64(len(r.Good()))
			}
			for _, k := range s.ctx[0].ranks {
				st := k.core.Stats()
				brought += st.HostHitTokens
				if err := k.core.Check(); err != nil || st.TierFailed > 0 {
					t.Errorf("%v, %d moves failed", err, st.TierFailed)
				}
			}
			if len(r.Good()) < 100 || r.Leaked > 0 {
				t.Errorf("%d requests, %d blocks lost", len(r.Good()), r.Leaked)
			}
			return mean, brought
		}
		none, nothing := ttft(0, 0)
		host, much := ttft(20000, fast)
		bad, little := ttft(20000, slow)
		t.Logf("%d ranks: TTFT %.4f s, with a host %.4f s (%d tokens from it), with a slow one %.4f s (%d)", ranks, none, host, much, bad, little)
		if nothing > 0 || much < 10_000 || host > 0.8*none {
			t.Errorf("%d ranks: TTFT %.4f s, with a host tier %.4f s and %d tokens from it", ranks, none, host, much)
		}
		if little > much/2 {
			t.Errorf("%d ranks: %d tokens come by a slow way, TTFT %.4f s", ranks, little, bad)
		}
	}
}
