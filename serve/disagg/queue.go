package disagg

import (
	"cmp"
	"slices"
)

// waiter is one request that wants a place among those that run at once.
type waiter struct {
	tenant   string
	weight   float64 // of the tenant, above 0
	priority float64 // higher first, among the tenant's own
	seq      uint64  // arrival
	turn     chan bool
}

// lane holds what one tenant has running and waiting.
type lane struct {
	name    string
	weight  float64
	running int
	waiting []*waiter // in the order of their turns
	served  uint64    // when it last got a place
}

// fairQueue shares a number of places among tenants. The tenant with the fewest running requests for its weight is next, so
// that one who sends much waits behind one who sends little. Its own requests go by priority, then by arrival. When the
// waiting room is full, one of the tenant who fills it most makes room for a tenant who has less of it. Pure and not safe
// for concurrent use; what it decides is sent on the waiters' channels.
type fairQueue struct {
	places int // running at once, 0 = unlimited
	room   int // waiting at once
	lanes  map[string]*lane

	running, waiting int
	arrivals, grants uint64
}

func newFairQueue(places, room int) *fairQueue {
	return &fairQueue{places: places, room: room, lanes: map[string]*lane{}}
}

// entry is the answer to an arrival.
type entry uint8

const (
	entryRuns    entry = iota // it has a place
	entryWaits                // its channel tells: true = it has a place, false = it was pushed out
	entryRefused              // there is no room
)

// arrive asks for a place.
func (q *fairQueue) arrive(w *waiter) entry {
	q.arrivals++
	w.seq, w.turn = q.arrivals, make(chan bool, 1)
	l := q.lanes[w.tenant]
	if l == nil {
		l = &lane{name: w.tenant}
		q.lanes[w.tenant] = l
	}
	l.weight = w.weight
	if q.places == 0 || q.running < q.places && q.waiting == 0 {
		q.grant(l)
		return entryRuns
	}
	if q.waiting >= q.room && !q.makeRoom(l, w) {
		q.forget(l)
		return entryRefused
	}
	at, _ := slices.BinarySearchFunc(l.waiting, w, turnOrder)
	l.waiting = slices.Insert(l.waiting, at, w)
	q.waiting++
	return entryWaits
}

// turnOrder compares two waiters of one lane.
func turnOrder(a, b *waiter) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.seq, b.seq))
}

// makeRoom pushes out the last waiter of the lane that fills the room most for its weight: another lane if it would still
// have no less than the newcomer's, or the newcomer's own if that one is less urgent.
func (q *fairQueue) makeRoom(own *lane, w *waiter) bool {
	var most *lane
	for _, l := range q.lanes {
		if len(l.waiting) > 0 && (most == nil || fuller(l, most) > 0) {
			most = l
		}
	}
	if most == nil {
		return false
	}
	last := most.waiting[len(most.waiting)-1]
	if most == own {
		if last.priority >= w.priority {
			return false
		}
	} else if float64(len(most.waiting)-1)/most.weight < float64(len(own.waiting)+1)/own.weight {
		return false
	}
	most.waiting = most.waiting[:len(most.waiting)-1]
	q.waiting--
	last.turn <- false
	if most != own {
		q.forget(most)
	}
	return true
}

// fuller orders lanes by how much of the waiting room they hold for their weight.
func fuller(a, b *lane) int {
	return cmp.Or(cmp.Compare(float64(len(a.waiting))/a.weight, float64(len(b.waiting))/b.weight), cmp.Compare(a.name, b.name))
}

// leave gives the place of a tenant back and passes it on.
func (q *fairQueue) leave(tenant string) {
	l := q.lanes[tenant]
	l.running--
	q.running--
	var next *lane
	for _, c := range q.lanes {
		if len(c.waiting) > 0 && (next == nil || sooner(c, next) < 0) {
			next = c
		}
	}
	if next != nil {
		w := next.waiting[0]
		next.waiting = slices.Delete(next.waiting, 0, 1)
		q.waiting--
		q.grant(next)
		w.turn <- true
	}
	q.forget(l)
}

// sooner orders lanes by whose turn it is.
func sooner(a, b *lane) int {
	return cmp.Or(cmp.Compare(float64(a.running)/a.weight, float64(b.running)/b.weight), cmp.Compare(a.served, b.served), cmp.Compare(a.name, b.name))
}

func (q *fairQueue) grant(l *lane) {
	q.grants++
	l.served = q.grants
	l.running++
	q.running++
}

// giveUp takes a waiter out that waits no more. It returns false when its turn came meanwhile: then it has a place, or was
// pushed out, as its channel says.
func (q *fairQueue) giveUp(w *waiter) bool {
	l := q.lanes[w.tenant]
	if l == nil {
		return false
	}
	at := slices.Index(l.waiting, w)
	if at < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	q.waiting--
	q.forget(l)
	return true
}

// forget drops a lane that has nothing.
func (q *fairQueue) forget(l *lane) {
	if l.running == 0 && len(l.waiting) == 0 {
		delete(q.lanes, l.name)
	}
}
