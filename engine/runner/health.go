package runner

import (
	"fmt"
	"strings"
	"time"

	"tandem/engine/executor"
)

// Health says whether the engine can serve.
type Health string

// The health states, as /health prints them.
const (
	HealthOK       Health = "ok"
	HealthIdle     Health = "idle"
	HealthStalled  Health = "stalled"
	HealthDraining Health = "draining"
	HealthDead     Health = "dead"
)

// fullLimit is how long a pool may be full without a token or a block won before
// the engine counts as stalled (engine-core ER-4).
const fullLimit = 30 * time.Second

// judge sets health and reason. last is when the loop of the slowest rank came
// around, moved when the devices were seen to make headway.
func (s *status) judge(out *Stats, now, last, stall time.Duration) {
	switch {
	case s.dead:
		out.Health, out.Reason = HealthDead, s.why
		return
	case s.drain:
		out.Health = HealthDraining
		out.Reason = fmt.Sprintf("shutting down: %d requests and %d hand-overs are left", out.Alive-out.HandoffsOpen, out.HandoffsOpen)
		return
	case len(s.ids) == 0:
		out.Health = HealthIdle
		return
	}
	out.Health = HealthOK
	if quiet := now - max(last, s.moved); quiet > stall {
		out.Health, out.Reason, out.Quiet = HealthStalled, s.standing(now, last, quiet), quiet
		return
	}
	for i := range s.ranks {
		if r := &s.ranks[i]; r.PoolFull > 0 && r.PoolFull+now-r.at > fullLimit {
			out.Health, out.Reason = HealthStalled, fullText(i, len(s.ranks), r.PoolFull+now-r.at, &r.Stats)
			return
		}
	}
}

// standing names the rank whose loop does not come around, and where it is.
func (s *status) standing(now, last, quiet time.Duration) string {
	for i := range s.ranks {
		if r := &s.ranks[i]; r.at == last {
			where := "the loop is not in a step"
			if r.step != nil {
				if step, ok := r.step(); ok {
					where = stepText(&step, now)
				}
			}
			return rankText(i, len(s.ranks)) + fmt.Sprintf("no headway for %s: %s", round(quiet), where)
		}
	}
	return fmt.Sprintf("no headway for %s", round(quiet))
}

// stepText describes a step that runs.
func stepText(s *executor.StepRecord, now time.Duration) string {
	return fmt.Sprintf("step %d, with %d prefill rows of %d tokens and %d decode rows, runs on the device for %s",
		s.Iter, s.CtxRequests, s.CtxTokens, s.GenTokens, round(now-s.Planned))
}

// fullText tells who has the blocks of a full pool.
func fullText(rank, ranks int, full time.Duration, s *executor.Stats) string {
	var held []string
	for _, h := range []struct {
		blocks int
		what   string
		age    time.Duration
	}{
		{s.BlocksLeased, "leased to generation workers", s.HoldAges[executor.HoldLease]},
		{s.BlocksReceiving, "being fetched", s.HoldAges[executor.HoldRecv]},
		{s.BlocksActive, "in use by requests", 0},
	} {
		switch {
		case h.blocks > 0 && h.age > 0:
			held = append(held, fmt.Sprintf("%d %s (the oldest for %s)", h.blocks, h.what, round(h.age)))
		case h.blocks > 0:
			held = append(held, fmt.Sprintf("%d %s", h.blocks, h.what))
		}
	}
	return rankText(rank, ranks) + fmt.Sprintf("the KV pool has been full for %s and nothing ended: of %d blocks %s; %d requests wait",
		round(full), s.BlocksTotal, strings.Join(held, ", "), s.Waiting)
}

func rankText(rank, ranks int) string {
	if ranks == 1 {
		return ""
	}
	return fmt.Sprintf("rank %d: ", rank)
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
