package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// merge is what two neighbouring symbols become, and how early.
type merge struct {
	rank int32
	id   int32
}

// bpe holds the merge rules over token ids.
type bpe struct {
	merges map[uint64]merge // left id << 32 | right id

	// Byte-level: each byte starts as bytes[b]; NoToken = the vocabulary lacks it.
	byteLevel bool
	bytes     [256]int32
	// Otherwise each character starts as chars[r]; unknown ones become byte
	// tokens with byteFallback, else unk.
	chars        map[rune]int32
	byteFallback bool
	fuseUnk      bool
	unk          int32

	// whole maps a complete piece to its id where the file says ignore_merges.
	whole map[string]int32
}

// symbol is a node of the doubly linked list of one word's symbols.
type symbol struct {
	id         int32 // NoToken = merged into its left neighbour
	prev, next int32 // indices, -1 = none
}

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// encode appends the ids of one piece.
func (m *bpe) encode(ids []int32, word string, sc *scratch) []int32 {
	if id, ok := m.whole[word]; ok {
		return append(ids, id)
	}
	from := len(ids)
	if m.byteLevel {
		for i := range len(word) {
			if id := m.bytes[word[i]]; id != NoToken {
				ids = append(ids, id)
			}
		}
	} else {
		ids = m.appendChars(ids, word)
	}
	return ids[:from+m.mergeAll(ids[from:], sc)]
}

// appendChars appends the initial symbols of a character vocabulary.
func (m *bpe) appendChars(ids []int32, word string) []int32 {
	afterUnk := false
	for _, r := range word {
		if id, ok := m.chars[r]; ok {
			ids, afterUnk = append(ids, id), false
			continue
		}
		if m.byteFallback {
			var ok bool
			if ids, ok = m.appendBytes(ids, r); ok {
				afterUnk = false
				continue
			}
		}
		if m.unk != NoToken && !(afterUnk && m.fuseUnk) {
			ids = append(ids, m.unk)
		}
		afterUnk = true
	}
	return ids
}

// appendBytes appends the byte tokens of r; ok is false if one is missing.
func (m *bpe) appendBytes(ids []int32, r rune) (_ []int32, ok bool) {
	var buf [utf8.UTFMax]byte
	n := utf8.EncodeRune(buf[:], r)
	for _, b := range buf[:n] {
		if m.bytes[b] == NoToken {
			return ids, false
		}
	}
	for _, b := range buf[:n] {
		ids = append(ids, m.bytes[b])
	}
	return ids, true
}

// mergeAll applies the merges to ids in place, lowest rank first and leftmost
// among equals, and returns how many ids remain.
func (m *bpe) mergeAll(ids []int32, sc *scratch) int {
	const scanLimit = 24 // below it rescanning beats the heap
	if len(ids) <= scanLimit {
		return m.mergeByScan(ids)
	}
	return m.mergeByHeap(ids, sc)
}

func (m *bpe) mergeByScan(ids []int32) int {
	const none = 1<<31 - 1
	var pairs [24]merge // pairs[i] is the merge of ids[i], ids[i+1]
	look := func(i int) {
		pairs[i] = merge{rank: none}
		if i+1 < len(ids) {
			if p, ok := m.merges[pairKey(ids[i], ids[i+1])]; ok {
				pairs[i] = p
			}
		}
	}
	for i := range ids {
		look(i)
	}
	for len(ids) > 1 {
		best := 0
		for i := 1; i < len(ids)-1; i++ {
			if pairs[i].rank < pairs[best].rank {
				best = i
			}
		}
		if pairs[best].rank == none {
			break
		}
		ids[best] = pairs[best].id
		copy(pairs[best+1:], pairs[best+2:len(ids)])
		copy(ids[best+1:], ids[best+2:])
		ids = ids[:len(ids)-1]
		look(best)
		if best > 0 {
			look(best - 1)
		}
	}
	return len(ids)
}

// mergeByHeap takes O(n log n): a piece may be the whole prompt in vocabularies
// without a pre-tokenizer.
func (m *bpe) mergeByHeap(ids []int32, sc *scratch) int {
	syms, heap := sc.syms[:0], sc.heap[:0]
	for i, id := range ids {
		syms = append(syms, symbol{id: id, prev: int32(i - 1), next: int32(i + 1)})
	}
	syms[len(syms)-1].next = -1
	push := func(left int32) {
		right := syms[left].next
		if p, ok := m.merges[pairKey(syms[left].id, syms[right].id)]; ok {
			heap.push(candidate{rank: p.rank, pos: left, left: syms[left].id, right: syms[right].id, id: p.id})
		}
	}
	for i := range len(syms) - 1 {
		push(int32(i))
	}
	for len(heap) > 0 {
		c := heap.pop()
		l := &syms[c.pos]
		// A candidate is stale once either side was merged with something else.
		if l.id != c.left || l.next < 0 || syms[l.next].id != c.right {
			continue
		}
		r := &syms[l.next]
		l.id, r.id, l.next = c.id, NoToken, r.next
		if l.next >= 0 {
			syms[l.next].prev = c.pos
			push(c.pos)
		}
		if l.prev >= 0 {
			push(l.prev)
		}
	}
	sc.syms, sc.heap = syms, heap
	n := 0
	for i := int32(0); i >= 0; i = syms[i].next {
		ids[n] = syms[i].id
		n++
	}
	return n
}

// addMerge records that left+right becomes joined at rank (a later
// rule for the same pair replaces it). The three must be in ids.
func (m *bpe) addMerge(ids map[string]int32, left, right string, rank int) error {
	l, ok := ids[left]
	if !ok {
		return fmt.Errorf("%w: merge %d uses %q, which is not in the vocabulary", ErrMalformed, rank, left)
	}
	r, ok := ids[right]
	if !ok {
		return fmt.Errorf("%w: merge %d uses %q, which is not in the vocabulary", ErrMalformed, rank, right)
	}
	id, ok := ids[left+right]
	if !ok {
		return fmt.Errorf("%w: merge %d makes %q, which is not in the vocabulary", ErrMalformed, rank, left+right)
	}
	// The last rule for a repeated pair holds, as in the reference.
	m.merges[pairKey(l, r)] = merge{rank: int32(rank), id: id}
	return nil
}
