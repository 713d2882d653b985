package kvcache

import (
	"fmt"
	"iter"
)

// Check proves the pool's invariants against the tables that are alive:
// references add up (INV-1), each block is in exactly one place and the places
// add up to N (INV-2), the index and the blocks agree (INV-3), and a free
// parent outlives its free children (INV-7), unless tables let go of it first. The
// same holds for the tiers below, where moves take the place of references, and no
// content is on the device and in the host (HO-4). It is slow: for tests, debug
// builds and shutdown.
func (m *Manager) Check(tables iter.Seq[[]int32]) error {
	refs := make([]int32, len(m.blocks))
	for t := range tables {
		for _, id := range t {
			if id >= 0 {
				refs[id]++
			}
		}
	}
	place, err := m.checkLists()
	if err != nil {
		return err
	}
	indexed := 0
	for i := range m.blocks {
		b := &m.blocks[i]
		free := place[i] > 0
		switch {
		case b.ref != refs[i]:
			return fmt.Errorf("kvcache: INV-1: block %d has %d references, tables list it %d times", i, b.ref, refs[i])
		case free != (b.ref == 0 && b.copies == 0):
			return fmt.Errorf("kvcache: INV-2: block %d: in a free list %v with %d references, %d copies", i, free, b.ref, b.copies)
		case free && b.indexed != (b.list != listEmpty):
			return fmt.Errorf("kvcache: INV-2: block %d: indexed %v in list %d", i, b.indexed, b.list)
		case b.indexed && b.twin:
			return fmt.Errorf("kvcache: INV-3: block %d is indexed and a twin", i)
		}
		if !b.indexed {
			continue
		}
		indexed++
		if id, ok := m.index[b.hash]; !ok || id != int32(i) {
			return fmt.Errorf("kvcache: INV-3: block %d has hash %x which the index maps to %d, %v", i, b.hash, id, ok)
		}
		if err := m.checkParent(int32(i), place, m.cfg.Windows); err != nil {
			return err
		}
	}
	if indexed != len(m.index) {
		return fmt.Errorf("kvcache: INV-3: %d indexed blocks, %d index entries", indexed, len(m.index))
	}
	return m.checkTiers()
}

// checkLists walks the free lists and returns each block's 1-based position in
// the order of eviction within its list, 0 for blocks in none.
func (t *tree) checkLists() ([]int, error) {
	place := make([]int, len(t.blocks))
	count := 0
	for list := range int8(numLists) {
		prev, n := int32(-1), 0
		for id := t.lists.head[list]; id >= 0; id = t.blocks[id].next {
			b := &t.blocks[id]
			if place[id] != 0 || b.list != list || b.prev != prev {
				return nil, fmt.Errorf("kvcache: INV-2: block %d is linked wrongly in list %d", id, list)
			}
			n++
			count++
			place[id], prev = n, id
		}
		if t.lists.tail[list] != prev {
			return nil, fmt.Errorf("kvcache: INV-2: list %d ends at %d, not at its tail", list, prev)
		}
		if list != listEmpty && (t.lists.some[list>>6]>>(list&63)&1 == 1) != (n > 0) {
			return nil, fmt.Errorf("kvcache: INV-2: bitmap is wrong for bucket %d", list)
		}
	}
	if count != t.lists.count {
		return nil, fmt.Errorf("kvcache: INV-2: %d free blocks counted, %d in lists", t.lists.count, count)
	}
	for i, id := range t.ends {
		if b := &t.blocks[id]; int(b.end) != i+1 || b.until <= 0 || !b.indexed {
			return nil, fmt.Errorf("kvcache: KV-14: block %d, indexed %v, is entry %d of the ends: until %v, entry %d", id, b.indexed, i+1, b.until, b.end)
		}
	}
	return place, nil
}

func (t *tree) checkParent(id int32, place []int, windows bool) error {
	b := &t.blocks[id]
	switch {
	case b.priority < b.own:
		return fmt.Errorf("kvcache: INV-7: block %d has priority %d, %d of its own", id, b.priority, b.own)
	case b.until > 0 && (b.end == 0 || t.ends[b.end-1] != id):
		return fmt.Errorf("kvcache: KV-14: the end of the priority of block %d will be missed", id)
	}
	p, ok := t.index[b.parent]
	if !ok {
		return nil
	}
	pb := &t.blocks[p]
	if pb.priority < b.priority {
		return fmt.Errorf("kvcache: INV-7: block %d has priority %d, its parent %d only %d", id, b.priority, p, pb.priority)
	}
	if !windows && place[id] > 0 && place[p] > 0 && pb.priority == b.priority && place[p] < place[id] {
		return fmt.Errorf("kvcache: INV-7: block %d is evicted before its child %d", p, id)
	}
	return nil
}
