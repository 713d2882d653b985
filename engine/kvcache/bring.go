package kvcache

import "tandem/engine/blockhash"

// Below is what MatchTiers found that is not ready on the device.
type Below struct {
	Host, Disk int // blocks that must be brought from there
	Inbound    int // blocks that are on their way already
	First      int // where in the chain the first of any of these is, -1 = none
}

// Any reports whether a user of the blocks has to wait.
func (b Below) Any() bool { return b.First >= 0 }

// MatchTiers is Match over the tiers down to deepest: content below the device is
// appended as -1.
func (m *Manager) MatchTiers(dst []int32, chain []blockhash.Hash, pending bool, deepest Level) ([]int32, Below) {
	below := Below{First: -1}
	for len(chain) > 0 {
		before := len(dst)
		dst = m.Match(dst, chain, pending)
		for i, id := range dst[before:] {
			if m.blocks[id].inbound {
				below.note(before+i, &below.Inbound)
			}
		}
		if chain = chain[len(dst)-before:]; len(chain) == 0 || m.tiers == nil {
			break
		}
		level := m.reachable(chain[0])
		switch {
		case level > deepest:
			return dst, below
		case level == Host:
			below.note(len(dst), &below.Host)
		default:
			below.note(len(dst), &below.Disk)
		}
		dst, chain = append(dst, -1), chain[1:]
	}
	return dst, below
}

func (b *Below) note(at int, count *int) {
	if *count++; b.First < 0 {
		b.First = at
	}
}

// reachable is the tier below the device that content can be brought from now.
func (m *Manager) reachable(h blockhash.Hash) Level {
	if _, ok := m.tiers.host.find(h); ok {
		return Host
	}
	if _, ok := m.tiers.disk.find(h); ok && !m.tiers.off {
		return Disk
	}
	return Nowhere
}

// Adopt appends to table, with one reference each, the blocks that MatchTiers
// found of chain. For content below the device it takes new blocks, which must be
// free, and orders moves; the blocks are indexed at once and inbound until Moved.
// root is what the chain follows, tokens are those of all its blocks. Nothing may
// have happened since MatchTiers.
func (m *Manager) Adopt(table, found []int32, chain []blockhash.Hash, root blockhash.Hash, tokens []int32) []int32 {
	for i, id := range found {
		if id >= 0 {
			m.Share(found[i : i+1])
			continue
		}
		m.holdBelow(chain[i]) // what the new blocks push out must not take its place
	}
	parent, b := root, m.cfg.BlockTokens
	for i, id := range found {
		if id < 0 {
			id = m.bring(parent, chain[i], tokens[i*b:(i+1)*b])
		}
		table = append(table, id)
		parent = chain[i]
	}
	return table
}

func (m *Manager) holdBelow(h blockhash.Hash) {
	t := m.tiers
	if slot, ok := t.host.find(h); ok {
		t.host.hold(slot)
		return
	}
	slot, ok := t.disk.find(h)
	if !ok {
		panic("kvcache: adopted content is in no tier")
	}
	t.disk.hold(slot)
}

// bring takes a block for content that holdBelow has secured.
func (m *Manager) bring(parent, h blockhash.Hash, tokens []int32) int32 {
	t, ok := m.tiers, false
	if t.one, ok = m.Take(t.one[:0], 1); !ok {
		panic("kvcache: no block is free for content that is to be adopted")
	}
	id := t.one[0]
	j := job{Move: Move{Kind: Onboard, Block: id, Hash: h, Parent: parent}, epoch: m.epoch}
	was := Host
	if slot, ok := t.host.find(h); ok {
		j.Slot, j.worth = slot, t.host.blocks[slot].worth
		t.host.unindex(slot)
		t.stats.Onboarded++
	} else {
		was, j.Kind = Disk, Load
		j.file, _ = t.disk.find(h)
		j.worth = t.disk.blocks[j.file].worth
		t.stats.Loaded++
	}
	m.enter(id, parent, h, j.worth, tokens)
	b := &m.blocks[id]
	b.inbound = true
	b.copies++
	t.inbound++
	t.order(j)
	m.changed(h, was)
	return id
}

// Result is how a move ended.
type Result uint8

// The results. After Corrupt the file is erased; after Failed the disk may be in
// trouble.
const (
	Done Result = iota
	Corrupt
	Failed
)

