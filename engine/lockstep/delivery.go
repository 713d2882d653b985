package lockstep

import (
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Arrival is a new request as all ranks get to know it.
type Arrival struct {
	Item   adprouter.Item
	Prompt []int32
	Salt   string
	// HandOver: the request brings a handle of its own to pull by.
	HandOver bool
	// Body is the driver's: whatever the rank that takes the request needs.
	Body any
	// Bytes is the size in a payload, as the driver reckons it; rank 0 knows it.
	Bytes int
	// Heard is when this rank got the request, on its own clock.
	Heard time.Duration

	// Deadline of the request on rank 0's clock, 0 = none, and the handle of a
	// hand-over, nil = none. Rank 0 knows them; elsewhere they are not set.
	Deadline time.Duration
	Handle   *transfer.Handle
}

// Removal takes a request out of the queue or, with the code Cancelled, ends it
// wherever it is.
type Removal struct {
	ID   request.ID
	Code request.Code
}

// Lent is a rank's answer to a move away from it: what can be pulled, nil if
// nothing is cached any more.
type Lent struct {
	ID     request.ID
	Handle *transfer.Handle
}

// Moved says how the copy for a moved conversation ended.
type Moved struct {
	Key string
	OK  bool
	// Request is the one whose blocks were lent, 0 = none. The lender ends the loan
	// unless it was Pulled, which did.
	Request request.ID
	Pulled  bool
}

// Delivery is one rank's payload of an iteration.
type Delivery struct {
	// Of rank 0.
	New      []*Arrival
	Removals []Removal
	Aborts   []transfer.ID
	Drain    bool
	// Of any rank.
	Matches []adprouter.Match
	Lent    []Lent
	Moved   []Moved
}

// Empty reports whether there is nothing to deliver.
func (d *Delivery) Empty() bool {
	return len(d.New)+len(d.Removals)+len(d.Aborts)+len(d.Matches)+len(d.Lent)+len(d.Moved) == 0 && !d.Drain
}

// split divides a delivery in what goes now and what follows, since the requests
// have more than limit bytes (0 = no limit). What ends a request follows with it,
// and the drain comes after the last.
func (d *Delivery) split(limit int) (now, later Delivery) {
	n, bytes := 0, 0
	for n < len(d.New) && (n == 0 || limit == 0 || bytes+d.New[n].Bytes <= limit) {
		bytes += d.New[n].Bytes
		n++
	}
	if now = *d; n == len(d.New) {
		return now, Delivery{}
	}
	later = Delivery{New: d.New[n:], Drain: d.Drain}
	stays := make(map[request.ID]bool, len(later.New))
	for _, a := range later.New {
		stays[a.Item.ID] = true
	}
	now.New, now.Drain, now.Removals = d.New[:n:n], false, nil
	for _, r := range d.Removals {
		if stays[r.ID] {
			later.Removals = append(later.Removals, r)
		} else {
			now.Removals = append(now.Removals, r)
		}
	}
	return now, later
}

// Taken is a request that came to this rank: the driver submits it to the core
// in the same iteration, with Lent if the request itself has no handle.
type Taken struct {
	*Arrival
	Placed adprouter.Placed
	Lent   *transfer.Handle // blocks of its conversation on another rank
}

// Fates is what the driver has to answer for, besides the core's effects.
type Fates struct {
	// Ended are requests that this rank answers for and that never reached a
	// core: on rank 0 those in the queue, on others those whose move was under way.
	Ended []Removal
	// Aborts answers this rank's part of every abort that was delivered.
	Aborts []Abort
	// KeepAlives asks for one KEEPALIVE to the ctx worker of each handle.
	KeepAlives []*transfer.Handle
}

// Abort is the state that one rank found for an abort.
type Abort struct {
	ID    transfer.ID
	State executor.AbortState
}
