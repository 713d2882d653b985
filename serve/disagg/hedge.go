package disagg

import (
	"context"
	"runtime/debug"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// racer is one attempt of a hedged ctx leg. It has a plan of its own to note its times in.
type racer struct {
	sel    router.Selection
	plan   RoutePlan
	id     int64
	cancel context.CancelFunc
	h      *handoff
	err    *legError
}

// hedgedAttempt runs an attempt of the ctx leg and, if it has not answered after HedgeAfter, a second one at another worker.
// The first to succeed serves the request; the other is aborted at its worker, also when it succeeds too. sel becomes the
// selection of the one whose outcome counts.
func (s *Server) hedgedAttempt(ctx context.Context, p *RoutePlan, sel *router.Selection, list func() []discovery.Instance, t *tries) (*handoff, *legError) {
	if s.cfg.HedgeAfter <= 0 {
		return s.contextAttempt(ctx, p, *sel, s.ids.Next())
	}
	ends := make(chan *racer, 2)
	run := func(chosen router.Selection) *racer {
		r := &racer{sel: chosen, plan: *p, id: s.ids.Next()}
		rctx, cancel := context.WithCancel(ctx)
		r.cancel = cancel
		go func() {
			defer func() {
				if v := recover(); v != nil { // of one request, not of the process
					s.log.Error("a ctx leg panicked", "panic", v, "stack", string(debug.Stack()))
					r.h, r.err = nil, &legError{fault: faultReply, role: discovery.Context, id: r.id, err: upstream("internal error")}
				}
				ends <- r
			}()
			r.h, r.err = s.contextAttempt(rctx, &r.plan, r.sel, r.id)
		}()
		return r
	}
	running := []*racer{run(*sel)}
	timer := time.NewTimer(s.cfg.HedgeAfter)
	defer timer.Stop()
	var best *racer
	for best == nil || best.err != nil && len(running) > 0 {
		select {
		case r := <-ends:
			running = without(running, r)
			if best != nil { // it failed
				t.failed = append(t.failed, best.sel.Instance.ID)
				s.lose(ctx, best)
			}
			best = r
		case <-timer.C:
			if second, ok := s.second(p, sel.Instance.ID, list, t); ok {
				running = append(running, run(second))
				s.obs.Happened(EventHedge)
			}
		}
	}
	best.cancel()
	for _, r := range running { // the other lost
		r.cancel()
	}
	for range running {
		s.lose(ctx, <-ends)
	}
	p.trip, p.last, *sel = best.plan.trip, best.plan.last, best.sel
	return best.h, best.err
}

// second chooses another worker, and only one that has not failed this leg.
func (s *Server) second(p *RoutePlan, first string, list func() []discovery.Instance, t *tries) (router.Selection, bool) {
	avoid := append([]string{first}, t.failed...)
	sel, err := s.route(discovery.Context, p.routing(discovery.Context, list, avoid))
	return sel, err == nil
}

// lose gives up what an attempt that does not count may hold.
func (s *Server) lose(ctx context.Context, r *racer) {
	r.cancel()
	r.sel.Reservation.Release(false)
	id := r.id
	switch {
	case r.err == nil:
		id = r.h.id
	case !r.err.reached() || r.err.is429or4xx():
		return
	}
	s.abort(ctx, discovery.Context, r.sel.Instance, id, reasonHedge)
}

func without(list []*racer, r *racer) []*racer {
	var out []*racer
	for _, x := range list {
		if x != r {
			out = append(out, x)
		}
	}
	return out
}
