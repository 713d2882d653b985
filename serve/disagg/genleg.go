package disagg

import (
	"context"
	"net/http"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
	"tandem/serve/trace"
)

// generationLeg runs the gen leg with its retries and sends the answer. h is nil when a mixed worker runs the whole
// request. All attempts after one hand-over share its id.
func (s *Server) generationLeg(ctx context.Context, p *RoutePlan, h *handoff, out *client) error {
	list := s.genList(p, h)
	admission := s.now().Add(s.cfg.AdmissionTimeout)
	t := s.newTries()
	var sel router.Selection
	served := false
	defer func() { sel.Reservation.Release(served) }()
	var last *legError
	v := verdict{}
	for {
		if !v.same {
			sel.Reservation.Release(false)
			next, err := s.firstGen(p, list, &t, v.strict)
			if err != nil && last != nil && s.resumable(p, out, last) {
				return s.resume(ctx, p, h, out, last, sel.Instance.ID) // a worker may come back
			}
			if err != nil {
				return legOrUnavailable(last, err, discovery.Generation)
			}
			sel = next
			if h == nil && last == nil {
				s.obs.RequestRouted(s.now().Sub(p.Arrived))
			}
		}
		g := genAttempt{inst: sel.Instance, rank: sel.Rank, h: h, out: out, p: p, id: s.ids.Next()}
		if h != nil {
			g.id = h.id
		}
		g.limit, g.cause = p.Deadline.Sub(s.now()), p.overtime
		if d := t.patience(admission.Sub(s.now()), len(list())); h != nil && p.Req.Stream && d < g.limit {
			g.limit, g.cause = d, errAdmission
		}
		lerr := s.runGen(ctx, &g)
		if lerr == nil {
			served = true
			return nil
		}
		last = lerr
		v = verdict{}
		if !out.relayed {
			v = t.next(lerr, sel.Instance.ID)
		}
		if consumed(lerr) {
			v = verdict{}
		}
		if h != nil && lerr.reached() && lerr.fault != faultStatus && !v.same {
			s.abort(ctx, discovery.Generation, sel.Instance, h.id, reasonOf(ctx, lerr))
		}
		if !v.again && s.resumable(p, out, lerr) {
			sel.Reservation.Release(false)
			return s.resume(ctx, p, h, out, lerr, sel.Instance.ID)
		}
		if !v.again || !s.pause(ctx, p, v) {
			return lerr
		}
		s.obs.Happened(EventRetry, string(discovery.Generation))
	}
}

// genList lists the workers that a gen leg may go to: partners of the ctx worker, or those that
// run a request alone.
func (s *Server) genList(p *RoutePlan, h *handoff) func() []discovery.Instance {
	switch {
	case p.bypass, h == nil && p.Path == PathGenCtx:
		return func() []discovery.Instance { return p.able(s.reg.Candidates(discovery.Generation, p.Req.Model)) }
	case h == nil:
		return func() []discovery.Instance { return p.able(s.reg.Alone(p.Req.Model)) }
	}
	return func() []discovery.Instance { return p.able(s.reg.Partners(discovery.Context, h.instance, p.Req.Model)) }
}

// consumed tells that the blocks of the hand-over are gone, so that only a new ctx leg can help.
func consumed(e *legError) bool { return e.fault == faultStatus && e.err.Code == codeUnknownTransfer }

// genAttempt is one try of a gen leg.
type genAttempt struct {
	p     *RoutePlan
	h     *handoff // nil = whole request
	out   *client
	inst  discovery.Instance
	rank  *int // that the router chose, nil = none
	id    int64
	limit time.Duration
	cause error
	// meet is set for a leg that goes out before the ctx leg, of the worker peer, has answered.
	meet *meeting
	peer discovery.Instance
	// settled: the ctx leg's outcome is known. uncounted: it told no usage.
	settled, uncounted bool
	// resume: the client has tokens already, the worker goes on behind them.
	resume bool
	ids    bool // the worker was asked for the token ids behind each event
}

