package runner

import (
	"context"
	"sync"

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
	stream *Stream

	refused *request.Error // written before done is closed
	done    chan struct{}
}

// abort asks the core to end a hand-over; the answer goes to reply.
type abort struct {
	id    transfer.ID
	reply chan executor.AbortState
}

// inbox is the mailbox of the engine goroutine. Senders never wait for it. The
// three kinds are kept apart because cancels overtake new requests.
type inbox struct {
	mu      sync.Mutex
	cancels []request.ID
	aborts  []abort
	events  []any // transfer messages, in order of arrival
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
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return true
}

// mail is what one visit to the inbox found. Its slices are reused.
type mail struct {
	cancels []request.ID
	aborts  []abort
	events  []any
	new     []*submission
}

// take moves everything into m, which is overwritten.
func (in *inbox) take(m *mail) {
	in.mu.Lock()
	defer in.mu.Unlock()
	m.cancels, in.cancels = in.cancels, m.cancels[:0]
	m.aborts, in.aborts = in.aborts, m.aborts[:0]
	m.events, in.events = in.events, m.events[:0]
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
	return mail{cancels: in.cancels, aborts: in.aborts, events: in.events, new: in.new}
}
