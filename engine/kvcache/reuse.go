package kvcache

import (
	"encoding/binary"

	"tandem/engine/blockhash"
)

// Match appends the blocks of the longest prefix of a hash chain that is here
// or, with pending, will be computed by a step that runs or is being planned. It takes no
// reference: follow with Share before anything else.
func (m *Manager) Match(dst []int32, chain []blockhash.Hash, pending bool) []int32 {
	for _, h := range chain {
		id, ok := m.index[h]
		if !ok && pending {
			if id, ok = m.pending[m.planned][h]; !ok {
				id, ok = m.pending[m.planned^1][h]
			}
		}
		if !ok {
			break
		}
		dst = append(dst, id)
	}
	return dst
}

// Find returns the block that is indexed under h.
func (m *Manager) Find(h blockhash.Hash) (id int32, ok bool) {
	id, ok = m.index[h]
	return id, ok
}

// MatchPartial finds the indexed block after parent that shares the longest
// beginning with tokens, at least a quarter of a block, and returns it with the
// length of that beginning, or -1 and 0. Ties go to the lowest block id.
func (m *Manager) MatchPartial(parent blockhash.Hash, tokens []int32) (id int32, n int) {
	least := m.leastPartial()
	if !m.cfg.Partial || len(tokens) < least {
		return -1, 0
	}
	id = -1
	for b := m.starts.first(startKey(parent, tokens[:least])); b >= 0; b = m.starts.next[b] {
		if m.blocks[b].parent != parent || m.blocks[b].inbound {
			continue // another key with the same fingerprint, or nothing to copy yet
		}
		c := commonPrefix(tokens, m.contents(b))
		if c >= least && (c > n || c == n && b < id) {
			id, n = b, c
		}
	}
	return id, n
}

// leastPartial is the shortest beginning worth a copy.
func (m *Manager) leastPartial() int { return max(1, m.cfg.BlockTokens/4) }

func (m *Manager) contents(id int32) []int32 {
	b := m.cfg.BlockTokens
	return m.tokens[int(id)*b : (int(id)+1)*b]
}

// Expect makes a block that the step being planned will fill matchable as
// pending under h, unless that content is here or expected already.
func (m *Manager) Expect(id int32, h blockhash.Hash) {
	if _, ok := m.index[h]; ok {
		return
	}
	for _, p := range m.pending {
		if _, ok := p[h]; ok {
			return
		}
	}
	m.pending[m.planned][h] = id
}

// NextPending begins a step: what Expect notes from now on is of that one. The
// step before may run still; the one before that is over.
func (m *Manager) NextPending() {
	m.planned ^= 1
	clear(m.pending[m.planned])
}

// ClearPending forgets what Expect noted; call it when no step runs any more, or
// what runs is in vain.
func (m *Manager) ClearPending() {
	clear(m.pending[0])
	clear(m.pending[1])
}

// Commit enters a full, computed block into the index under h. tokens are its
// B tokens. If another block has that content already, this one stays private
// to its request.
func (m *Manager) Commit(id int32, parent, h blockhash.Hash, tokens []int32) {
	b := &m.blocks[id]
	if b.indexed {
		return // shared in the same step and committed by the other request
	}
	b.hash, b.parent = h, parent
	was := m.Level(h)
	if was == Device {
		b.twin = true
		return
	}
	if was == Host { // content is not in both
		slot, _ := m.tiers.host.find(h)
		m.tiers.host.drop(slot)
	}
	m.enter(id, parent, h, b.worth, tokens)
	if was == Nowhere {
		m.tell(change{kind: Stored, parent: parent, block: h, priority: b.priority})
	} else {
		m.changed(h, was)
	}
}

// enter puts a block into the index.
func (m *Manager) enter(id int32, parent, h blockhash.Hash, w worth, tokens []int32) {
	b := &m.blocks[id]
	b.hash, b.parent, b.indexed = h, parent, true
	m.index[h] = id
	b.own, b.priority = w.own, max(w.own, m.kidsPriority(h))
	m.endAt(id, w.until)
	m.kids.add(parent, id)
	if m.cfg.Partial {
		copy(m.contents(id), tokens)
		b.key = startKey(parent, tokens[:m.leastPartial()])
		m.starts.add(b.key, id)
	}
	m.raiseAncestors(parent, b.priority, false)
}

// unindex forgets the content of an indexed block.
func (m *Manager) unindex(id int32) {
	b := &m.blocks[id]
	delete(m.index, b.hash)
	m.kids.remove(b.parent, id)
	if m.cfg.Partial {
		m.starts.remove(b.key, id)
	}
	b.indexed = false
	m.endAt(id, 0)
}

// Reset forgets all content: no block can be matched afterwards. Tables keep
// their blocks; a used one still vouches for the order of what is committed
// under its hash later, as a twin does.
func (m *Manager) Reset() {
	m.epoch++
	for i := range m.blocks {
		b := &m.blocks[i]
		if !b.indexed {
			continue
		}
		m.unindex(int32(i))
		m.forget(int32(i))
		if b.list == listNone {
			b.twin = true
			continue
		}
		m.lists.remove(int32(i))
		m.lists.pushFront(int32(i))
	}
	m.resetTiers()
	m.tell(change{kind: Cleared})
}

// startKey fingerprints a parent and the first tokens after it (FNV-1a).
func startKey(parent blockhash.Hash, tokens []int32) uint64 {
	const prime = 1099511628211
	k := binary.LittleEndian.Uint64(parent[:8])
	for _, t := range tokens {
		k = (k ^ uint64(uint32(t))) * prime
	}
	return k
}

func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