func (s *Server) runGen(ctx context.Context, g *genAttempt) *legError {
	c := call{role: discovery.Generation, inst: g.inst, rank: g.rank, id: g.id, limit: g.limit, cause: g.cause, tell: !g.p.Req.Stream}
	var err error
	switch {
	case g.resume:
		c.body, err = g.p.resumeBody(g.h, g.id, &g.out.have, s.cfg.StripMessageHistory)
	case g.meet != nil:
		c.body, err = g.p.firstBody(g.id, g.peer, s.cfg.StripMessageHistory)
	case g.h != nil:
		c.body, err = g.p.genBody(g.h, s.cfg.StripMessageHistory)
	default:
		c.body = g.p.wholeBody()
	}
	if err != nil {
		return &legError{fault: faultReply, role: c.role, id: c.id, err: upstream("cannot encode the request"), cause: err}
	}
	g.ids = s.cfg.Resume && g.p.Req.Stream && g.inst.Info.Resume
	c.ids = g.ids
	l, lerr := s.start(ctx, g.p, c)
	if lerr != nil {
		s.obs.LegEnded(LegEnd{Role: RoleGeneration})
		return lerr
	}
	defer l.close()
	g.announce(l.resp.Header.Get(openai.HeaderRoute))
	if g.p.Req.Stream {
		first, why := g.p.Deadline.Sub(s.now()), &g.p.overtime
		if g.resume {
			first, why = s.cfg.RequestTimeout, &errTimeout // it has a prefill to do, as a request that arrives now
		}
		l.why.Store(why)
		l.timer.Reset(max(1, first))
		g.out.id = g.id
		g.out.have.broke() // what an attempt before told and did not send
		r := relay{s: s, l: l, g: g}
		lerr = r.run()
	} else {
		lerr = s.relayWhole(l, g)
	}
	s.report(l, lerr)
	return lerr
}

// announce sets the routing headers for the worker that accepted.
func (g *genAttempt) announce(receipt string) {
	if g.meet != nil {
		g.out.route(g.id, PathGenCtx, g.peer.ID, g.inst.ID, receipt)
		return
	}
	if g.h == nil {
		g.out.route(g.id, PathGenOnly, "", g.inst.ID, receipt)
		return
	}
	g.out.route(g.id, PathCtxGen, g.h.instance.ID, g.inst.ID, joinReceipts(g.h.route, receipt))
}

// relayWhole sends a non-streamed answer with the ctx worker's usage.
func (s *Server) relayWhole(l *leg, g *genAttempt) *legError {
	data, lerr := l.readAll()
	if lerr != nil {
		return lerr
	}
	if g.meet != nil {
		if lerr := s.meetWhole(l, g); lerr != nil {
			return lerr
		}
	}
	// l.first stays 0: a whole answer does not tell when its first token was there.
	body, err := openai.ParseBody(data)
	if err != nil {
		return l.fail(faultReply, upstream("the reply is no JSON object"), err)
	}
	if err := checkChoices(&body, g.p.Req.N); err != nil {
		return l.fail(faultReply, upstream(err.Error()), err)
	}
	usage, changed, err := rewriteUsage(&body, g.ctxUsage())
	if err != nil {
		return l.fail(faultReply, upstream(err.Error()), err)
	}
	if usage != nil {
		l.tokens = usage.CompletionTokens
	}
	if g.p.Req.Logprobs >= 0 && g.p.Req.BestOf == g.p.Req.N && usage != nil {
		if err := checkLogprobs(&body, g.p.Req.Endpoint, usage.CompletionTokens); err != nil {
			return l.fail(faultReply, upstream(err.Error()), err)
		}
	}
	if stripInternal(&body, g.p.Req.ReturnTokenIDs) || changed {
		data = body.AppendJSON(make([]byte, 0, len(data)+64))
	}
	if s.cfg.ReturnPerf {
		g.out.w.Header().Set(trace.HeaderTiming, g.p.trip.serverTiming(g.p.Arrived, s.now()))
	}
	g.out.usage = usage
	g.h.settle(s)
	if err := g.out.whole(data); err != nil {
		return l.fail(faultGone, openai.NewError(openai.StatusClientClosed, "cancelled", "the client closed the connection"), err)
	}
	return nil
}

// ctxUsage returns the authoritative counts, nil when the gen worker's own are right.
func (g *genAttempt) ctxUsage() *openai.Usage {
	switch {
	case g.uncounted:
		return &openai.Usage{PromptTokens: ownPrompt}
	case g.h == nil:
		return nil
	}
	return &g.h.usage
}

// gone tells whether a failure means that nobody waits for the answer.
func (e *legError) gone() bool {
	return e.fault == faultGone && e.err.Status != http.StatusServiceUnavailable
}
