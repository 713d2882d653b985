package disagg

import (
	"context"
	"errors"
	"fmt"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

// contextLeg runs the ctx leg with its retries. Each attempt has its own id; an attempt that failed is aborted at its
// worker before the next one starts.
func (s *Server) contextLeg(ctx context.Context, p *RoutePlan) (*handoff, error) {
	list := func() []discovery.Instance { return p.able(s.reg.Candidates(discovery.Context, p.Req.Model)) }
	t := s.newTries()
	var sel router.Selection
	served := false
	defer func() { sel.Reservation.Release(served) }()
	var last *legError
	v := verdict{}
	for {
		if !v.same {
			sel.Reservation.Release(false)
			next, err := s.choose(p, discovery.Context, list, &t, v.strict)
			if err != nil {
				return nil, legOrUnavailable(last, err, discovery.Context)
			}
			sel = next
			if last == nil {
				s.obs.RequestRouted(s.now().Sub(p.Arrived))
			}
		}
		h, lerr := s.hedgedAttempt(ctx, p, &sel, list, &t)
		if lerr == nil {
			served = true
			return h, nil
		}
		last = lerr
		v = t.next(lerr, sel.Instance.ID)
		if lerr.reached() && !lerr.is429or4xx() {
			reason := reasonOf(ctx, lerr)
			if v.again {
				reason = reasonRetry
			}
			s.abort(ctx, discovery.Context, sel.Instance, lerr.id, reason)
		}
		if !v.again || !s.pause(ctx, p, v) {
			return nil, lerr
		}
		s.obs.Happened(EventRetry, string(discovery.Context))
	}
}

// is429or4xx tells that the worker refused the attempt, so that it holds nothing for it.
func (e *legError) is429or4xx() bool { return e.fault == faultStatus && e.err.Status < 500 }

// legOrUnavailable prefers what a worker said over "there is nobody left".
func legOrUnavailable(last *legError, err error, role discovery.Role) error {
	if last != nil {
		return last
	}
	if errors.Is(err, router.ErrNoServers) {
		return unavailable("no %s worker can take the request now; try again soon", role)
	}
	return err
}

func (s *Server) contextAttempt(ctx context.Context, p *RoutePlan, sel router.Selection, id int64) (*handoff, *legError) {
	body, err := p.ctxBody(id, s.cfg.PromptIDsAsBytes)
	if err != nil {
		return nil, &legError{fault: faultReply, role: discovery.Context, id: id, err: upstream("cannot encode the request"), cause: err}
	}
	l, lerr := s.start(ctx, p, call{
		role: discovery.Context, inst: sel.Instance, rank: sel.Rank, id: id, body: body,
		limit: p.Deadline.Sub(s.now()), cause: p.overtime, tell: true,
	})
	if lerr != nil {
		p.trip.ctxDone = s.now()
		s.obs.LegEnded(LegEnd{Role: RoleContext})
		return nil, lerr
	}
	defer l.close()
	h, lerr := s.readHandoff(l, p)
	p.trip.ctxDone = s.now()
	l.first = p.trip.ctxDone.Sub(l.started)
	if h != nil {
		l.tokens = len(h.choices)
		p.trip.handed(h)
		p.last = h
	}
	s.report(l, lerr)
	return h, lerr
}

func (s *Server) readHandoff(l *leg, p *RoutePlan) (*handoff, *legError) {
	data, lerr := l.readAll()
	if lerr != nil {
		return nil, lerr
	}
	h, err := parseCtxReply(data)
	if err != nil {
		return nil, l.fail(faultReply, upstream(err.Error()), err)
	}
	h.instance, h.id, h.route = l.inst, l.id, l.resp.Header.Get(openai.HeaderRoute)
	if h.params != nil && h.params.DisaggRequestID != nil {
		h.id = *h.params.DisaggRequestID
		l.id = h.id
	}
	if e := h.failure(); e != nil {
		return nil, l.fail(faultStatus, e, nil)
	}
	if h.skipsGen(p.Req.MaxTokens, l.inst.Info.MaxSeqLen) {
		if n := len(h.choices); n != p.Req.N {
			return nil, l.fail(faultReply, upstream(fmt.Sprintf("the reply has %d choices, not %d", n, p.Req.N)), nil)
		}
		return h, nil
	}
	if err := h.verify(p.Req.BestOf, p.Req.WantsLogprobs()); err != nil {
		return nil, l.fail(faultReply, upstream(err.Error()), err)
	}
	h.early = s.cfg.EarlyFirstToken && p.Req.Stream && h.showsEarly()
	return h, nil
}
