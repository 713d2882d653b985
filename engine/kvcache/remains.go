package kvcache

import "tandem/engine/blockhash"

// Remains orders what would be lost with the process to be written to files, the
// most valuable first, and what is in their way to be erased. The moves have no
// Job; those of the device have Slot -1. No other move may be under way, and the
// Manager is of no use afterwards.
func (m *Manager) Remains() []Move {
	t := m.tiers
	if t == nil || t.disk == nil || t.off {
		return nil
	}
	r := remains{disk: t.disk, floor: t.MinPriority}
	for list := int8(maxPriority); list >= 0; list-- {
		for id := m.lists.tail[list]; id >= 0; id = m.blocks[id].prev {
			r.keep(&m.blocks[id], id, -1)
		}
		for slot := t.host.lists.tail[list]; slot >= 0; slot = t.host.blocks[slot].prev {
			r.keep(&t.host.blocks[slot], -1, slot)
		}
	}
	return r.moves
}

// remains collects the moves. What is to stay on disk is held there, so that
// nothing that comes later takes its place.
type remains struct {
	disk  *shelf
	floor uint8
	moves []Move
	full  bool
}

// keep lets content be in a file, and all that it builds on stay.
func (r *remains) keep(b *block, id, slot int32) {
	if r.full || b.priority < r.floor {
		return
	}
	r.pin(b.parent)
	if _, ok := r.disk.find(b.hash); ok {
		r.pin(b.hash)
		return
	}
	file, lost, dropped, ok := r.disk.room(b.priority)
	if dropped {
		r.moves = append(r.moves, Move{Kind: Erase, Hash: lost})
	}
	if r.full = !ok; r.full {
		return
	}
	r.disk.put(file, b.parent, b.hash, b.worth)
	r.moves = append(r.moves, Move{Kind: Spill, Block: id, Slot: slot, Hash: b.hash, Parent: b.parent, Priority: b.lasting()})
}

// pin holds a file and those of what it builds on.
func (r *remains) pin(h blockhash.Hash) {
	for {
		slot, ok := r.disk.find(h)
		if !ok || r.disk.blocks[slot].copies > 0 {
			return
		}
		r.disk.hold(slot)
		h = r.disk.blocks[slot].parent
	}
}
