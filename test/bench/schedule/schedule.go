package schedule

import (
	"container/heap"
	"slices"
	"time"

	"tandem/test/bench/workload"
)

// Schedule is one run of a load model over a workload. It is for one goroutine.
type Schedule struct {
	o     Options
	graph *graph

	gaps    *gaps
	next    time.Duration   // when the next unit starts by the clock; Never = by none
	free    []time.Duration // closed loops: since when slots have been free, in order
	spare   int             // the fewest that were free at a time
	unit    int             // next of graph.units
	play    int
	started int // units
	sent    int
	flying  map[int]flight
	ready   readyQueue
	over    bool // no unit starts any more
	ended   bool // nothing is sent any more
}

// flight is a request that was sent and has not ended.
type flight struct {
	live    *live
	request int
}

// live is a started unit.
type live struct {
	unit   *unit
	number int
	play   int
	left   int             // requests that have not ended
	root   int             // of those, in the root conversation
	waits  []int           // by place in the unit: how many it still waits for; nil: nothing in it waits
	since  []time.Duration // by place in the unit: the latest end of those it waited for
	slot   bool            // it holds a slot
}

// New prepares a run. The workload must not change while it lasts.
func New(w *workload.Workload, o Options) (*Schedule, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	g, err := newGraph(w, &o)
	if err != nil {
		return nil, err
	}
	s := &Schedule{o: o, graph: g, flying: map[int]flight{}, next: Never}
	switch o.Mode {
	case Rate, Constant:
		s.gaps = newGaps(&o)
		s.next = s.gaps.first()
	case Fixed:
		for !s.over {
			s.begin(0, false)
		}
	default:
		for i := range o.Concurrency {
			s.free = append(s.free, o.RampUp/time.Duration(o.Concurrency)*time.Duration(i))
		}
		s.spare = len(s.free)
	}
	return s, nil
}

// Poll returns what is to be sent now, in order, and when to call it next if nothing ends before; Never: only then. It
// takes the requests that it returns for sent.
func (s *Schedule) Poll(now time.Duration) (due []Send, next time.Duration) {
	for !s.stopped(now) {
		if s.o.Mode == Concurrency {
			if len(s.free) == 0 || s.free[0] > now {
				break
			}
			if s.ready.due(now) {
				e := heap.Pop(&s.ready).(entry)
				e.at = max(e.at, s.take())
				due = append(due, s.send(e))
				continue
			}
			if s.over {
				break
			}
			s.begin(s.free[0], false)
			continue
		}
		s.start(now)
		if !s.ready.due(now) || s.full() {
			break
		}
		due = append(due, s.send(heap.Pop(&s.ready).(entry)))
	}
	return due, s.wake(now)
}

// start begins all units whose time has come.
func (s *Schedule) start(now time.Duration) {
	for !s.over && s.next <= now && !s.enough() {
		at := s.next
		s.next = s.gaps.next(at)
		s.begin(at, false)
	}
	for !s.over && s.o.Mode != Concurrency && len(s.free) > 0 && s.free[0] <= now {
		s.begin(s.take(), true)
	}
}

// take gives the slot away that has been free for longest, and tells since when.
func (s *Schedule) take() time.Duration {
	at := s.free[0]
	s.free = s.free[1:]
	s.spare = min(s.spare, len(s.free))
	return at
}

// Spare is how many slots of a closed loop have never been used: so much the load was below what was asked.
func (s *Schedule) Spare() int { return s.spare }

// enough tells whether all requests that may still be sent are ready.
func (s *Schedule) enough() bool {
	return s.o.Requests > 0 && s.sent+s.ready.Len() >= s.o.Requests
}

// full tells whether an open loop may have no more in flight.
func (s *Schedule) full() bool {
	return s.o.MaxConcurrency > 0 && len(s.flying) >= s.o.MaxConcurrency
}

// wake is when something can happen next without an answer.
func (s *Schedule) wake(now time.Duration) time.Duration {
	if s.stopped(now) {
		return Never
	}
	next := Never
	slot := len(s.free) > 0 && !s.over
	if !s.over {
		next = s.next
	}
	switch s.o.Mode {
	case Concurrency:
		if len(s.free) > 0 && s.ready.Len() > 0 {
			next = max(s.free[0], s.ready[0].at)
		}
		if slot {
			next = min(next, s.free[0])
		}
	default:
		if slot {
			next = min(next, s.free[0])
		}
		if s.ready.Len() > 0 && !s.full() {
			next = min(next, s.ready[0].at)
		}
	}
	if s.o.Duration > 0 {
		next = min(next, s.o.Duration) // then it is over
	}
	return next
}

