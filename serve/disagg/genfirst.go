package disagg

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"runtime/debug"
	"sync"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

// PathGenCtx is the path of a request whose gen leg went out first.
const PathGenCtx Path = "gen_ctx"

// pair are the workers of a generation-first attempt.
type pair struct{ ctx, gen router.Selection }

func (c *pair) release(ok bool) {
	c.ctx.Reservation.Release(ok)
	c.gen.Reservation.Release(ok)
}

// generationFirst runs both legs of a request together, the gen leg first so that blocks are ready when the prompt is
// prefilled. A failure of either ends both; a retry is another attempt of both.
func (s *Server) generationFirst(ctx context.Context, p *RoutePlan, out *client) error {
	p.Path = PathGenCtx
	t := s.newTries()
	var c pair
	served := false
	defer func() { c.release(served) }()
	var last *legError
	v := verdict{}
	for {
		if !v.same {
			c.release(false)
			var err error
			if c, err = s.choosePair(p, &t, v.strict); err != nil {
				return legOrUnavailable(last, err, discovery.Generation)
			}
			if last == nil {
				s.obs.RequestRouted(s.now().Sub(p.Arrived))
			}
		}
		m, lerr := s.bothLegs(ctx, p, &c, out)
		if lerr == nil {
			served = true
			if m.silent {
				s.abort(ctx, discovery.Context, c.ctx.Instance, m.id, reasonError)
			}
			return nil
		}
		if m.answeredBy() == ctxAnswers {
			served = true
			h, _ := m.outcome()
			s.abort(ctx, discovery.Generation, c.gen.Instance, m.id, reasonSkipped)
			return s.skipGen(p, h, out)
		}
		last, v = lerr, verdict{}
		if !out.relayed && !(lerr.role == discovery.Generation && lerr.refused()) {
			failed := c.gen.Instance.ID
			if lerr.role == discovery.Context {
				failed = c.ctx.Instance.ID
			}
			v = t.next(lerr, failed)
		}
		s.abandon(ctx, &c, m, lerr, v.again)
		if !v.again && s.resumable(p, out, lerr) {
			h, _ := m.outcome()
			c.release(false)
			return s.resume(ctx, p, h, out, lerr, c.gen.Instance.ID)
		}
		if !v.again || !s.pause(ctx, p, v) {
			return lerr
		}
		s.obs.Happened(EventRetry, string(lerr.role))
	}
}

// refused tells that a worker has no room: it took nothing.
func (e *legError) refused() bool {
	return e.is(http.StatusTooManyRequests) || e.is(http.StatusServiceUnavailable)
}

// choosePair asks both routers. The gen worker pairs with the ctx worker, and may have been chosen before.
func (s *Server) choosePair(p *RoutePlan, t *tries, strict bool) (c pair, err error) {
	if c.ctx, err = s.choose(p, discovery.Context, func() []discovery.Instance { return s.hosts(p.Req.Model) }, t, strict); err != nil {
		if errors.Is(err, router.ErrNoServers) {
			err = s.noHost(p)
		}
		return c, err
	}
	if c.gen, err = s.firstGen(p, s.partnersOf(p, &c), t, strict); err != nil {
		c.ctx.Reservation.Release(false)
	}
	return c, err
}

func (s *Server) partnersOf(p *RoutePlan, c *pair) func() []discovery.Instance {
	return func() []discovery.Instance { return s.reg.Partners(discovery.Context, c.ctx.Instance, p.Req.Model) }
}

// hosts lists the ctx workers whose requests a gen worker can find before they were prefilled.
func (s *Server) hosts(model string) []discovery.Instance {
	var out []discovery.Instance
	for _, in := range s.reg.Candidates(discovery.Context, model) {
		if d, err := openai.DecodeDisaggParams(in.Info.Disagg); err == nil && d != nil && d.CtxInfoEndpoint != nil {
			out = append(out, in)
		}
	}
	return out
}

// noHost says why there is no ctx worker for a request.
func (s *Server) noHost(p *RoutePlan) error {
	if len(s.reg.Candidates(discovery.Context, p.Req.Model)) > 0 && len(s.hosts(p.Req.Model)) == 0 {
		return unavailable("no context worker tells where generation workers find it, which schedule_style generation_first needs")
	}
	return unavailable("no context worker can take the request now; try again soon")
}

// WarnGenFirst is the code of the warning that workers cannot take part in schedule_style generation_first.
const WarnGenFirst = "W_GENERATION_FIRST_INERT"

// lateOnly warns of ctx workers that get no request because gen workers could not find them.
func (s *Server) lateOnly() (out []discovery.Warning) {
	if !s.cfg.GenerationFirst {
		return nil
	}
	hosts := map[string]bool{}
	for _, in := range s.hosts("") {
		hosts[in.ID] = true
	}
	for _, in := range s.reg.Candidates(discovery.Context, "") {
		if !hosts[in.ID] {
			out = append(out, discovery.Warning{Code: WarnGenFirst, Message: fmt.Sprintf(
				"context worker %s gets no requests: it has no disaggregated_params.ctx_info_endpoint in /server_info, which schedule_style generation_first needs", in.ID)})
		}
	}
	return out
}

