package des

import "time"

// event is something that happens at a time; those of one time happen in the
// order in which they were made.
type event struct {
	at time.Duration
	n  uint64
	do func()
}

// agenda is a heap of events.
type agenda struct {
	heap []event
	n    uint64
}

func (a *agenda) before(i, j int) bool {
	x, y := &a.heap[i], &a.heap[j]
	return x.at < y.at || x.at == y.at && x.n < y.n
}

func (a *agenda) add(at time.Duration, do func()) {
	a.n++
	a.heap = append(a.heap, event{at: at, n: a.n, do: do})
	for i := len(a.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.before(i, up) {
			break
		}
		a.heap[i], a.heap[up] = a.heap[up], a.heap[i]
		i = up
	}
}

// take removes the first event. The agenda must not be empty.
func (a *agenda) take() event {
	first, last := a.heap[0], len(a.heap)-1
	a.heap[0] = a.heap[last]
	a.heap[last] = event{}
	a.heap = a.heap[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if a.before(c, least) {
				least = c
			}
		}
		if least == i {
			return first
		}
		a.heap[i], a.heap[least] = a.heap[least], a.heap[i]
		i = least
	}
}
