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
	Updated EventKind = "updated" // the only one of Blocks is at another level
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
	Level    Level    // Stored, Updated: where Blocks are
	Was      Level    // Updated: where it was
	Pools    []int    // Created: blocks of each level
}

// change is what happened to one block, or to all.
type change struct {
	kind          EventKind
	parent, block blockhash.Hash
	priority      uint8
	was, level    Level
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
func (e *Events) add(c change, epoch uint32) {
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
		if last.joins(&c, epoch) {
			last.Blocks = append(last.Blocks, c.block.Wire())
			return
		}
	}
	if e.unread++; e.unread > e.limit {
		e.awake.Store(false)
		e.ring = nil
		return
	}
	e.ring[e.next%uint64(e.limit)] = c.event(e.next, epoch)
	e.next++
	if e.next-e.first > uint64(e.limit) {
		e.first++
	}
}

// event makes an event of one change.
func (c *change) event(id uint64, epoch uint32) Event {
	ev := Event{ID: id, Epoch: epoch, Kind: c.kind}
	if c.kind != Cleared {
		ev.Blocks, ev.Priority, ev.Level, ev.Was = []uint64{c.block.Wire()}, c.priority, c.level, c.was
	}
	if c.kind == Stored {
		ev.Parent = c.parent.Wire()
	}
	return ev
}

func (ev *Event) joins(c *change, epoch uint32) bool {
	if ev.Kind != c.kind || ev.Epoch != epoch || len(ev.Blocks) >= eventBlocks || ev.Level != c.level || ev.Was != c.was {
		return false
	}
	switch c.kind {
	case Removed:
		return true
	case Stored:
		return ev.Priority == c.priority && ev.Blocks[len(ev.Blocks)-1] == c.parent.Wire()
	}
	return false
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
	out := []Event{{Kind: Created, Epoch: m.epoch, Pools: m.pools()}}
	var todo []change
	visit := func(c change) {
		if m.Level(c.parent) != Nowhere {
			return // its parent brings it along
		}
		for todo = append(todo[:0], c); len(todo) > 0; {
			c := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if last := &out[len(out)-1]; last.joins(&c, m.epoch) {
				last.Blocks = append(last.Blocks, c.block.Wire())
			} else {
				out = append(out, c.event(0, m.epoch))
			}
			todo = m.children(todo, c.block)
		}
	}
	for i := range m.blocks {
		if b := &m.blocks[i]; b.indexed {
			visit(b.stored(Device))
		}
	}
	m.eachBelow(func(b *block, l Level) { visit(b.stored(l)) })
	for i := range out {
		out[i].ID = next - uint64(len(out)-i)
	}
	return out
}

// stored describes the content of a block as that of a level.
func (b *block) stored(l Level) change {
	return change{kind: Stored, parent: b.parent, block: b.hash, priority: b.priority, level: l}
}

// pools are the sizes of the levels there are.
func (m *Manager) pools() []int {
	out := []int{len(m.blocks)}
	if t := m.tiers; t != nil {
		out = append(out, t.host.limit)
		if t.disk != nil {
			out = append(out, t.disk.limit)
		}
	}
	return out
}

// eachBelow yields the content whose highest place is below the device.
func (m *Manager) eachBelow(yield func(*block, Level)) {
	if m.tiers == nil {
		return
	}
	for l, s := range [...]*shelf{Host: m.tiers.host, Disk: m.tiers.disk} {
		if s == nil {
			continue
		}
		for i := range s.blocks {
			if b := &s.blocks[i]; b.indexed && m.Level(b.hash) == Level(l) {
				yield(b, Level(l))
			}
		}
	}
}

// children appends what follows h, each at its highest place.
func (m *Manager) children(to []change, h blockhash.Hash) []change {
	for kid := m.kids.first(h); kid >= 0; kid = m.kids.next[kid] {
		to = append(to, m.blocks[kid].stored(Device))
	}
	if m.tiers == nil {
		return to
	}
	for l, s := range [...]*shelf{Host: m.tiers.host, Disk: m.tiers.disk} {
		if s == nil {
			continue
		}
		for kid := s.kids.first(h); kid >= 0; kid = s.kids.next[kid] {
			if b := &s.blocks[kid]; m.Level(b.hash) == Level(l) {
				to = append(to, b.stored(Level(l)))
			}
		}
	}
	return to
}

// tell records a change.
func (m *Manager) tell(c change) {
	if m.events != nil {
		m.events.add(c, m.epoch)
	}
}
