package runner

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// side is a goroutine on which a rank's device works while the rank's loop attends to
// what comes in. The answer to a peer that wants blocks, or has them, must not wait
// for the end of a long prefill.
type side struct {
	work  chan func()
	ended chan *panicked // of each work, nil = in good order
}

func newSide(d Device) *side {
	s := &side{work: make(chan func()), ended: make(chan *panicked, 1)}
	go s.run(d)
	return s
}

// joiner is a device some of whose work the calling thread does.
type joiner interface{ JoinThreads() }

// joinThreads makes the goroutine's thread one of the device's, to its end.
func joinThreads(d Device) {
	runtime.LockOSThread()
	if j, ok := d.(joiner); ok {
		j.JoinThreads()
	}
}

// begin is called by a rank's loop at its start. Without peers its own thread runs the
// steps.
func (r *rank) begin() {
	if r.transport == nil {
		joinThreads(r.device)
	}
}

func (s *side) run(d Device) {
	joinThreads(d)
	defer close(s.ended)
	for f := range s.work {
		s.ended <- try(f)
	}
}

// close waits for the work that runs.
func (s *side) close() {
	if s == nil {
		return
	}
	close(s.work)
	for range s.ended { //nolint:revive // what it ended with is of no use any more
	}
}

// try runs f and returns what it panicked with.
func try(f func()) (p *panicked) {
	defer func() {
		if v := recover(); v != nil {
			p = &panicked{value: v, stack: debug.Stack()}
		}
	}()
	f()
	return nil
}

// panicked is a panic on its way to the goroutine that answers for it.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprint(p.value) }

// again panics with it.
func (p *panicked) again() {
	panic(fmt.Sprintf("%v\n\nwhere the step ran:\n%s", p.value, p.stack))
}

// during runs work of the device, which takes a step's time. If the rank has peers
// the work runs beside the loop, which attends to them.
func (r *rank) during(work func()) {
	if r.transport == nil {
		work()
		return
	}
	if r.side == nil {
		r.side = newSide(r.device)
	}
	r.side.work <- work
	if p := attending(r, r.side.ended); p != nil {
		p.again()
	}
}

// attending attends to what comes in until ended has something.
func attending[T any](r *rank, ended <-chan T) T {
	for {
		select {
		case v := <-ended:
			return v
		case <-r.wake:
			r.attend()
		}
	}
}
