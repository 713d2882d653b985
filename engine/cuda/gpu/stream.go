//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"time"
	"unsafe"

	"gorgonia.org/cu"
)

// Stream is a queue of work: what is in it runs in order, beside other streams.
type Stream struct {
	h   cu.Stream
	dev *Device
}

// NewStream makes a stream that does not wait for the null stream. Streams of lower priority
// numbers go first: 0 is the usual one, negative numbers are more urgent; the driver limits them to
// its range.
func (d *Device) NewStream(priority int) (*Stream, error) {
	h, err := cu.MakeStreamWithPriority(priority, cu.NonBlocking)
	if err != nil {
		return nil, wrap(err, "make a stream")
	}
	return &Stream{h: h, dev: d}, nil
}

// Device is the one that the stream belongs to.
func (s *Stream) Device() *Device { return s.dev }

// Handle is the driver's CUstream, for libraries.
func (s *Stream) Handle() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&s.h)) }

func (s *Stream) c() C.CUstream { return C.CUstream(s.Handle()) }

// Sync waits until everything in the stream is done. Errors of kernels appear here.
func (s *Stream) Sync() error { return wrap(s.h.Synchronize(), "wait for a stream") }

// Done tells, without waiting, whether everything in the stream is done.
func (s *Stream) Done() (bool, error) {
	err := wrap(s.h.Query(), "query a stream")
	if isNotReady(err) {
		return false, nil
	}
	return err == nil, err
}

// Wait lets later work of the stream start only after what e recorded last. The host does not wait.
func (s *Stream) Wait(e *Event) error {
	return wrap(s.h.Wait(e.h, 0), "let a stream wait for an event")
}

// Free gives the stream back; work in it still runs.
func (s *Stream) Free() error { return wrap(s.h.Destroy(), "free a stream") }

// EventKind says what an event can do; kinds are added.
type EventKind uint8

const (
	// Timing lets [Event.Since] measure.
	Timing EventKind = 1 << iota
	// Sleeping lets [Event.Sync] sleep instead of spinning: later by some ten microseconds, but the
	// CPU is free.
	Sleeping
)

// Event marks a point of a stream.
type Event struct{ h cu.Event }

// NewEvent makes an event that counts as done until it is recorded.
func (d *Device) NewEvent(kind EventKind) (*Event, error) {
	flags := cu.DefaultEvent
	if kind&Timing == 0 {
		flags |= cu.DisableTiming
	}
	if kind&Sleeping != 0 {
		flags |= cu.BlockingSyncEvent
	}
	h, err := cu.MakeEvent(flags)
	if err != nil {
		return nil, wrap(err, "make an event")
	}
	return &Event{h}, nil
}

// Record marks the present end of the stream, in place of what e marked before.
func (s *Stream) Record(e *Event) error { return wrap(e.h.Record(s.h), "record an event") }

// Sync waits until the mark is reached.
func (e *Event) Sync() error { return wrap(e.h.Synchronize(), "wait for an event") }

// Done tells, without waiting, whether the mark is reached.
func (e *Event) Done() (bool, error) {
	err := wrap(e.h.Query(), "query an event")
	if isNotReady(err) {
		return false, nil
	}
	return err == nil, err
}

// Since is the time on the device from start to e; both are of kind [Timing] and done. Its
// resolution is about half a microsecond.
func (e *Event) Since(start *Event) (time.Duration, error) {
	ms, err := start.h.Elapsed(e.h)
	return time.Duration(ms * float64(time.Millisecond)), wrap(err, "measure between two events")
}

// Free gives the event back.
func (e *Event) Free() error { return wrap(cu.DestroyEvent(&e.h), "free an event") }
