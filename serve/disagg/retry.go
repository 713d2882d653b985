package disagg

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// tries decides about further attempts of one leg and remembers who failed.
type tries struct {
	retries int      // left for connection failures and 5xx
	races   int      // left for transient races
	raced   bool     // one race was retried at the same worker
	offered bool     // a 429 was offered to another worker
	failed  []string // instances that failed this leg
	budget  *retryBudget
}

// verdict is the answer to a failed attempt.
type verdict struct {
	again  bool
	same   bool // at the same worker
	strict bool // only at a worker that has not failed yet
	race   bool // short pause
	now    bool // no pause
}

func (s *Server) newTries() tries {
	s.retries.earn()
	if s.cfg.NoRetry {
		return tries{offered: false, budget: s.retries}
	}
	return tries{retries: s.cfg.MaxRetries, races: raceAttempts - 1, budget: s.retries}
}

// next applies the retry rules to a failed attempt at instance, as far as the budget of all requests goes.
func (t *tries) next(e *legError, instance string) verdict {
	v := t.decide(e, instance)
	if v.again && !t.budget.spend() {
		return verdict{}
	}
	return v
}

// decide applies the rules of one request.
func (t *tries) decide(e *legError, instance string) verdict {
	switch {
	case e.is(http.StatusTooManyRequests):
		if t.offered {
			return verdict{}
		}
		t.offered = true
		t.failed = append(t.failed, instance)
		return verdict{again: true, strict: true, now: true}
	case e.fault == faultRace && t.races > 0:
		t.races--
		if !t.raced {
			t.raced = true
			return verdict{again: true, same: true, race: true}
		}
		t.failed = append(t.failed, instance)
		return verdict{again: true, race: true}
	case e.fault == faultSilent && t.retries > 0:
		t.retries--
		t.failed = append(t.failed, instance)
		return verdict{again: true, strict: true, now: true}
	case e.fault != faultRace && e.retryable() && t.retries > 0:
		t.retries--
		t.failed = append(t.failed, instance)
		return verdict{again: true}
	}
	return verdict{}
}

// patience is how long one attempt may wait to be accepted: half of what is left while another of the workers could still
// be tried, so that one that does not answer costs no request.
func (t *tries) patience(left time.Duration, workers int) time.Duration {
	if t.retries > 0 && workers > len(t.failed)+1 {
		return left / 2
	}
	return left
}

// choose asks the leg's router, avoiding instances that failed; when only those remain they are allowed again, unless
// strict.
func (s *Server) choose(p *RoutePlan, role discovery.Role, list func() []discovery.Instance, t *tries, strict bool) (router.Selection, error) {
	r := s.routers[role]
	sel, err := s.route(role, p.routing(role, list, t.failed))
	if errors.Is(err, router.ErrNoServers) && len(t.failed) > 0 && !strict {
		sel, err = s.route(role, p.routing(role, list, nil))
	}
	if err == nil && sel.Prompt > 0 && (r.Kind() == router.KindKVAware || r.Kind() == router.KindHybrid) {
		s.kvMatched.Add(uint64(sel.Matched))
		s.kvPrompt.Add(uint64(sel.Prompt))
	}
	s.homes.keep(p, role, r)
	return sel, err // callers compare with router.ErrNoServers
}

// pause waits before a retry and returns false when the request ended meanwhile.
func (s *Server) pause(ctx context.Context, p *RoutePlan, v verdict) bool {
	d := s.cfg.RetryPause
	switch {
	case v.now:
		return ctx.Err() == nil
	case v.race:
		d = s.cfg.RacePause
	default:
		d += time.Duration((rand.Float64()*2 - 1) * 0.2 * float64(d))
	}
	if s.now().Add(d).After(p.Deadline) {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