// Moved reports the end of a move, and returns what it was. If a block did not get
// its content, it is no longer indexed and lost is its id, else -1: who has it in a
// table must let go of it. Unknown jobs are ignored; their move has no Job.
func (m *Manager) Moved(number uint64, r Result) (mv Move, lost int32) {
	t := m.tiers
	if t == nil {
		return mv, -1
	}
	j, ok := t.jobs[number]
	if !ok {
		return mv, -1
	}
	delete(t.jobs, number)
	if r != Done {
		t.stats.FailedMoves++
	}
	if r == Corrupt {
		t.stats.BadFiles++
	}
	lost = -1
	switch j.Kind {
	case Offload:
		m.offloaded(&j, r)
	case Onboard:
		t.host.done(j.Slot)
		lost = m.arrived(&j, r)
	case Load:
		m.loaded(&j, r)
		lost = m.arrived(&j, r)
	case Spill:
		m.spilled(&j, r)
	}
	m.spillAhead()
	return j.Move, lost
}

// arrived makes a block readable, or forgets that it was to have content.
func (m *Manager) arrived(j *job, r Result) int32 {
	b := &m.blocks[j.Block]
	b.inbound = false
	m.tiers.inbound--
	if r != Done && b.indexed {
		m.unindex(j.Block)
		m.forget(j.Block)
		m.changed(j.Hash, Device)
	}
	m.EndCopy(j.Block)
	if r != Done {
		return j.Block
	}
	return -1
}

func (m *Manager) loaded(j *job, r Result) {
	t := m.tiers
	if r != Done && t.disk.blocks[j.file].indexed { // else the cache was reset
		t.disk.unindex(j.file)
		t.order(job{Move: Move{Kind: Erase, Hash: j.Hash}})
		if m.Level(j.Hash) == Nowhere {
			m.changed(j.Hash, Disk)
		}
	}
	t.disk.done(j.file)
}

// offloaded lets content be written to a file when it has come to the host, and
// forgets it if it has not.
func (m *Manager) offloaded(j *job, r Result) {
	t := m.tiers
	b := &t.host.blocks[j.Slot]
	b.ref--
	if b.indexed && b.key == j.Job && r != Done { // else the slot has other content since
		t.host.drop(j.Slot)
		m.changed(j.Hash, Host)
	}
	if _, filed := t.disk.find(b.hash); t.disk != nil && b.indexed && b.ref == 0 && !filed {
		t.host.setUnfiled(j.Slot, true)
	}
}

// spilled enters a file. One that could not be written is tried again.
func (m *Manager) spilled(j *job, r Result) {
	t := m.tiers
	t.spilling--
	current := j.epoch == m.epoch
	if _, twice := t.disk.find(j.Hash); r == Done && current && !twice {
		gone := m.Level(j.Hash) == Nowhere // left the host meanwhile
		w := j.worth
		if slot, ok := t.host.find(j.Hash); ok {
			w = t.host.blocks[slot].worth // set since
		}
		t.disk.put(j.file, j.Parent, j.Hash, w)
		t.stats.Spilled++
		if gone {
			m.tell(t.disk.blocks[j.file].stored(Disk))
		}
	}
	t.disk.done(j.file)
	if slot, ok := t.host.find(j.Hash); ok && slot == j.Slot && current && r != Done {
		t.host.setUnfiled(slot, true)
	}
	t.host.done(j.Slot)
}

// Abandon forgets that inbound block id was to have content: nobody may wait for
// it any longer. The block is used again when its move ends.
func (m *Manager) Abandon(id int32) {
	b := &m.blocks[id]
	if !b.inbound || !b.indexed {
		return
	}
	m.unindex(id)
	m.forget(id)
	m.changed(b.hash, Device)
}

// resetTiers forgets all content below the device.
func (m *Manager) resetTiers() {
	t := m.tiers
	if t == nil {
		return
	}
	t.host.clear()
	if t.disk != nil {
		t.disk.clear()
		t.order(job{Move: Move{Kind: EraseAll}})
	}
}

// Demote lets the content of h, wherever it is, be the first to go, unless
// something refers to it or builds on it that may stay, or somebody set it a
// priority above the default. It reports whether it did.
func (m *Manager) Demote(h blockhash.Hash) bool {
	if m.builtOn(h) {
		return false
	}
	id, ok := m.index[h]
	if ok {
		if b := &m.blocks[id]; b.list == listNone || b.own > DefaultPriority {
			return false
		}
		if m.blocks[id].priority > 0 { // else it would follow its parents
			m.grade(id, 0, 0)
		}
	}
	if m.tiers == nil {
		return ok
	}
	for _, s := range m.tiers.shelves() {
		slot, found := s.find(h)
		if !found {
			continue
		}
		if s.blocks[slot].own > DefaultPriority {
			return false
		}
		if ok = true; s.blocks[slot].priority > 0 {
			s.grade(slot, 0, 0)
		}
	}
	return ok
}

// builtOn reports whether content follows h that was not demoted.
func (m *Manager) builtOn(h blockhash.Hash) bool {
	if m.kidsPriority(h) > 0 {
		return true
	}
	return m.tiers != nil && (m.tiers.host.builtOn(h) || m.tiers.disk.builtOn(h))
}
