package kvcache

import (
	"sync"
	"sync/atomic"

	"tandem/engine/blockhash"
)

// EventKind says what an Event tells.
type EventKind string

// The kinds of events.
const (
	Created EventKind = "created" // the whole index follows, from nothing
	Stored  EventKind = "stored"  // Blocks, each the child of the one before
	Removed EventKind = "removed" // Blocks, in any relation
	Cleared EventKind = "cleared" // everything
)

// Event is one change of a pool's index. It is not changed once it was read.
type Event struct {
	ID       uint64 // of this pool, without holes
	Gap      bool   // of a Created: its reader had lost events; the pool leaves it to who serves them
	Epoch    uint32 // resets of the pool so far, this one included
	Kind     EventKind
	Parent   uint64   // Stored: wire id of what Blocks[0] follows, of the chain's root for a first block
	Blocks   []uint64 // wire ids
	Priority uint8    // Stored: retention priority of all Blocks at that time
	Pool     int      // Created: blocks in the pool
}

// eventBlocks is how many blocks one event tells of at most.
const eventBlocks = 32

// Events keeps the last changes of one pool's index for readers. The owner of
// the pool writes, everyone may read. It costs nothing while nobody does: it
// begins to record with a Snapshot, and stops when a whole buffer was filled
// without a read.
type Events struct {
	limit int
	awake atomic.Bool // changes are recorded

	mu     sync.Mutex
	ring   []Event // of event id at id % limit; nil while asleep
	first  uint64  // oldest event in ring
	next   uint64  // id of the next event
	frozen uint64  // events below it may have been read
	unread int     // events since the last read
	waits  chan struct{}
}

// newEvents makes the buffer of a pool. A snapshot is numbered backwards from the
// present, so ids begin where there is room for one.
func newEvents(limit, blocks int) *Events {
	at := uint64(blocks) + 2
	return &Events{limit: limit, first: at, next: at}
}

// Read returns the events from id from on, at most limit of them, and the id to
// go on from. Without any, changed is closed when there is one. ok is false when
// that event is not here, be it lost or not recorded: take a Snapshot, which also
// begins to record.
func (e *Events) Read(from uint64, limit int) (out []Event, next uint64, changed <-chan struct{}, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.awake.Load() || from < e.first || from > e.next {
		return nil, e.next, nil, false
	}
	e.unread = 0
	for next = from; next < e.next && len(out) < limit; next++ {
		out = append(out, e.ring[next%uint64(e.limit)])
	}
	e.frozen = max(e.frozen, next)
	if len(out) > 0 {
		return out, next, nil, true
	}
	if e.waits == nil {
		e.waits = make(chan struct{})
	}
	return nil, next, e.waits, true
}

// Next is the id of the event that comes next.
func (e *Events) Next() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next
}

// add records a change: of one block, or of all when kind is Cleared. A block
// that carries on the last event joins it, unless that was read already.
func (e *Events) add(kind EventKind, epoch uint32, parent, block uint64, priority uint8) {
	if !e.awake.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waits != nil {
		close(e.waits)
		e.waits = nil
	}
	if e.next > e.first && e.next-1 >= e.frozen {
		last := &e.ring[(e.next-1)%uint64(e.limit)]
		if last.joins(kind, epoch, parent, priority) {
			last.Blocks = append(last.Blocks, block)
			return
		}
	}
	if e.unread++; e.unread > e.limit {
		e.awake.Store(false)
		e.ring = nil
		return
	}
	ev := Event{ID: e.next, Epoch: epoch, Kind: kind}
	switch kind {
	case Stored:
		ev.Parent, ev.Blocks, ev.Priority = parent, []uint64{block}, priority
	case Removed:
		ev.Blocks = []uint64{block}
	}
	e.ring[e.next%uint64(e.limit)] = ev
	e.next++
	if e.next-e.first > uint64(e.limit) {
		e.first++
	}
}

func (ev *Event) joins(kind EventKind, epoch uint32, parent uint64, priority uint8) bool {
	if ev.Kind != kind || ev.Epoch != epoch || len(ev.Blocks) >= eventBlocks {
		return false
	}
	return kind == Removed || kind == Stored && ev.Priority == priority && ev.Blocks[len(ev.Blocks)-1] == parent
}

// wake begins to record, if that has not begun, and returns the id of the next event.
func (e *Events) wake() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unread, e.frozen = 0, e.next
	if !e.awake.Load() {
		e.ring, e.first = make([]Event, e.limit), e.next
		e.awake.Store(true)
	}
	return e.next
}

// Events returns the record of the pool's changes, nil without Config.Events.
func (m *Manager) Events() *Events { return m.events }

// Snapshot returns the index as events: Created, then all blocks, parents before
// children. What changes from now on has the ids that follow. Nil without
// Config.Events.
func (m *Manager) Snapshot() []Event {
	if m.events == nil {
		return nil
	}
	next := m.events.wake()
	out := []Event{{Kind: Created, Epoch: m.epoch, Pool: len(m.blocks)}}
	var todo []int32
	for i := range m.blocks {
		b := &m.blocks[i]
		if !b.indexed {
			continue
		}
		if _, ok := m.index[b.parent]; ok {
			continue // its parent brings it along
		}
		for todo = append(todo[:0], int32(i)); len(todo) > 0; {
			id := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			out = m.appendStored(out, &m.blocks[id])
			for kid := m.kids.first(m.blocks[id].hash); kid >= 0; kid = m.kids.next[kid] {
				todo = append(todo, kid)
			}
		}
	}
	for i := range out {
		out[i].ID = next - uint64(len(out)-i)
	}
	return out
}

func (m *Manager) appendStored(out []Event, b *block) []Event {
	parent, hash := b.parent.Wire(), b.hash.Wire()
	last := &out[len(out)-1]
	if last.joins(Stored, m.epoch, parent, b.priority) {
		last.Blocks = append(last.Blocks, hash)
		return out
	}
	return append(out, Event{Kind: Stored, Epoch: m.epoch, Parent: parent, Blocks: []uint64{hash}, Priority: b.priority})
}

// tell records a change of one block, or of all.
func (m *Manager) tell(kind EventKind, parent, hash blockhash.Hash, priority uint8) {
	if m.events != nil {
		m.events.add(kind, m.epoch, parent.Wire(), hash.Wire(), priority)
	}
}
