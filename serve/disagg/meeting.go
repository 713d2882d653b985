package disagg

import (
	"context"
	"errors"
	"sync"
	"time"

	"tandem/serve/openai"
)

// answerer is the leg that a generation-first client hears. The first token comes to both, and is shown once.
type answerer uint8

const (
	nobodyYet answerer = iota
	genAnswers
	ctxAnswers // the request ended with its first token
	noAnswer   // the ctx leg failed before anybody answered: another attempt may
)

// meeting is what the two legs of a generation-first attempt know of each other.
type meeting struct {
	s       *Server
	plan    RoutePlan // of the ctx leg, to note its times in
	id      int64     // of the attempt
	stopGen context.CancelCauseFunc
	done    chan struct{} // closed when the ctx leg has ended
	started bool          // it ever began; known after done
	silent  bool          // it has not answered long after the gen leg had all; for the gen leg's reader

	mu      sync.Mutex
	answers answerer
	h       *handoff
	err     *legError
}

// errOtherLeg ends a gen leg whose ctx leg failed, or answers alone.
var errOtherLeg = errors.New("the context leg decided the request")

// claim lets a leg answer the client unless the other one does, and reports whether it may.
func (m *meeting) claim(by answerer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nobodyYet {
		m.answers = by
		if by == genAnswers && m.h != nil {
			m.h.settle(m.s) // a token came, so the blocks were fetched
		}
	}
	return m.answers == by
}

// answeredBy tells who answers.
func (m *meeting) answeredBy() answerer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answers
}

// ended takes the outcome of the ctx leg. What makes the gen leg useless ends it; a reply that got lost after the gen worker
// had the blocks does not.
func (m *meeting) ended(h *handoff, err *legError, finished bool) {
	m.mu.Lock()
	m.h, m.err = h, err
	switch {
	case err != nil:
		if m.answers != genAnswers || !err.lost() {
			m.stopGen(errOtherLeg)
		}
		if m.answers == nobodyYet {
			m.answers = noAnswer // what gen has said and nobody read yet must not begin an answer that ends here
		}
	case finished:
		h.settled = true // nothing is left to fetch
		if m.answers == nobodyYet {
			m.answers = ctxAnswers
			m.stopGen(errOtherLeg)
		}
	default:
		h.early = false
		h.open(m.s)
		if m.answers == genAnswers {
			h.settle(m.s)
		}
	}
	m.mu.Unlock()
	close(m.done)
}

// lost tells that a worker's answer, rather than its work, failed.
func (e *legError) lost() bool {
	return e.fault == faultDial || e.fault == faultRace || e.fault == faultBroken
}

// outcome returns what the ctx leg said. Call it after done.
func (m *meeting) outcome() (*handoff, *legError) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.h, m.err
}

// errNoContext is the end of a gen leg whose ctx leg never answered.
var errNoContext = errors.New("the generation worker had ended for abort_grace_ms and the context worker had not answered")

// await waits for the ctx leg, for the gen leg's reader: until ctx ends, or for limit if that is above 0.
func (m *meeting) await(ctx context.Context, limit time.Duration) (*handoff, *legError, error) {
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-m.done:
		h, err := m.outcome()
		return h, err, nil
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-over:
		return nil, nil, errNoContext
	}
}

// merge notes in the request's plan what the ctx leg's says. Call it after done.
func (m *meeting) merge(p *RoutePlan) {
	from, to := &m.plan.trip, &p.trip
	to.ctx, to.ctxSent, to.ctxDone, to.ctxRoute, to.ctxStages, to.prompt = from.ctx, from.ctxSent, from.ctxDone, from.ctxRoute, from.ctxStages, from.prompt
	if m.plan.last != nil {
		p.last = m.plan.last
	}
}

// gate lets an event of a generation-first stream pass. The first one with a token decides that the gen leg answers; what
// bears usage waits for the ctx leg's counts, and the end waits for its answer.
func (r *relay) gate(data []byte, finished bool) *legError {
	g, m := r.g, r.g.meet
	if m == nil || !finished && !g.out.relayed && g.p.Req.Endpoint == openai.Chat && isRoleOnly(data) {
		return nil
	}
	if !g.out.relayed && !m.claim(genAnswers) {
		return r.l.broken(errOtherLeg) // says why the leg was ended
	}
	if !finished && !hasUsage(data) || g.settled {
		return nil
	}
	if g.out.started() {
		if err := g.out.events.Flush(); err != nil { // what came before must not wait with it
			return r.clientGone(err)
		}
	}
	limit := time.Duration(0)
	if finished || g.out.have.finished(g.p.Req.N) {
		limit = r.s.cfg.AbortGrace
	}
	return g.settleUsage(r.l, limit)
}

// meetWhole waits for the ctx leg before an answer in one piece, which only then is known to be the one that counts.
func (s *Server) meetWhole(l *leg, g *genAttempt) *legError {
	l.timer.Stop()
	if lerr := g.settleUsage(l, s.cfg.AbortGrace); lerr != nil {
		return lerr
	}
	if g.uncounted && !g.meet.silent {
		return l.fail(faultGone, upstream("the context leg failed"), errOtherLeg)
	}
	if !g.meet.claim(genAnswers) {
		return l.broken(errOtherLeg)
	}
	route := l.resp.Header.Get(openai.HeaderRoute)
	if g.h != nil {
		route = joinReceipts(g.h.route, route)
	}
	g.announce(route)
	return nil
}

// settleUsage waits for the ctx leg and takes its counts of the prompt. If its reply got lost, or does not come although the
// gen worker has all, the gen worker's count of the prompt holds, and nothing of it counts as cached: it could not fetch the
// blocks and computed the prompt itself, and the ctx worker still waits for somebody to fetch them.
func (g *genAttempt) settleUsage(l *leg, limit time.Duration) *legError {
	h, lerr, err := g.meet.await(l.ctx, limit)
	switch {
	case errors.Is(err, errNoContext):
		g.settled, g.uncounted, g.meet.silent = true, true, true
		return nil
	case err != nil:
		return l.broken(err)
	case lerr != nil && !lerr.lost():
		return l.fail(faultGone, upstream("the context leg failed"), errOtherLeg)
	}
	g.settled, g.h = true, h
	if h == nil {
		g.uncounted = true
	}
	g.meet.merge(g.p)
	return nil
}
