package adprouter

import (
	"fmt"

	"tandem/engine/request"
)

// MaxProbed is how many requests at the head of the queue the ranks look up in
// their block index in one iteration.
const MaxProbed = 256

// entry is one waiting request; seq is its arrival, which the queue's order
// always follows.
type entry struct {
	Item
	seq    uint64
	since  uint64 // calls of Admit before it came
	probed bool
}

// Queue is the replicated waiting queue: every rank pushes, removes and admits
// the same, in the same order. One goroutine owns it.
type Queue struct {
	ranks, limit int
	entries      []entry // entries[head:] wait
	head         int
	seq          uint64
	sum          uint64 // order-free sum of the waiting entries' digests
	admitted     []Item
	taken        []entry // what Admit returned last
	free         []int   // [rank] active requests during Admit
	calls        uint64  // of Admit
	aside        Aside
}

// Aside tells of the strict requests that the last Admit passed over because
// their ranks were full.
type Aside struct {
	Requests int
	Oldest   request.ID // 0 without any
	Age      uint64     // of it, in calls of Admit
}

// NewQueue returns an empty queue of an instance with that many ranks, each
// holding at most limit active requests.
func NewQueue(ranks, limit int) *Queue {
	return &Queue{ranks: ranks, limit: limit, free: make([]int, ranks)}
}

func (e *entry) digest() uint64 { return mix(mix(uint64(e.ID)) ^ e.seq) }

// Push appends a request. It refuses, with an error for the client, a rank that
// the instance does not have.
func (q *Queue) Push(it Item) *request.Error {
	if it.Rank != -1 {
		if err := CheckRank(it.Rank, q.ranks); err != nil {
			return err
		}
	}
	q.seq++
	e := entry{Item: it, seq: q.seq, since: q.calls}
	q.sum += e.digest()
	q.entries = append(q.entries, e)
	return nil
}

// Remove takes a cancelled request out and reports whether it waited.
func (q *Queue) Remove(id request.ID) bool {
	for i := q.head; i < len(q.entries); i++ {
		if q.entries[i].ID != id {
			continue
		}
		q.sum -= q.entries[i].digest()
		copy(q.entries[q.head+1:i+1], q.entries[q.head:i])
		q.entries[q.head] = entry{}
		q.head++
		return true
	}
	return false
}

// Len returns how many requests wait.
func (q *Queue) Len() int { return len(q.entries) - q.head }

// At returns the i-th waiting request; it is valid until the queue changes.
func (q *Queue) At(i int) *Item { return &q.entries[q.head+i].Item }

// Digest returns a digest of the waiting requests and their order.
func (q *Queue) Digest() uint64 { return mix(q.sum) }

// Probe notes how many tokens of the first MaxProbed requests each rank has
// cached. lists holds, for each rank, its (request, tokens) pairs in the order
// of the queue; who is absent has 0. Pairs of other requests are skipped.
func (q *Queue) Probe(lists [][]Match) {
	n := min(q.Len(), MaxProbed)
	for i := range n {
		e := &q.entries[q.head+i]
		if e.Match == nil {
			e.Match = make([]int32, q.ranks)
		}
		clear(e.Match)
		e.probed = true
	}
	for rank := range min(len(lists), q.ranks) {
		at := 0
		for _, m := range lists[rank] {
			for i := at; i < n; i++ {
				if e := &q.entries[q.head+i]; e.ID == m.ID {
					e.Match[rank] = m.Tokens
					at = i + 1
					break
				}
			}
		}
	}
}

// Match is what one rank has cached of a waiting request's prompt.
type Match struct {
	ID     request.ID
	Tokens int32
}

// Room returns the free places of an instance: ranks × limit less the active
// requests. It is negative when ranks hold more than they should.
func Room(limit int, states []RankState) int {
	room := limit * len(states)
	for _, s := range states {
		room -= s.Active
	}
	return room
}

// Admit takes requests from the head while the ranks together have room for
// them, in order and without skipping one that is too large. A strict request
// whose rank is full is set aside, takes no room and keeps its place. With
// probedOnly nothing is admitted that Probe has not seen. The result, in arrival
// order, is valid until the next call.
func (q *Queue) Admit(states []RankState, probedOnly bool) []Item {
	if len(states) != q.ranks {
		panic(fmt.Sprintf("adprouter: states of %d ranks, the queue has %d", len(states), q.ranks))
	}
	for rank, s := range states {
		q.free[rank] = s.Active
	}
	room := Room(q.limit, states)
	q.admitted, q.taken, q.aside = q.admitted[:0], q.taken[:0], Aside{}
	q.calls++
	end := q.head
	for ; end < len(q.entries); end++ {
		e := &q.entries[end]
		w := e.weight()
		if w > room || probedOnly && !e.probed {
			break
		}
		if e.strict() {
			if q.free[e.Rank]+w > q.limit {
				q.setAside(e)
				continue
			}
			q.free[e.Rank] += w
		}
		room -= w
		q.sum -= e.digest()
		q.admitted, q.taken = append(q.admitted, e.Item), append(q.taken, *e)
	}
	q.drop(end, q.aside.Requests)
	return q.admitted
}

// setAside notes a request that is passed over. The first is the oldest.
func (q *Queue) setAside(e *entry) {
	if q.aside.Requests++; q.aside.Requests == 1 {
		q.aside.Oldest, q.aside.Age = e.ID, q.calls-e.since
	}
}

// Aside returns who is kept from entering by a rank that it insists on: these
// wait for as long as that rank is full, whatever room there is elsewhere.
func (q *Queue) Aside() Aside { return q.aside }

// Age returns for how many calls of Admit the request at the head has waited, 0
// if none waits.
func (q *Queue) Age() uint64 {
	if q.Len() == 0 {
		return 0
	}
	return q.calls - q.entries[q.head].since
}

// drop removes the admitted of entries[head:end] and moves the others up to end.
func (q *Queue) drop(end, aside int) {
	to := end
	for i, t := end-1, len(q.taken)-1; aside > 0 && i >= q.head; i-- {
		if t >= 0 && q.entries[i].seq == q.taken[t].seq {
			t--
			continue
		}
		to--
		q.entries[to] = q.entries[i]
	}
	clear(q.entries[q.head:to])
	q.head = to
	if q.head == len(q.entries) {
		q.entries, q.head = q.entries[:0], 0
	} else if q.head > 1024 && q.head > len(q.entries)/2 {
		n := copy(q.entries, q.entries[q.head:])
		clear(q.entries[n:])
		q.entries, q.head = q.entries[:n], 0
	}
}

// Return puts requests of the last Admit back to where they were, given as
// ascending positions in its result.
func (q *Queue) Return(positions []int) {
	for i := len(positions) - 1; i >= 0; i-- {
		e := q.taken[positions[i]]
		q.sum += e.digest()
		at := q.head
		for at < len(q.entries) && q.entries[at].seq < e.seq {
			at++
		}
		if q.head > 0 {
			copy(q.entries[q.head-1:], q.entries[q.head:at])
			q.head--
			q.entries[at-1] = e
			continue
		}
		q.entries = append(q.entries, entry{})
		copy(q.entries[at+1:], q.entries[at:])
		q.entries[at] = e
	}
}
