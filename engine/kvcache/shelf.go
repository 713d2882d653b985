package kvcache

import "tandem/engine/blockhash"

// shelf keeps the books of one tier below the device: slots that hold the
// content of one block each. A slot is empty, or its content is indexed, or a
// move uses it. Slots come into being when they are first needed. A slot's ref
// counts the Offloads under way to it: it may be given to other content, for moves
// keep their order, but what it holds cannot be written to a file yet.
type shelf struct {
	tree
	limit   int
	unfiled chains[struct{}] // slots to be written to files, the last that came first
}

// newShelf makes a tier of at most limit slots, nil for none.
func newShelf(limit int) *shelf {
	if limit <= 0 {
		return nil
	}
	s := &shelf{limit: limit, unfiled: newChains[struct{}](0), tree: tree{index: map[blockhash.Hash]int32{}, kids: newChains[blockhash.Hash](0)}}
	s.lists.init(nil)
	return s
}

// find returns the slot with the content of h.
func (s *shelf) find(h blockhash.Hash) (int32, bool) {
	if s == nil {
		return -1, false
	}
	id, ok := s.index[h]
	return id, ok
}

// used returns how many slots hold indexed content.
func (s *shelf) used() int {
	if s == nil {
		return 0
	}
	return len(s.index)
}

// spare returns how many slots hold nothing.
func (s *shelf) spare() int { return s.limit - len(s.blocks) + s.lists.empty() }

// room takes a slot for content of priority p: an empty one, else that of the
// content that matters least if it does not matter more. lost is what had to go.
func (s *shelf) room(p uint8) (slot int32, lost blockhash.Hash, dropped, ok bool) {
	switch {
	case s.lists.empty() > 0:
		slot = s.lists.head[listEmpty]
		s.lists.remove(slot)
	case len(s.blocks) < s.limit:
		slot = s.grow()
	default:
		if slot, ok = s.victim(p); !ok {
			return -1, lost, false, false
		}
		lost, dropped = s.blocks[slot].hash, true
		s.unindex(slot)
		s.lists.remove(slot)
	}
	s.blocks[slot].copies = 1
	return slot, lost, dropped, true
}

// victim returns the slot with the content that matters least, if that does not
// matter more than p. What is being written has to stay; that are few.
func (s *shelf) victim(p uint8) (slot int32, ok bool) {
	for list := int8(0); list <= int8(p); list++ {
		for slot = s.lists.head[list]; slot >= 0; slot = s.blocks[slot].next {
			if s.blocks[slot].copies == 0 {
				return slot, true
			}
		}
	}
	return -1, false
}

func (s *shelf) grow() int32 {
	s.blocks = append(s.blocks, block{list: listNone})
	s.lists.blocks = s.blocks
	for _, c := range []*[]int32{&s.kids.prev, &s.kids.next, &s.unfiled.prev, &s.unfiled.next} {
		*c = append(*c, -1)
	}
	return int32(len(s.blocks) - 1)
}

// put gives a slot that a move uses its content.
func (s *shelf) put(slot int32, parent, h blockhash.Hash, w worth) {
	b := &s.blocks[slot]
	b.hash, b.parent, b.indexed = h, parent, true
	b.own, b.priority = w.own, max(w.own, s.kidsPriority(h))
	s.endAt(slot, w.until)
	s.index[h] = slot
	s.kids.add(parent, slot)
}

// hold lets a move use a slot: until done it is neither given away nor emptied.
func (s *shelf) hold(slot int32) {
	b := &s.blocks[slot]
	if b.list != listNone {
		s.lists.remove(slot)
	}
	b.copies++
}

// pin is hold for a move that leaves the content here: it keeps its place in the
// order in which content is given up.
func (s *shelf) pin(slot int32) { s.blocks[slot].copies++ }

// done ends one hold or pin. Content that is still indexed and was held becomes the
// newest of its bucket, and its ancestors here newer still.
func (s *shelf) done(slot int32) {
	b := &s.blocks[slot]
	if b.copies--; b.copies < 0 {
		panic("kvcache: a slot is given back more often than it was taken")
	}
	if b.copies > 0 || b.list != listNone {
		return
	}
	if !b.indexed {
		s.lists.pushFront(slot)
		return
	}
	s.lists.pushBack(slot, int8(b.priority))
	s.raiseAncestors(b.parent, b.priority, true)
}

// builtOn reports whether content here follows h that was not demoted.
func (s *shelf) builtOn(h blockhash.Hash) bool {
	if s == nil {
		return false
	}
	return s.kidsPriority(h) > 0
}

// unindex forgets the content of a slot; without a move it is empty then.
func (s *shelf) unindex(slot int32) {
	b := &s.blocks[slot]
	delete(s.index, b.hash)
	s.kids.remove(b.parent, slot)
	b.indexed = false
	s.endAt(slot, 0)
	s.setUnfiled(slot, false)
}

// setUnfiled lets the content of a slot be the next to be written, or not at all.
func (s *shelf) setUnfiled(slot int32, yes bool) {
	b := &s.blocks[slot]
	if b.unfiled {
		s.unfiled.remove(struct{}{}, slot)
	}
	if b.unfiled = yes; yes {
		s.unfiled.add(struct{}{}, slot)
	}
}

// nextUnfiled returns the slot to be written next, -1 for none: of the content that
// came last what it builds on here, so that files can be used whatever is lost
// later. What that is may be on its way here still, and is waited for.
func (s *shelf) nextUnfiled() int32 {
	slot := s.unfiled.first(struct{}{})
	for slot >= 0 {
		parent, ok := s.index[s.blocks[slot].parent]
		switch {
		case !ok || s.blocks[parent].ref == 0 && !s.blocks[parent].unfiled:
			return slot
		case s.blocks[parent].ref > 0:
			return -1
		}
		s.setUnfiled(parent, true)
		slot = parent
	}
	return -1
}

// drop forgets the content of a slot and gives the slot back.
func (s *shelf) drop(slot int32) {
	s.unindex(slot)
	if s.blocks[slot].list == listNone {
		return
	}
	s.lists.remove(slot)
	if s.blocks[slot].copies == 0 {
		s.lists.pushFront(slot)
	}
}

// clear forgets all content.
func (s *shelf) clear() {
	if s == nil {
		return
	}
	for i := range s.blocks {
		if s.blocks[i].indexed {
			s.drop(int32(i))
		}
	}
}