// bothLegs runs one attempt. The ctx leg starts when the gen leg's request is on the wire, and is over when bothLegs returns.
func (s *Server) bothLegs(ctx context.Context, p *RoutePlan, c *pair, out *client) (*meeting, *legError) {
	gctx, stopGen := context.WithCancelCause(ctx)
	defer stopGen(nil)
	cctx, stopCtx := context.WithCancel(ctx)
	defer stopCtx()
	m := &meeting{s: s, plan: *p, id: s.ids.Next(), stopGen: stopGen, done: make(chan struct{})}
	g := genAttempt{p: p, out: out, meet: m, peer: c.ctx.Instance, id: m.id}
	var once sync.Once
	var wg sync.WaitGroup
	startCtx := func() {
		once.Do(func() {
			m.started = true
			wg.Go(func() { s.metContext(cctx, m, c.ctx) })
		})
	}
	lerr := s.firstLeg(httptrace.WithClientTrace(gctx, &httptrace.ClientTrace{
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			if i.Err == nil {
				startCtx()
			}
		},
	}), ctx, p, c, &g)
	if lerr != nil && m.answeredBy() == genAnswers && lerr.broke() {
		_, _, _ = m.await(ctx, s.cfg.AbortGrace) // its reply has what another gen worker needs to go on
	}
	decided := errors.Is(context.Cause(gctx), errOtherLeg) // before the end of this leg can end that one
	if decided {
		<-m.done
	}
	stopCtx()
	once.Do(func() { close(m.done) }) // it never started
	wg.Wait()
	h, cerr := m.outcome()
	h.settle(s)
	if m.started {
		m.merge(p)
		p.trip.attempts++
	}
	if lerr != nil && cerr != nil && decided {
		lerr = cerr
	}
	return m, lerr
}

// firstLeg runs the gen leg. A worker that refuses it has taken nothing: another one is asked, once, under the same id.
func (s *Server) firstLeg(gctx, ctx context.Context, p *RoutePlan, c *pair, g *genAttempt) *legError {
	g.inst, g.rank = c.gen.Instance, c.gen.Rank
	g.limit, g.cause = p.Deadline.Sub(s.now()), p.overtime
	lerr := s.runGen(gctx, g)
	if lerr == nil || !lerr.refused() || g.out.relayed || s.cfg.NoRetry {
		return lerr
	}
	other, err := s.choose(p, discovery.Generation, s.partnersOf(p, c), &tries{failed: []string{c.gen.Instance.ID}}, true)
	if err != nil || ctx.Err() != nil {
		other.Reservation.Release(false)
		return lerr
	}
	s.obs.Happened(EventRetry, string(discovery.Generation))
	c.gen.Reservation.Release(false)
	c.gen = other
	g.inst, g.rank, g.limit = other.Instance, other.Rank, p.Deadline.Sub(s.now())
	return s.runGen(gctx, g)
}

// metContext is the ctx leg of an attempt.
func (s *Server) metContext(ctx context.Context, m *meeting, sel router.Selection) {
	var h *handoff
	var lerr *legError
	defer func() {
		if v := recover(); v != nil { // of one request, not of the process
			s.log.Error("a ctx leg panicked", "panic", v, "stack", string(debug.Stack()))
			h, lerr = nil, &legError{fault: faultReply, role: discovery.Context, id: m.id, err: upstream("internal error")}
		}
		m.ended(h, lerr, h != nil && h.skipsGen(m.plan.Req.MaxTokens, sel.Instance.Info.MaxSeqLen))
	}()
	h, lerr = s.contextAttempt(ctx, &m.plan, sel, m.id)
	if h != nil {
		s.learn(&m.plan, h)
	}
}

// abandon tells both workers that an attempt is over, but for one that refused it.
func (s *Server) abandon(ctx context.Context, c *pair, m *meeting, lerr *legError, again bool) {
	reason := reasonOf(ctx, lerr)
	if again {
		reason = reasonRetry
	}
	_, cerr := m.outcome()
	if m.started && (cerr == nil || cerr.reached() && !cerr.is429or4xx()) {
		s.abort(ctx, discovery.Context, c.ctx.Instance, m.id, reason)
	}
	if lerr.role == discovery.Context || lerr.reached() && lerr.fault != faultStatus {
		s.abort(ctx, discovery.Generation, c.gen.Instance, m.id, reason)
	}
}

// firstBody is the request of a gen leg that goes out before its ctx leg has answered: what finds that one comes from the
// ctx worker's own description. Without token ids of the frontend's the worker tokenises, as the ctx worker does.
func (p *RoutePlan) firstBody(id int64, peer discovery.Instance, strip bool) (legBody, error) {
	body := p.base(discovery.Generation)
	if err := p.putIDs(&body); err != nil {
		return legBody{}, fmt.Errorf("gen request: %w", err)
	}
	if p.made && strip {
		p.stripHistory(&body)
	}
	host, err := openai.DecodeDisaggParams(peer.Info.Disagg)
	if err != nil || host == nil {
		return legBody{}, fmt.Errorf("gen request: the context worker's disaggregated_params: %w", err)
	}
	params := openai.DisaggParams{
		RequestType: openai.GenerationOnly, ScheduleStyle: openai.GenerationFirst, DisaggRequestID: &id, CtxRequestID: &id,
		CtxDPRank: host.CtxDPRank, CtxInfoEndpoint: host.CtxInfoEndpoint, EncodedOpaqueState: host.EncodedOpaqueState,
	}
	if err := body.SetValue("disaggregated_params", params); err != nil {
		return legBody{}, fmt.Errorf("gen request: %w", err)
	}
	return finish(body, &params), nil
}
