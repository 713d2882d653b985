package executor

import (
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Cancel ends all choices of a request without an error. Unknown and finished ids are counted
// and ignored. Call it also between Plan and Apply: a request whose last step
// runs ends as cancelled.
func (c *Core) Cancel(now time.Duration, id request.ID) {
	c.now = now
	if s := c.byID[id]; s == nil || !c.cancelAll(s) {
		c.stats.UnknownCancels++
	}
}

// cancelAll ends what is alive of a request and reports whether anything was.
func (c *Core) cancelAll(s *sequence) (found bool) {
	s.choices(func(q *sequence) {
		if q.State != request.Closed && q.State != request.Retired {
			c.cancel(q)
			found = true
		}
	})
	return found
}

func (c *Core) cancel(s *sequence) {
	if s.State == request.CtxSend {
		c.endLease(s)
		return
	}
	c.finish(s, Output{Finish: request.FinishCancelled})
}

// Abort cancels both legs that this worker has of a hand-over, and refuses the
// id for one lease if it has not come yet.
func (c *Core) Abort(now time.Duration, id transfer.ID) AbortState {
	c.now = now
	ctx, gen := c.byCtx[id], c.byGen[id]
	if m, replaced, ok := c.parked.take(id); ok {
		for _, a := range append(replaced, m) {
			c.turnAway(a, transfer.RejectUnknown, "aborted")
		}
	}
	if ctx == nil && gen == nil {
		if c.recent.ended(id, now) {
			return AbortDone
		}
		c.recent.add(id, true, now)
		return AbortUnknown
	}
	state := AbortAborted
	for _, s := range []*sequence{ctx, gen} {
		if s == nil {
			continue
		}
		if s.holds&holdRecv != 0 || s.holds&holdLease != 0 && s.lease.attached {
			state = AbortSettling
		}
		c.cancelAll(s)
	}
	return state
}

// Drain stops taking requests. Those that are here end as usual, and hand-overs
// are completed: a lease that nobody reads lasts Config.Attach after its last
// sign, in which a gen worker that lives comes for it.
func (c *Core) Drain(now time.Duration) {
	c.now = now
	if c.draining {
		return
	}
	c.note(EventDrain, 0, nil)
	c.draining = true
	c.dismiss("this worker is shutting down")
	for _, s := range c.slots {
		switch {
		case s == nil || s.State != request.CtxSend || s.lease.attached:
		case s.lent: // saves work that nobody will do here
			c.endLease(s)
		default:
			s.lease.expires = min(s.lease.expires, now+c.patience())
			c.retime(s)
		}
	}
}

// patience is how long a lease lasts without a sign of who reads it.
func (c *Core) patience() time.Duration {
	if c.draining {
		return min(c.cfg.Lease, c.cfg.Attach)
	}
	return c.cfg.Lease
}

// ResetCache forgets all reusable K and V, for example after new weights were
// loaded. Requests that run keep theirs, but share nothing of it any more; loans
// end. While steps are on their way it waits for them: Plan gives no other before.
func (c *Core) ResetCache() {
	if c.resets = c.flights.n > 0; c.resets {
		return
	}
	c.kv.Reset()
	if c.ledger != nil {
		c.ledger.Clear()
	}
	for _, s := range c.slots {
		switch {
		case s == nil:
		case s.lent: // only its content was wanted
			c.endLease(s)
		default:
			s.private = true // until blocks are taken anew
		}
	}
}