// stopped tells whether nothing is sent any more.
func (s *Schedule) stopped(now time.Duration) bool {
	return s.ended || s.o.Requests > 0 && s.sent >= s.o.Requests || s.o.Duration > 0 && now >= s.o.Duration
}

// Over tells whether the run is complete: nothing is in flight and nothing will be sent.
func (s *Schedule) Over(now time.Duration) bool {
	return len(s.flying) == 0 && (s.stopped(now) || s.over && s.ready.Len() == 0)
}

// Flying is how many requests were sent and have not ended.
func (s *Schedule) Flying() int { return len(s.flying) }

// Stop ends the run early: nothing is sent any more.
func (s *Schedule) Stop() { s.ended = true }

// begin starts the next unit of the workload at a time.
func (s *Schedule) begin(at time.Duration, slot bool) {
	u := &s.graph.units[s.unit]
	l := &live{unit: u, number: s.started, play: s.play, left: len(u.requests), root: u.root, slot: slot}
	s.started++
	if s.unit++; s.unit == len(s.graph.units) {
		s.unit = 0
		s.play++
		s.over = !s.o.Recycle
	}
	for i, r := range u.requests {
		n := &s.graph.nodes[r]
		waits := s.waits(l, n)
		switch {
		case l.skips(n):
			if l.left--; n.root {
				l.root--
			}
			continue
		case waits == 0:
			e := entry{at: at + n.wait, request: r, live: l}
			if len(n.after) > 0 { // all that it waits for is left out
				e.at = at
			}
			heap.Push(&s.ready, e)
			continue
		}
		if l.waits == nil {
			l.waits, l.since = make([]int, len(u.requests)), make([]time.Duration, len(u.requests))
		}
		l.waits[i] = waits
	}
}

// skips tells whether a request is left out in this play.
func (l *live) skips(n *node) bool { return n.early && l.play == 0 }

// waits is how many of those that a request waits for are sent in this play.
func (s *Schedule) waits(l *live, n *node) (sent int) {
	for _, a := range n.after {
		if !l.skips(&s.graph.nodes[a]) {
			sent++
		}
	}
	return sent
}

func (s *Schedule) send(e entry) Send {
	out := Send{Seq: s.sent, Request: e.request, Play: e.live.play, Unit: e.live.number, Sched: e.at}
	s.flying[s.sent] = flight{e.live, e.request}
	s.sent++
	return out
}

// Done says that a request has ended, well or not; what waited for it may be sent then.
func (s *Schedule) Done(seq int, now time.Duration) {
	f, ok := s.flying[seq]
	if !ok {
		return
	}
	delete(s.flying, seq)
	l, n := f.live, &s.graph.nodes[f.request]
	for _, r := range n.before {
		m := &s.graph.nodes[r]
		if l.skips(m) {
			continue
		}
		l.waits[m.place]--
		l.since[m.place] = max(l.since[m.place], now)
		if l.waits[m.place] == 0 {
			heap.Push(&s.ready, entry{at: l.since[m.place] + m.wait, request: r, live: l})
		}
	}
	l.left--
	if n.root {
		l.root--
	}
	switch {
	case s.o.Mode == Concurrency:
		s.release(now)
	case l.slot && (l.left == 0 || s.o.Mode == Sessions && l.root == 0):
		l.slot = false
		s.release(now)
	}
}

// release gives a slot back. Slots that open later stay behind it.
func (s *Schedule) release(now time.Duration) {
	at, _ := slices.BinarySearch(s.free, now+1)
	s.free = slices.Insert(s.free, at, now)
}

// entry is a request with the time at which it is wanted.
type entry struct {
	at      time.Duration
	request int
	live    *live
}

// readyQueue orders by time, then by unit and place in the workload.
type readyQueue []entry

func (q readyQueue) due(now time.Duration) bool { return len(q) > 0 && q[0].at <= now }

func (q readyQueue) Len() int { return len(q) }

func (q readyQueue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.at != b.at {
		return a.at < b.at
	}
	if a.live.number != b.live.number {
		return a.live.number < b.live.number
	}
	return a.request < b.request
}

func (q readyQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *readyQueue) Push(x any) { *q = append(*q, x.(entry)) }

func (q *readyQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}
