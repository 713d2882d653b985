package kvcache

import (
	"fmt"
	"time"

	"tandem/engine/blockhash"
)

// DefaultPriority is the retention priority of a block nobody set one for.
const DefaultPriority = 35

// Config sizes a pool.
type Config struct {
	Blocks      int  // N
	BlockTokens int  // B
	Partial     bool // remember tokens, so that beginnings of blocks can be matched
	Events      int  // changes of the index kept for readers, 0 = none
	Tiers       Tiers
	Windows     bool // tables let go of their beginnings, with ReleaseHead
}

// block is the record of one block. It is in a free list if and only if
// nothing references it and no copy reads it.
type block struct {
	ref      int32 // tables that list the block
	copies   int32 // running copies that read the block
	indexed  bool  // hash is valid and index[hash] is this block
	twin     bool  // holds the same content as the indexed block of hash
	inbound  bool  // its content is on its way from a lower tier
	unfiled  bool  // of a slot of the host: it waits for being written to a file
	priority uint8 // in force: its own, or that of what builds on it
	worth
	end    int32 // 1-based place among the ends of own priorities, 0 = none
	list   int8  // bucket number, or one of the list* constants
	prev   int32
	next   int32
	hash   blockhash.Hash
	parent blockhash.Hash
	key    uint64 // of the partial chain; in the host the Offload that brought the content
}

// worth is how much content matters by itself.
type worth struct {
	own   uint8         // retention priority
	until time.Duration // when it is DefaultPriority again, 0 = never
}

// lasting is the priority that a later process will know.
func (w worth) lasting() uint8 {
	if w.until > 0 {
		return DefaultPriority
	}
	return w.own
}

// Manager is a pool of blocks with ids 0..N-1 and the index of their contents.
// It is not safe for concurrent use.
type Manager struct {
	tree
	cfg     Config
	pending [2]map[blockhash.Hash]int32 // blocks that steps will fill: the one that runs, and the one being planned
	planned int                         // of pending: that of the step planned last
	starts  chains[uint64]              // indexed blocks by parent and first tokens
	tokens  []int32                     // [N*B] contents of indexed blocks, if Partial
	evicted uint64
	epoch   uint32
	events  *Events // nil = nobody may ask
	tiers   *tiers  // nil = none
}

// New makes a pool in which every block is empty.
func New(cfg Config) (*Manager, error) {
	if cfg.Blocks < 1 || cfg.BlockTokens < 1 {
		return nil, fmt.Errorf("kvcache: %d blocks of %d tokens is not a pool", cfg.Blocks, cfg.BlockTokens)
	}
	m := &Manager{
		tree: tree{
			blocks: make([]block, cfg.Blocks), index: make(map[blockhash.Hash]int32, cfg.Blocks),
			kids: newChains[blockhash.Hash](cfg.Blocks),
		},
		cfg:     cfg,
		pending: [2]map[blockhash.Hash]int32{{}, {}},
		tiers:   newTiers(cfg.Tiers),
	}
	if cfg.Partial {
		m.tokens = make([]int32, cfg.Blocks*cfg.BlockTokens)
		m.starts = newChains[uint64](cfg.Blocks)
	}
	if cfg.Events > 0 {
		m.events = newEvents(cfg.Events, cfg.Blocks+max(0, cfg.Tiers.HostBlocks)+max(0, cfg.Tiers.DiskBlocks))
	}
	m.lists.init(m.blocks)
	for id := cfg.Blocks - 1; id >= 0; id-- {
		m.forget(int32(id))
		m.lists.pushFront(int32(id))
	}
	return m, nil
}

// Total returns the number of blocks in the pool.
func (m *Manager) Total() int { return len(m.blocks) }

// Free returns how many blocks Take could hand out: empty and reusable ones.
func (m *Manager) Free() int { return m.lists.count }

// Reusable returns how many free blocks hold indexed content.
func (m *Manager) Reusable() int { return m.lists.count - m.lists.empty() }

// Evicted returns how many indexed blocks were given up for room so far.
func (m *Manager) Evicted() uint64 { return m.evicted }

// Epoch counts resets.
func (m *Manager) Epoch() uint32 { return m.epoch }

// Unreferenced reports whether block id is free, that is whether sharing it
// takes room away from others.
func (m *Manager) Unreferenced(id int32) bool { return m.blocks[id].list != listNone }

// Indexed reports whether block id can be found by its content.
func (m *Manager) Indexed(id int32) bool { return m.blocks[id].indexed }

// Refs returns how many tables list block id.
func (m *Manager) Refs(id int32) int { return int(m.blocks[id].ref) }

// Take appends n blocks to table, each with one reference and no content:
// empty ones first (the last freed first), then the reusable ones that matter
// least, whose content goes to the host if there is room. It changes nothing and
// reports false if fewer than n are free.
func (m *Manager) Take(table []int32, n int) ([]int32, bool) {
	if n > m.lists.count {
		return table, false
	}
	for range n {
		id := m.lists.first()
		if m.blocks[id].indexed {
			m.evict(id)
		}
		m.lists.remove(id)
		b := &m.blocks[id]
		b.ref, b.twin = 1, false
		m.forget(id)
		table = append(table, id)
	}
	return table, true
}

