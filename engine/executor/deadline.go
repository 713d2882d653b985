package executor

import (
	"math"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

const never = time.Duration(math.MaxInt64)

// deadlines is a heap of requests by their next local deadline, ties by arrival.
type deadlines []*sequence

func (h deadlines) before(i, j int) bool {
	if h[i].due != h[j].due {
		return h[i].due < h[j].due
	}
	return h[i].Number < h[j].Number
}

func (h deadlines) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}

func (h deadlines) up(i int) {
	for i > 0 && h.before(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h deadlines) down(i int) {
	for {
		k := 2*i + 1
		if k >= len(h) {
			return
		}
		if k+1 < len(h) && h.before(k+1, k) {
			k++
		}
		if !h.before(k, i) {
			return
		}
		h.swap(i, k)
		i = k
	}
}

func (h *deadlines) remove(s *sequence) {
	if s.heapAt < 0 {
		return
	}
	i, last := s.heapAt, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	s.heapAt = -1
	if i < last {
		h.up(i)
		h.down(i)
	}
}

// set moves s to deadline due; never removes it.
func (h *deadlines) set(s *sequence, due time.Duration) {
	if due == never {
		h.remove(s)
		return
	}
	s.due = due
	if s.heapAt < 0 {
		s.heapAt = len(*h)
		*h = append(*h, s)
	}
	h.up(s.heapAt)
	h.down(s.heapAt)
}

// retime recomputes when s needs attention without any message.
func (c *Core) retime(s *sequence) { c.due.set(s, c.dueAt(s)) }

func (c *Core) dueAt(s *sequence) time.Duration {
	due := never
	if s.State.Alive() && s.req.Deadline > 0 {
		due = s.req.Deadline
	}
	switch s.State {
	case request.Waiting, request.GenInit:
		if c.cfg.QueueTimeout > 0 {
			due = min(due, s.arrived+c.cfg.QueueTimeout)
		}
		if s.State == request.GenInit {
			due = min(due, s.pull.keepAlive)
		}
		if s.holds&holdOffload != 0 {
			due = min(due, c.loadDue(s))
		}
	case request.GenRecv:
		if !s.pull.stopped {
			due = min(due, c.pullDue(s))
		}
	case request.Prefill:
		if s.holds&holdOffload != 0 {
			due = min(due, c.loadDue(s))
		}
	case request.CtxSend:
		due = s.lease.expires
	case request.CtxWaitPeer:
		due = min(due, s.lease.expires)
	}
	if s.met() {
		due = min(due, s.lease.beat)
	}
	return due
}

// pullDue is when a pull has taken too long in all, or since the last sign of
// the peer. Before the first sign the byte path may attach twice.
func (c *Core) pullDue(s *sequence) time.Duration {
	quiet := 2 * c.cfg.Attach
	if s.pull.answered {
		quiet = c.cfg.Progress
	}
	return min(s.pull.started+c.cfg.RecvTotal, s.pull.seen+quiet)
}

// expire carries out every deadline that has passed.
func (c *Core) expire(now time.Duration) {
	c.now = now
	c.kv.Expire(now)
	c.wakeDisk()
	for len(c.due) > 0 && c.due[0].due <= now {
		s := c.due[0]
		c.overdue(s)
		if s.heapAt >= 0 && s.due <= now {
			c.due.set(s, c.dueAt(s)) // the handler changed what it is due for
		}
	}
	c.expireParked()
}

func (c *Core) overdue(s *sequence) {
	if s.State.Alive() && s.req.Deadline > 0 && s.req.Deadline <= c.now {
		c.finish(s, Output{
			Finish: request.FinishCancelled,
			Err:    request.Errorf(request.DeadlineExceeded, "the request's deadline passed"),
		})
		return
	}
	if s.met() && s.lease.beat <= c.now {
		s.lease.beat = c.now + c.progressEvery()
		c.tellProgress(s.lease.peer, transfer.ID(s.req.TransferID), true)
	}
	switch s.State {
	case request.CtxWaitPeer:
		if s.lease.expires > c.now {
			return
		}
		c.fail(s, request.Errorf(request.TransferTimeout, "no generation worker came for the KV blocks within %v", c.cfg.PeerWait))
	case request.Waiting, request.GenInit:
		if t := c.cfg.QueueTimeout; t > 0 && s.arrived+t <= c.now {
			c.fail(s, request.Errorf(request.QueueTimeout, "no room after %v in the queue; try again later", t))
			return
		}
		if s.State == request.Waiting {
			return
		}
		if s.Borrows {
			c.giveUpLoan(s)
			return
		}
		if s.holds&holdOffload != 0 {
			c.loadOverdue(s)
		}
		if s.pull.keepAlive > c.now {
			return
		}
		if s.pull.keepAlive = never; !c.stands(s) {
			c.fx().KeepAlives = append(c.fx().KeepAlives, *s.pull.handle)
			s.pull.keepAlive = c.nextKeepAlive(s.pull.handle)
		}
	case request.GenRecv:
		c.pullOverdue(s)
	case request.Prefill:
		if s.holds&holdOffload != 0 {
			c.loadOverdue(s)
		}
	case request.CtxSend:
		c.stats.LeasesExpired++
		c.note(EventLeaseExpired, s.req.ID, nil)
		c.endLease(s)
	}
}

// stands reports whether nothing has run here for the life of a lease although
// s waits for room all that time. In a mixed worker the room may be under the
// lease that s renews itself, or a ring of such legs keeps each other out, over
// several workers too; so it lets go, and computes what it cannot fetch.
func (c *Core) stands(s *sequence) bool {
	return c.flights.n == 0 && c.sch.Receiving() == 0 && c.now-max(s.arrived, c.applied) >= s.pull.handle.Lease
}

// NextDeadline returns the engine-clock time at which Plan should be called
// even if nothing happens, and false if there is none.
func (c *Core) NextDeadline() (time.Duration, bool) {
	at := c.parked.due()
	if len(c.due) > 0 {
		at = min(at, c.due[0].due)
	}
	return at, at != never
}
