package runner

import (
	"context"
	"sync"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// submission is a request on its way to the core. done is closed once the core
// has taken it or, with refused set, has not.
type submission struct {
	ctx    context.Context // the submitter's; ended means nobody waits for the answer
	req    *request.Request
	handle *transfer.Handle
	opaque []byte // encoded handle
	stream *Stream

	ended   int            // choices of a request on another process's rank
	refused *request.Error // written before done is closed
	done    chan struct{}
}

// submit gives a request to the core of the rank and notes whether that refused
// it. h is the handle to pull by, nil = none.
func (r *rank) submit(now time.Duration, s *submission, h *transfer.Handle) {
	r.addSink(s.req.ID, s.stream)
	r.core.Submit(now, s.req, h)
	if s.ctx.Err() != nil { // its cancel came with it and found nothing yet
		r.core.Cancel(now, s.req.ID)
	}
	r.carry()
	s.refused = s.stream.refused()
}

// abort asks the core to end a hand-over; the answer goes to reply.
type abort struct {
	id    transfer.ID
	reply chan executor.AbortState
}

// inbox is the mailbox of the goroutine that takes requests. Senders never wait
// for it. The kinds are kept apart because cancels overtake new requests.
type inbox struct {
	mu      sync.Mutex
	cancels []request.ID
	aborts  []abort
	new     []*submission
	closed  bool

	// wake has a token whenever something was put in since the last take.
	wake chan struct{}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// put runs add under the lock and wakes the engine; false when it has stopped.
func (in *inbox) put(add func(*inbox)) bool {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return false
	}
	add(in)
	in.mu.Unlock()
	in.rouse()
	return true
}

// rouse ends the wait of the goroutine that reads the inbox.
func (in *inbox) rouse() { nudge(in.wake) }

// nudge puts a token into wake, which has room for one.
func nudge(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default: // it will wake anyway
	}
}

// mail is what one visit to the inbox found. Its slices are reused.
type mail struct {
	cancels []request.ID
	aborts  []abort
	new     []*submission
}

// take moves everything into m, which is overwritten.
func (in *inbox) take(m *mail) {
	in.mu.Lock()
	defer in.mu.Unlock()
	m.cancels, in.cancels = in.cancels, m.cancels[:0]
	m.aborts, in.aborts = in.aborts, m.aborts[:0]
	m.new, in.new = in.new, m.new[:0]
}

// takeCancels moves only cancels and aborts into m.
func (in *inbox) takeCancels(m *mail) {
	in.mu.Lock()
	defer in.mu.Unlock()
	m.cancels, in.cancels = in.cancels, m.cancels[:0]
	m.aborts, in.aborts = in.aborts, m.aborts[:0]
}

// close refuses further mail and returns what was left.
func (in *inbox) close() mail {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	return mail{cancels: in.cancels, aborts: in.aborts, new: in.new}
}