// Share adds a reference to each block. They must be indexed, pending or referenced.
func (m *Manager) Share(ids []int32) {
	for _, id := range ids {
		if m.blocks[id].list != listNone {
			m.lists.remove(id)
		}
		m.blocks[id].ref++
	}
}

// Release drops one reference from each block of a table, last block first.
func (m *Manager) Release(table []int32) {
	for i := len(table) - 1; i >= 0; i-- {
		id := table[i]
		if id < 0 { // ReleaseHead was here: what it let go of is no use without what is before it
			m.keepBefore(table[i+1:])
			return
		}
		b := &m.blocks[id]
		if b.ref--; b.ref < 0 {
			panic(fmt.Sprintf("kvcache: block %d released more often than taken", id))
		}
		switch {
		case b.ref == 0 && b.copies == 0:
			m.park(id)
		case b.twin:
			m.refresh(b.hash) // a child behind it may just have become the newest
		}
	}
}

// ReleaseHead releases the first n blocks of a table whose owner will not read
// them again, and leaves -1 in their places. It returns how many there were still.
func (m *Manager) ReleaseHead(table []int32, n int) (released int) {
	from := n
	for from > 0 && table[from-1] >= 0 {
		from--
	}
	m.Release(table[from:n])
	for i := from; i < n; i++ {
		table[i] = -1
	}
	return n - from
}

// keepBefore lets what a free block follows be given up after it, as if all of the
// table had been released at once.
func (m *Manager) keepBefore(table []int32) {
	if len(table) == 0 {
		return
	}
	if b := &m.blocks[table[0]]; b.indexed && b.list != listNone {
		m.raiseAncestors(b.parent, b.priority, true)
	}
}

// park puts an unreferenced block into its free list.
func (m *Manager) park(id int32) {
	b := &m.blocks[id]
	if b.indexed {
		m.lists.pushBack(id, int8(b.priority))
		return
	}
	if b.twin {
		b.twin = false
		m.refresh(b.hash)
	}
	m.lists.pushFront(id)
}

// refresh makes the free indexed block of h the newest of its bucket, so that
// it stays newer than children committed below its twin.
func (m *Manager) refresh(h blockhash.Hash) {
	id, ok := m.index[h]
	if !ok || m.blocks[id].list == listNone {
		return
	}
	m.lists.remove(id)
	m.lists.pushBack(id, int8(m.blocks[id].priority))
}

// BeginCopy marks block id as the source of a running copy: it is not free and
// not evicted until EndCopy.
func (m *Manager) BeginCopy(id int32) {
	if m.blocks[id].list != listNone {
		m.lists.remove(id)
	}
	m.blocks[id].copies++
}

// EndCopy ends one BeginCopy.
func (m *Manager) EndCopy(id int32) {
	b := &m.blocks[id]
	if b.copies--; b.copies < 0 {
		panic(fmt.Sprintf("kvcache: block %d has no copy to end", id))
	}
	if b.ref == 0 && b.copies == 0 {
		known := b.indexed || b.twin
		m.park(id)
		// It, or the block that it was a twin of, is the newest now, and the parents
		// may have been freed before.
		if kin, ok := m.index[b.hash]; ok && known && m.blocks[kin].list != listNone {
			m.raiseAncestors(b.parent, m.blocks[kin].priority, true)
		}
	}
}

// Priority returns the retention priority of block id.
func (m *Manager) Priority(id int32) int { return int(m.blocks[id].priority) }

// SetPriority sets the retention priority of block id, 0 to 100, for good. A block
// never ranks below its indexed children, and its ancestors are raised to its level.
func (m *Manager) SetPriority(id int32, p uint8) { m.grade(id, p, 0) }

// Retain sets the retention priority of the content of h, wherever it is, instead of
// what was set before; from the time until on, if that is not 0, it is
// DefaultPriority again. What builds on it may keep it higher.
func (m *Manager) Retain(h blockhash.Hash, p uint8, until time.Duration) {
	if id, ok := m.index[h]; ok {
		m.grade(id, p, until)
	}
	if m.tiers == nil {
		return
	}
	for _, s := range m.tiers.shelves() {
		if slot, ok := s.find(h); ok {
			s.grade(slot, p, until)
		}
	}
}

// Expire ends the priorities whose time is over.
func (m *Manager) Expire(now time.Duration) {
	m.expire(now)
	if m.tiers == nil {
		return
	}
	for _, s := range m.tiers.shelves() {
		if s != nil {
			s.expire(now)
		}
	}
}

// Hash returns the hash under which block id is indexed, if it is.
func (m *Manager) Hash(id int32) (blockhash.Hash, bool) {
	return m.blocks[id].hash, m.blocks[id].indexed
}
