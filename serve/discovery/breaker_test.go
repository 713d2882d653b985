package discovery

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fact is something a breaker was told.
type fact struct {
	at                     time.Time
	leg, connected, probed bool
}

// wantState replays the page's rules over the whole history, with nothing remembered in between but the end of the open
// time.
func wantState(facts []fact, now time.Time) BreakerState {
	var until time.Time
	for i, f := range facts {
		switch {
		case f.leg && !f.connected && until.IsZero() && threeFailed(facts[:i+1]):
			until = f.at.Add(5 * time.Second)
		case !f.probed || until.IsZero():
		case !f.connected:
			until = f.at.Add(5 * time.Second)
		case !f.at.Before(until):
			until = time.Time{}
		}
	}
	switch {
	case until.IsZero():
		return BreakerClosed
	case now.Before(until):
		return BreakerOpen
	}
	return BreakerHalfOpen
}

// threeFailed tells whether the last three legs, since the last success, failed within ten seconds. Failures that led to an
// earlier trial are forgotten when it goes well, which the caller's history shows as a success.
func threeFailed(facts []fact) bool {
	var fails []time.Time
	for _, f := range facts {
		switch {
		case f.leg && f.connected:
			fails = nil
		case f.leg:
			fails = append(fails, f.at)
		}
	}
	n := len(fails)
	return n >= 3 && fails[n-1].Sub(fails[n-3]) <= 10*time.Second
}

func TestBreakerFollowsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b breaker
		var facts []fact
		now := at(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 6000).Draw(t, "ms")) * time.Millisecond)
			ok := rapid.Bool().Draw(t, "ok")
			before := b.state(now)
			if rapid.IntRange(0, 2).Draw(t, "kind") == 0 {
				b.probed(now, ok)
				facts = append(facts, fact{at: now, probed: true, connected: ok})
				if before == BreakerHalfOpen && ok {
					facts = append(facts, fact{at: now, leg: true, connected: true}) // the trial counts as a success
				}
			} else {
				opened := b.leg(now, ok)
				facts = append(facts, fact{at: now, leg: true, connected: ok})
				if opened != (before == BreakerClosed && b.state(now) == BreakerOpen) {
					t.Fatalf("opened %v, from %s to %s", opened, before, b.state(now))
				}
			}
			if got, want := b.state(now), wantState(facts, now); got != want {
				t.Fatalf("state %s, want %s after %+v", got, want, facts)
			}
			if len(b.fails) > breakerCount {
				t.Fatalf("%d failures kept", len(b.fails))
			}
		}
	})
}

func TestClusterInfoShowsTheBreaker(t *testing.T) {
	tb := twoByTwo(t)
	tb.probed(at(0), "gen0:1", good(Generation, "a"))
	e := tb.byID["gen0:1"]
	if st := e.status(at(0)); st.Breaker != "" {
		t.Errorf("closed: %q", st.Breaker)
	}
	for range 3 {
		tb.legEnded(at(1), "gen0:1", false)
	}
	if st := e.status(at(2)); st.Breaker != BreakerOpen || st.Routable {
		t.Errorf("open: %+v", st)
	}
	if st := e.status(at(6.5)); st.Breaker != BreakerHalfOpen || st.Routable {
		t.Errorf("waits for the probe: %+v", st)
	}
}
