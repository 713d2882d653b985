package lockstep

import (
	"slices"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// queueClock is rank 0's watch over requests in the replicated queue, where no
// core looks after them. Its decisions travel as removals.
type queueClock struct {
	due   time.Duration // of the earliest timed
	timed []timed
	live  map[request.ID]time.Duration // when it entered; until it is placed or ended
}

// timed is something that is due while a request waits.
type timed struct {
	id     request.ID
	at     time.Duration
	code   request.Code     // of its end; empty: a KEEPALIVE
	handle *transfer.Handle // of the KEEPALIVE
	every  time.Duration    // until the next one
}

// leastKeepAlive keeps a foreign handle from asking for a flood.
const leastKeepAlive = 50 * time.Millisecond

// Enter puts an accepted request into the next delivery. Rank 0 only.
func (l *Rank) Enter(now time.Duration, a *Arrival) {
	l.out.New = append(l.out.New, a)
	id := a.Item.ID
	l.clock.live[id] = now
	if d := l.cfg.QueueTimeout; d > 0 {
		l.watch(timed{id: id, at: now + d, code: request.QueueTimeout})
	}
	if a.Deadline > 0 {
		l.watch(timed{id: id, at: a.Deadline, code: request.DeadlineExceeded})
	}
	if h := a.Handle; h != nil && h.Lease > 0 {
		every := max(h.Lease/3, leastKeepAlive)
		l.watch(timed{id: id, at: now + every, handle: h, every: every})
	}
}

// Cancel ends a request wherever it is. Rank 0 only.
func (l *Rank) Cancel(id request.ID) {
	l.out.Removals = append(l.out.Removals, Removal{ID: id, Code: request.Cancelled})
}

// Abort ends what goes on under an id of a hand-over; every rank answers with an
// Abort in its Fates. Rank 0 only.
func (l *Rank) Abort(id transfer.ID) { l.out.Aborts = append(l.out.Aborts, id) }

// Drain lets the ranks finish what they have and stop. Rank 0 only.
func (l *Rank) Drain() { l.out.Drain = true }

func (l *Rank) watch(t timed) {
	c := &l.clock
	if len(c.timed) > 64+4*len(c.live) { // far deadlines of requests that were placed at once
		c.timed = slices.DeleteFunc(c.timed, func(t timed) bool {
			_, waits := c.live[t.id]
			return !waits
		})
	}
	c.timed = append(c.timed, t)
	c.due = min(c.due, t.at)
}

// tick carries out what is due. What concerns requests that wait no more is
// dropped when it comes up.
func (l *Rank) tick(now time.Duration) {
	if now < l.clock.due {
		return
	}
	l.clock.due = never
	keep := l.clock.timed[:0]
	for _, t := range l.clock.timed {
		if _, waits := l.clock.live[t.id]; !waits {
			continue
		}
		if t.at <= now {
			if t.code != "" {
				l.out.Removals = append(l.out.Removals, Removal{ID: t.id, Code: t.code})
				continue
			}
			l.fates.KeepAlives = append(l.fates.KeepAlives, t.handle)
			t.at = now + t.every
		}
		keep = append(keep, t)
		l.clock.due = min(l.clock.due, t.at)
	}
	l.clock.timed = keep
}
