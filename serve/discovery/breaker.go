package discovery

import (
	"slices"
	"time"
)

// The numbers of the breaker.
const (
	breakerCount   = 3 // consecutive connection failures of legs that open it
	breakerWindow  = 10 * time.Second
	breakerOpenFor = 5 * time.Second
)

// BreakerState says whether an instance's breaker lets requests through.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"    // requests flow
	BreakerOpen     BreakerState = "open"      // nothing flows
	BreakerHalfOpen BreakerState = "half_open" // the next probe decides; no client's request is spent on the trial
)

// breaker keeps requests away from an instance that does not take connections, although its probes may be good. Connection
// failures open it; a good probe after its time closes it, a bad one begins the time anew. The zero value is closed. Not
// safe for concurrent use.
type breaker struct {
	fails []time.Time // consecutive failures, newest last, at most breakerCount
	until time.Time   // zero = closed
}

// leg records whether a leg came to an answer's first byte. It returns true when this opened the breaker.
func (b *breaker) leg(now time.Time, connected bool) (opened bool) {
	if connected {
		b.fails = b.fails[:0]
		return false
	}
	b.fails = append(b.fails, now)
	if n := len(b.fails); n > breakerCount {
		b.fails = slices.Delete(b.fails, 0, n-breakerCount)
	}
	if len(b.fails) < breakerCount || now.Sub(b.fails[0]) > breakerWindow || !b.closed() {
		return false
	}
	b.until = now.Add(breakerOpenFor)
	return true
}

// probed applies the outcome of a probe.
func (b *breaker) probed(now time.Time, good bool) {
	switch {
	case b.closed():
	case !good:
		b.until = now.Add(breakerOpenFor)
	case !now.Before(b.until):
		*b = breaker{}
	}
}

func (b *breaker) closed() bool { return b.until.IsZero() }

func (b *breaker) state(now time.Time) BreakerState {
	switch {
	case b.closed():
		return BreakerClosed
	case now.Before(b.until):
		return BreakerOpen
	}
	return BreakerHalfOpen
}
