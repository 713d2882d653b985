package kvcache

import "fmt"

// checkTiers proves the books of the tiers below the device against the moves
// under way.
func (m *Manager) checkTiers() error {
	t := m.tiers
	inbound := 0
	for i := range m.blocks {
		if b := &m.blocks[i]; b.inbound {
			inbound++
			if b.copies == 0 {
				return fmt.Errorf("kvcache: HO-3: block %d waits for content and no move holds it", i)
			}
		}
	}
	if t == nil {
		if inbound > 0 {
			return fmt.Errorf("kvcache: HO-3: %d blocks wait for content that no tier has", inbound)
		}
		return nil
	}
	host, disk, coming, spilling, bringing := map[int32]int32{}, map[int32]int32{}, map[int32]int32{}, 0, 0
	for _, j := range t.jobs {
		switch j.Kind {
		case Offload:
			coming[j.Slot]++
		case Onboard:
			host[j.Slot]++
			bringing++
		case Spill:
			host[j.Slot]++
			disk[j.file]++
			spilling++
		case Load:
			disk[j.file]++
			bringing++
		}
	}
	if inbound != t.inbound || inbound != bringing || spilling != t.spilling {
		return fmt.Errorf("kvcache: HO-3: %d blocks wait, counted %d, with %d moves; %d spills, counted %d", inbound, t.inbound, bringing, spilling, t.spilling)
	}
	for h := range t.host.index {
		if _, ok := m.index[h]; ok {
			return fmt.Errorf("kvcache: HO-4: %x is on the device and in the host", h)
		}
	}
	if err := t.host.check("host", host, coming); err != nil || t.disk == nil {
		return err
	}
	return t.disk.check("disk", disk, nil)
}

// check proves the books of one tier. held counts the moves of each slot but
// Offloads, coming those.
func (s *shelf) check(name string, held, coming map[int32]int32) error {
	place, err := s.checkLists()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	indexed := 0
	for i := range s.blocks {
		b, id := &s.blocks[i], int32(i)
		free := place[i] > 0
		switch {
		case b.copies != held[id] || !free && b.copies == 0 || b.list == listEmpty && b.copies > 0:
			return fmt.Errorf("kvcache: INV-2: %s slot %d: in a list %v with %d holds of %d moves", name, i, free, b.copies, held[id])
		case free && b.indexed != (b.list != listEmpty):
			return fmt.Errorf("kvcache: INV-2: %s slot %d: indexed %v in list %d", name, i, b.indexed, b.list)
		}
		if b.ref != coming[id] || b.unfiled && (!b.indexed || b.ref > 0) {
			return fmt.Errorf("kvcache: HO-3: %s slot %d: indexed %v, to be filed %v, %d of %d contents are coming", name, i, b.indexed, b.unfiled, b.ref, coming[id])
		}
		if !b.indexed {
			continue
		}
		indexed++
		if at, ok := s.index[b.hash]; !ok || at != id {
			return fmt.Errorf("kvcache: INV-3: %s slot %d has hash %x which the index maps to %d, %v", name, i, b.hash, at, ok)
		}
		if !free {
			continue // it takes its place among the others when its moves are over
		}
		if err := s.checkParent(id, place, false); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if indexed != len(s.index) || len(s.blocks) > s.limit {
		return fmt.Errorf("kvcache: INV-3: %s: %d indexed slots, %d index entries, %d of %d slots", name, indexed, len(s.index), len(s.blocks), s.limit)
	}
	return nil
}
