package kvcache

import "tandem/engine/blockhash"

// Level names the memory that content is in, the fastest first.
type Level uint8

// The levels. Content is in the device's blocks or in the host's slots, never in
// both. A file is kept while the content is above as well; it is told of by its
// highest place only.
const (
	Device Level = iota
	Host
	Disk
	Nowhere Level = 255
)

// Tiers sizes what is below the device. The zero value is no tier.
type Tiers struct {
	HostBlocks int
	DiskBlocks int // needs HostBlocks: what goes to disk was in a slot before
	// MinPriority is what evicted content must at least have to be kept.
	MinPriority uint8
}

// MoveKind says from where to where content goes.
type MoveKind uint8

// The kinds of moves.
const (
	Offload  MoveKind = iota // a device block to a host slot
	Onboard                  // a host slot to a device block
	Spill                    // a host slot to a file; the slot keeps it
	Load                     // a file to a device block
	Erase                    // the file goes
	EraseAll                 // all files go
)

// Move is an order to copy content between tiers. Moves must take effect in the
// order of being ordered where they concern the same block, slot or file. An
// Offload must have read its block before anything writes to that: the rows,
// copies and pulls that were planned with it, and later moves. What is copied
// from a slot whose Offload failed has failed too.
type Move struct {
	Job      uint64 // to report by Moved; 0 = no report is wanted
	Kind     MoveKind
	Block    int32          // of the device, for Offload, Onboard and Load
	Slot     int32          // of the host, for Offload, Onboard and Spill
	Hash     blockhash.Hash // of the content
	Parent   blockhash.Hash
	Priority uint8 // of a Spill: what a later process is to know
}

// job is a move under way.
type job struct {
	Move
	worth
	file  int32  // its slot on disk, for Spill and Load
	epoch uint32 // when it was ordered
}

// maxSpills bounds the files that are being written at a time.
const maxSpills = 16

// maxSpared bounds how many blocks an eviction passes over.
const maxSpared = 64

// tiers is the state of what is below the device.
type tiers struct {
	Tiers
	host, disk *shelf
	off        bool // the disk is neither read nor written at present
	jobs       map[uint64]job
	last       uint64 // job number
	moves      []Move // not fetched yet
	inbound    int    // device blocks that content is on its way to
	spilling   int
	one        []int32 // scratch
	stats      TierStats
}

// TierStats counts blocks since the start, and those in the tiers now.
type TierStats struct {
	Host, Disk   int // blocks with content now
	HostTotal    int // slots
	Offloaded    uint64
	Onboarded    uint64
	Spilled      uint64
	Loaded       uint64
	HostEvicted  uint64 // content that left the host for want of room and is in no file
	DiskEvicted  uint64 // files that were erased for want of room
	FailedMoves  uint64
	BadFiles     uint64 // of FailedMoves: files that did not hold what they should
	DiskSuspends uint64 // times at which the disk was left alone for a while
}

func newTiers(cfg Tiers) *tiers {
	if cfg.HostBlocks <= 0 {
		return nil
	}
	return &tiers{Tiers: cfg, host: newShelf(cfg.HostBlocks), disk: newShelf(cfg.DiskBlocks), jobs: map[uint64]job{}}
}

// shelves returns the tiers, the last of which may be nil.
func (t *tiers) shelves() [2]*shelf { return [2]*shelf{t.host, t.disk} }

// TierStats returns the counts of the lower tiers.
func (m *Manager) TierStats() TierStats {
	if m.tiers == nil {
		return TierStats{}
	}
	st := m.tiers.stats
	st.Host, st.Disk, st.HostTotal = m.tiers.host.used(), m.tiers.disk.used(), m.tiers.host.limit
	return st
}

// TakeMoves appends the moves that were ordered since the last call to dst.
func (m *Manager) TakeMoves(dst []Move) []Move {
	if m.tiers == nil {
		return dst
	}
	dst = append(dst, m.tiers.moves...)
	m.tiers.moves = m.tiers.moves[:0]
	return dst
}

// Moving returns how many moves have not been reported.
func (m *Manager) Moving() int {
	if m.tiers == nil {
		return 0
	}
	return len(m.tiers.jobs)
}

// InboundBlocks returns how many blocks wait for their content.
func (m *Manager) InboundBlocks() int {
	if m.tiers == nil {
		return 0
	}
	return m.tiers.inbound
}

// Inbound reports whether the content of block id is still on its way to it.
func (m *Manager) Inbound(id int32) bool { return m.blocks[id].inbound }

// Level returns where the content of h is.
func (m *Manager) Level(h blockhash.Hash) Level {
	if _, ok := m.index[h]; ok {
		return Device
	}
	if m.tiers == nil {
		return Nowhere
	}
	if _, ok := m.tiers.host.find(h); ok {
		return Host
	}
	if _, ok := m.tiers.disk.find(h); ok {
		return Disk
	}
	return Nowhere
}

// SuspendDisk leaves the disk alone until ResumeDisk: nothing is read or written,
// and its content is not found. What is under way goes on.
func (m *Manager) SuspendDisk() {
	if m.tiers != nil && !m.tiers.off {
		m.tiers.off = true
		m.tiers.stats.DiskSuspends++
	}
}

// ResumeDisk ends SuspendDisk.
func (m *Manager) ResumeDisk() {
	if m.tiers != nil {
		m.tiers.off = false
		m.spillAhead()
	}
}

// File is the content of a block that a file holds.
type File struct {
	Hash, Parent blockhash.Hash
	Priority     uint8
}

