package disagg

import (
	"context"
	"errors"
	"net/http"
	"time"

	"tandem/serve/openai"
)

// Reasons why a request got no place, labels of a metric.
const (
	queueFull      = "full"
	queueDisplaced = "displaced"
	queueTimeout   = "timeout"
)

// takePlace waits until the request may run; the returned function gives its place back. A request whose deadline passes
// while it waits has cost no prefill. The error is for the client.
func (s *Server) takePlace(ctx context.Context, p *RoutePlan, who ringKey) (leave func(), err error) {
	w := &waiter{tenant: who.name, weight: who.weight, priority: p.Req.Priority}
	s.mu.Lock()
	got := s.queue.arrive(w)
	s.mu.Unlock()
	leave = func() {
		s.mu.Lock()
		s.queue.leave(w.tenant)
		s.mu.Unlock()
	}
	switch got {
	case entryRuns:
		return leave, nil
	case entryRefused:
		return nil, s.noPlace(queueFull)
	case entryWaits:
	}
	timer := time.NewTimer(min(s.cfg.QueueTimeout, p.Deadline.Sub(s.now())))
	defer timer.Stop()
	ended := ctx.Done()
	select {
	case ok := <-w.turn:
		if !ok {
			return nil, s.noPlace(queueDisplaced)
		}
		return leave, nil
	case <-ended:
	case <-timer.C:
	}
	s.mu.Lock()
	still := s.queue.giveUp(w)
	s.mu.Unlock()
	had := !still && <-w.turn // it was decided in this moment
	switch {
	case ctx.Err() != nil:
		if had {
			leave()
		}
		if errors.Is(context.Cause(ctx), errShutdown) {
			return nil, unavailable("the frontend is shutting down")
		}
		return nil, errClientGone
	case had:
		return leave, nil
	case !still:
		return nil, s.noPlace(queueDisplaced)
	}
	return nil, s.noPlace(queueTimeout)
}

// noPlace is the answer to a request that cannot run now.
func (s *Server) noPlace(why string) *openai.Error {
	s.obs.Happened(EventNoPlace, why)
	if why == queueTimeout {
		return unavailable("no place became free in time: %d requests run at once; try again soon", s.cfg.MaxInflight)
	}
	busy := openai.NewError(http.StatusTooManyRequests, "", "the limit of %d requests at once is reached; try again soon", s.cfg.MaxInflight)
	busy.RetryAfter = time.Second
	return busy
}
