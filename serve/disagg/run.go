package disagg

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// run takes a planned request to its answer. An error is what the client is to be told; when the answer had begun the
// client learns of it by an event.
func (s *Server) run(ctx context.Context, p *RoutePlan, out *client) error {
	if err := s.choosePath(p); err != nil {
		return err
	}
	if s.homes != nil {
		s.homes.find(ctx, p, s.routers)
		out.ending = func() { s.homes.settled(p) }
	}
	s.tokenise(ctx, p)
	if err := s.tooLong(p); err != nil {
		s.obs.Happened(EventValidation)
		return err
	}
	s.consider(p)
	defer func() { p.reserved.Reservation.Release(false) }()
	if p.Path == PathGenOnly {
		s.obs.Happened(EventBypass)
		return s.generationLeg(ctx, p, nil, out)
	}
	if s.cfg.GenerationFirst && p.Req.BestOf == 1 { // choices fork off what the ctx worker sampled
		return s.generationFirst(ctx, p, out)
	}
	for restarted := false; ; restarted = true {
		h, err := s.contextLeg(ctx, p)
		if err != nil {
			return err
		}
		out.route(h.id, PathCtxGen, h.instance.ID, "", h.route)
		if h.skipsGen(p.Req.MaxTokens, h.instance.Info.MaxSeqLen) {
			return s.skipGen(p, h, out)
		}
		err = s.handOver(ctx, p, h, out)
		var le *legError
		if err == nil || restarted || s.cfg.NoRetry || out.started() || !errors.As(err, &le) || !consumed(le) {
			return err
		}
		s.obs.Happened(EventRetry, string(discovery.Context))
	}
}

// choosePath decides before any leg whether the request can be split, and if not, whether a mixed worker runs it alone.
func (s *Server) choosePath(p *RoutePlan) error {
	ctx, gen := s.reg.Candidates(discovery.Context, p.Req.Model), s.reg.Candidates(discovery.Generation, p.Req.Model)
	alone := s.reg.Alone(p.Req.Model)
	some := len(ctx)+len(alone) > 0
	switch {
	case len(p.able(ctx)) > 0 && len(p.able(gen)) > 0:
		p.Path = PathCtxGen
	case len(p.able(alone)) > 0:
		p.Path = PathGenOnly
		p.Gen.AffinityKey = "" // a worker that runs all of a request knows no sub-agents
	case some && p.Req.BestOf > 1:
		return needsFork(p.Req)
	default:
		return unavailable("no pair of context and generation workers can serve the request now; try again soon")
	}
	return nil
}

// heldGen is what builds for tests do between ctx reply and gen dispatch; nil in others.
var heldGen func(context.Context)

// handOver runs the gen leg of a hand-over and, if that fails, gives the blocks up at the ctx worker. Nothing between the
// ctx reply and here can return early, so no window leaves blocks pinned.
func (s *Server) handOver(ctx context.Context, p *RoutePlan, h *handoff, out *client) error {
	h.open(s)
	if s.beforeGen != nil {
		s.beforeGen(ctx)
	}
	err := ctx.Err()
	if err == nil {
		s.learn(p, h)
		err = s.generationLeg(ctx, p, h, out)
	} else {
		_, oe := transportError(ctx, err, false)
		err = &legError{fault: faultGone, role: discovery.Generation, id: h.id, err: oe, cause: err}
	}
	if h.settle(s) && err != nil {
		var le *legError
		errors.As(err, &le)
		if le != nil && consumed(le) {
			s.obs.Happened(EventHandoffLapse)
		}
		s.abort(ctx, discovery.Context, h.instance, h.id, reasonOf(ctx, le))
	}
	return err
}

// phase names where a request was when its client left, a label of a metric.
func phase(p *RoutePlan, out *client, e *legError) string {
	switch {
	case p.Path == "":
		return "routing"
	case out.started():
		return "decode"
	case e != nil && e.role == discovery.Generation:
		return "gen"
	}
	return "ctx"
}

// finish sends what is left to send and counts the request. It returns whether the connection must be cut.
func (s *Server) finish(ctx context.Context, p *RoutePlan, out *client, err error) (cut bool) {
	defer func() { s.obs.RequestEnded(out.status, tokensOf(out.usage)); s.ended(ctx, p, out, err) }()
	if err == nil {
		return false
	}
	var le *legError
	errors.As(err, &le)
	if le != nil && le.gone() || errors.Is(err, errClientGone) || clientLeft(ctx) {
		s.obs.Happened(EventDisconnect, phase(p, out, le))
		s.diag.request(diagDisconnect, p, openai.StatusClientClosed)
		out.status = openai.StatusClientClosed
		return true
	}
	e := s.clientError(p, err)
	level := slog.LevelDebug // a client's own mistake is nobody's alarm
	if e.Status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "request failed", "request_id", p.RequestID, "key", p.Tenant, "status", e.Status, "error", err)
	return out.fail(e)
}

// clientLeft tells that the client, not a shutdown, ended the request.
func clientLeft(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errShutdown)
}