// Restore enters files that were found at the start, the least recently used
// first. Of more than fit the first are erased. Call it before anything else.
func (m *Manager) Restore(files []File) {
	t := m.tiers
	if t == nil || t.disk == nil {
		return
	}
	for _, f := range files {
		if _, ok := t.disk.find(f.Hash); ok {
			continue
		}
		slot, ok := m.fileRoom(f.Priority, f.Parent)
		if !ok {
			t.order(job{Move: Move{Kind: Erase, Hash: f.Hash}})
			continue
		}
		t.disk.put(slot, f.Parent, f.Hash, worth{own: min(f.Priority, maxPriority)})
		t.disk.done(slot)
	}
}

// order queues a move. Erase and EraseAll are not reported.
func (t *tiers) order(j job) {
	if j.Kind < Erase {
		t.last++
		j.Job = t.last
		t.jobs[j.Job] = j
	}
	t.moves = append(t.moves, j.Move)
}

// evict forgets the content of a device block that is about to get other
// content, or sends it to the host.
func (m *Manager) evict(id int32) {
	b := &m.blocks[id]
	w := b.worth
	m.unindex(id)
	m.evicted++
	m.offload(id, w)
	m.changed(b.hash, Device)
}

func (m *Manager) offload(id int32, w worth) {
	t, b := m.tiers, &m.blocks[id]
	if t == nil || b.priority < t.MinPriority {
		return
	}
	m.spareHeads(b.priority)
	slot, lost, dropped, ok := t.host.room(b.priority)
	if dropped {
		m.lostFromHost(lost)
	}
	if !ok {
		return
	}
	t.host.put(slot, b.parent, b.hash, w)
	t.host.done(slot)
	t.stats.Offloaded++
	t.order(job{Move: Move{Kind: Offload, Block: id, Slot: slot, Hash: b.hash, Parent: b.parent}, epoch: m.epoch})
	to := &t.host.blocks[slot]
	to.ref++
	to.key = t.last
}

// spareHeads lets the host keep what has no file yet and files build on, which would
// be of no use without: it becomes the newest, and something else goes if there is any.
func (m *Manager) spareHeads(p uint8) {
	t := m.tiers
	if t.disk == nil || t.host.spare() > 0 {
		return
	}
	for range maxSpared {
		slot, ok := t.host.victim(p)
		if !ok {
			return
		}
		b := &t.host.blocks[slot]
		_, filed := t.disk.find(b.hash)
		if filed || t.disk.kids.first(b.hash) < 0 && t.host.kids.first(b.hash) < 0 { // a kid here is being written
			return
		}
		t.host.rank(slot, b.priority)
		t.host.raiseAncestors(b.parent, b.priority, true)
	}
}

// lostFromHost tells that content had to leave the host.
func (m *Manager) lostFromHost(h blockhash.Hash) {
	if m.Level(h) == Nowhere {
		m.tiers.stats.HostEvicted++
	}
	m.changed(h, Host)
}

// spillAhead writes what the host has and no file holds, as fast as the disk can,
// so that what the host gives up later costs neither a wait nor the content. Half
// of the slots stay free of moves, for what is evicted meanwhile.
func (m *Manager) spillAhead() {
	t := m.tiers
	if t.disk == nil || t.off {
		return
	}
	for t.spilling < min(maxSpills, max(1, t.host.limit/2)) {
		slot := t.host.nextUnfiled()
		if slot < 0 {
			return
		}
		t.host.setUnfiled(slot, false)
		m.spill(slot)
	}
}

// spill orders a file, unless there is one or nothing on the disk matters less. It
// is not tried again while the content stays, lest two write in turn over each other.
func (m *Manager) spill(slot int32) {
	t := m.tiers
	b := &t.host.blocks[slot]
	if _, filed := t.disk.find(b.hash); filed || b.priority < t.MinPriority {
		return
	}
	file, ok := m.fileRoom(b.priority, b.parent)
	if !ok {
		return
	}
	t.host.pin(slot)
	t.spilling++
	t.order(job{Move: Move{Kind: Spill, Slot: slot, Hash: b.hash, Parent: b.parent, Priority: b.lasting()}, worth: b.worth, file: file, epoch: m.epoch})
}

// fileRoom takes a slot on disk for content that follows parent, and erases the file
// that is there. What the content builds on stays: without it the file is of no use.
func (m *Manager) fileRoom(p uint8, parent blockhash.Hash) (int32, bool) {
	t := m.tiers
	if t.disk.spare() == 0 {
		if old, ok := t.disk.victim(p); ok && m.buildsOn(parent, t.disk.blocks[old].hash) {
			return -1, false
		}
	}
	slot, lost, dropped, ok := t.disk.room(p)
	if dropped {
		t.stats.DiskEvicted++
		t.order(job{Move: Move{Kind: Erase, Hash: lost}})
		if m.Level(lost) == Nowhere { // else it is above too
			m.changed(lost, Disk)
		}
	}
	return slot, ok
}

// buildsOn reports whether the chain that ends in h has x, as far as it is here.
func (m *Manager) buildsOn(h, x blockhash.Hash) bool {
	for h != x {
		if slot, ok := m.tiers.host.find(h); ok {
			h = m.tiers.host.blocks[slot].parent
		} else if slot, ok := m.tiers.disk.find(h); ok {
			h = m.tiers.disk.blocks[slot].parent
		} else if id, ok := m.index[h]; ok {
			h = m.blocks[id].parent
		} else {
			return false
		}
	}
	return true
}

// changed tells readers of events where the content of h is now that was at a level.
func (m *Manager) changed(h blockhash.Hash, was Level) {
	switch now := m.Level(h); now {
	case was:
	case Nowhere:
		m.tell(change{kind: Removed, block: h})
	default:
		m.tell(change{kind: Updated, block: h, was: was, level: now})
	}
}
