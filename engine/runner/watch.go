package runner

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"tandem/engine/executor"
)

// watchEvery is how often somebody beside the loops looks at their headway.
const watchEvery = time.Second

// defaultStall is how long the engine may go without headway before it counts as
// stalled.
const defaultStall = 10 * time.Second

// watch looks at the engine's headway until ctx ends. It logs when a stall begins
// and ends, and reports a hang, once, when there was none for Config.Hang.
func (e *Engine) watch(ctx context.Context, hung chan<- error) {
	t := time.NewTicker(min(watchEvery, e.cfg.Stall))
	defer t.Stop()
	stalled, dumped := time.Duration(0), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		st := e.Stats(e.cfg.Stall)
		switch {
		case st.Health == HealthStalled && stalled == 0:
			stalled = e.Now()
			e.log.Warn("the engine stalls", "reason", st.Reason, "requests", st.Alive)
		case st.Health != HealthStalled && stalled > 0:
			e.log.Info("the engine goes on", "after", (e.Now() - stalled).Round(time.Millisecond))
			stalled = 0
		}
		if e.cfg.Hang > 0 && st.Quiet > e.cfg.Hang && !dumped {
			dumped = true
			hung <- fmt.Errorf("the engine hangs: %s", st.Reason)
		}
	}
}

// Dumps are bounded, since a log is read by people and costs disk.
const (
	dumpSteps    = 24
	dumpEvents   = 32
	dumpRequests = 48
)

// dump writes what the engine did last, and has, to the log: a line for each
// step, event and request. It needs nothing of the engine's goroutines.
func (e *Engine) dump(why string, withStacks bool) {
	now := e.Now()
	attrs := []any{"why", why}
	if withStacks {
		attrs = append(attrs, "stacks", stacks())
	}
	e.log.Error("flight recorder", attrs...)
	for _, v := range e.views() {
		log := e.log.With("rank", v.Rank)
		for i := range v.Steps[max(0, len(v.Steps)-dumpSteps):] {
			log.LogAttrs(context.Background(), slog.LevelError, "flight: step", stepAttrs(&v.Steps[max(0, len(v.Steps)-dumpSteps)+i])...)
		}
		for _, ev := range v.Events[max(0, len(v.Events)-dumpEvents):] {
			log.Error("flight: event", "at", ev.At, "iter", ev.Iter, "kind", ev.Kind, "request", ev.ID, "code", ev.Code, "text", ev.Text)
		}
		for i := range v.Requests[:min(len(v.Requests), dumpRequests)] {
			log.LogAttrs(context.Background(), slog.LevelError, "flight: request", requestAttrs(&v.Requests[i], now)...)
		}
		s := &v.Stats
		log.Error("flight: pool", "age", now-v.At, "blocks", s.BlocksTotal, "free", s.BlocksFree, "active", s.BlocksActive, "reusable", s.BlocksReusable,
			"leased", s.BlocksLeased, "receiving", s.BlocksReceiving, "fenced", s.BlocksFenced, "running", s.Running, "waiting", s.Waiting,
			"requests", len(v.Requests), "error_budget", s.ErrorBudget)
	}
}

func stepAttrs(s *executor.StepRecord) []slog.Attr {
	return []slog.Attr{
		slog.Uint64("iter", s.Iter), slog.String("outcome", string(s.Outcome)), slog.Duration("planned", s.Planned), slog.Duration("applied", s.Applied),
		slog.Int("ctx_rows", s.CtxRequests), slog.Int("ctx_tokens", s.CtxTokens), slog.Int("gen_rows", s.GenRequests), slog.Int("copies", s.Copies),
		slog.Int("running", s.Running), slog.Int("waiting", s.Waiting), slog.Int("free", s.Free), slog.Int("reusable", s.Reusable),
		slog.Any("first_requests", s.IDs),
	}
}

func requestAttrs(r *executor.RequestReport, now time.Duration) []slog.Attr {
	attrs := []slog.Attr{
		slog.Uint64("request", uint64(r.ID)), slog.Int("choice", r.Choice), slog.String("state", r.State.String()), slog.Duration("in_state", now-r.Entered),
		slog.Duration("age", now-r.Arrived), slog.Int("prompt", r.Prompt), slog.Int("output", r.Output), slog.Int("computed", r.Computed), slog.Int("blocks", r.Blocks),
	}
	if r.Transfer != 0 {
		attrs = append(attrs, slog.Int64("transfer", int64(r.Transfer)))
	}
	for k, since := range r.Held {
		if since > 0 {
			attrs = append(attrs, slog.Duration("hold_"+executor.HoldKind(k).String(), now-since))
		}
	}
	return attrs
}

// alarm dumps when the core has found a bug of its own since the last time.
func (e *Engine) alarm(r *rank, s *executor.Stats) {
	bugs := s.Deadlocks + s.IllegalTransition
	if bugs == r.bugs {
		return
	}
	r.bugs = bugs
	if now := e.Now(); r.dumped == 0 || now-r.dumped > time.Minute {
		r.dumped = now
		e.dump("the engine core found a bug: nothing could be scheduled, or a state change was illegal", false)
	}
}

// stacks is what all goroutines do, for the report of a hang.
func stacks() string {
	b := make([]byte, 256<<10)
	return string(b[:runtime.Stack(b, true)])
}
