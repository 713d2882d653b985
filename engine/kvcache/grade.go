package kvcache

import (
	"time"

	"tandem/engine/blockhash"
)

// tree is content in the order in which it is given up: blocks of the device or
// slots of a tier below, whose hashes make chains. A block never ranks below what
// builds on it, so chains lose their leaves first.
type tree struct {
	blocks []block
	lists  freeLists
	index  map[blockhash.Hash]int32
	kids   chains[blockhash.Hash] // indexed blocks by parent
	ends   []int32                // heap of the blocks whose own priority ends, the soonest first
}

// grade gives a block a priority of its own, 0 to 100, until a time, 0 = for good.
// What builds on it may keep it higher.
func (t *tree) grade(id int32, own uint8, until time.Duration) {
	b := &t.blocks[id]
	was := b.priority
	b.own = min(own, maxPriority)
	t.endAt(id, until)
	p := b.own
	if b.indexed {
		p = max(p, t.kidsPriority(b.hash))
	}
	t.rank(id, p)
	switch {
	case !b.indexed && !b.twin:
	case p < was:
		t.lowerAncestors(b.parent)
	default:
		t.raiseAncestors(b.parent, p, b.list >= 0)
	}
}

// forget makes a block one that nobody set a priority for.
func (t *tree) forget(id int32) {
	t.endAt(id, 0)
	t.blocks[id].own, t.blocks[id].priority = DefaultPriority, DefaultPriority
}

// rank moves a block to priority p; a free one becomes the newest there.
func (t *tree) rank(id int32, p uint8) {
	b := &t.blocks[id]
	b.priority = p
	if b.list != listNone && b.list != listEmpty {
		t.lists.remove(id)
		t.lists.pushBack(id, int8(p))
	}
}

// raiseAncestors gives the chain that ends in h at least priority p. moved says
// that a free descendant became the newest of its bucket: free ancestors in the
// same bucket then follow it, so that they are still evicted later.
func (t *tree) raiseAncestors(h blockhash.Hash, p uint8, moved bool) {
	for {
		id, ok := t.index[h]
		if !ok {
			return
		}
		b := &t.blocks[id]
		if b.priority > p || b.priority == p && !moved {
			return
		}
		t.rank(id, p)
		moved = moved || b.list >= 0
		h = b.parent
	}
}

// lowerAncestors takes from the chain that ends in h what only a descendant kept
// it for.
func (t *tree) lowerAncestors(h blockhash.Hash) {
	for {
		id, ok := t.index[h]
		if !ok {
			return
		}
		b := &t.blocks[id]
		p := max(b.own, t.kidsPriority(h))
		if p >= b.priority {
			return
		}
		t.rank(id, p)
		h = b.parent
	}
}

// kidsPriority returns the highest priority of what follows h, 0 if nothing does.
func (t *tree) kidsPriority(h blockhash.Hash) (p uint8) {
	for id := t.kids.first(h); id >= 0; id = t.kids.next[id] {
		p = max(p, t.blocks[id].priority)
	}
	return p
}

// expire ends the priorities whose time is over.
func (t *tree) expire(now time.Duration) {
	for len(t.ends) > 0 && t.blocks[t.ends[0]].until <= now {
		t.grade(t.ends[0], DefaultPriority, 0)
	}
}

// endAt lets the own priority of a block end then, 0 = never.
func (t *tree) endAt(id int32, at time.Duration) {
	b := &t.blocks[id]
	b.until = at
	switch {
	case at == 0 && b.end > 0:
		i, last := int(b.end)-1, len(t.ends)-1
		t.swapEnds(i, last)
		t.ends, b.end = t.ends[:last], 0
		if i < last {
			t.fixEnd(i)
		}
	case at > 0:
		if b.end == 0 {
			t.ends = append(t.ends, id)
			b.end = int32(len(t.ends))
		}
		t.fixEnd(int(b.end) - 1)
	}
}

// endsBefore orders the heap: by time, then by block, so that equal histories
// leave equal lists.
func (t *tree) endsBefore(i, j int) bool {
	a, b := t.ends[i], t.ends[j]
	if x, y := t.blocks[a].until, t.blocks[b].until; x != y {
		return x < y
	}
	return a < b
}

func (t *tree) swapEnds(i, j int) {
	t.ends[i], t.ends[j] = t.ends[j], t.ends[i]
	t.blocks[t.ends[i]].end, t.blocks[t.ends[j]].end = int32(i+1), int32(j+1)
}

// fixEnd puts entry i of the heap in its place.
func (t *tree) fixEnd(i int) {
	for i > 0 && t.endsBefore(i, (i-1)/2) {
		t.swapEnds(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		k := 2*i + 1
		if k >= len(t.ends) {
			return
		}
		if k+1 < len(t.ends) && t.endsBefore(k+1, k) {
			k++
		}
		if !t.endsBefore(k, i) {
			return
		}
		t.swapEnds(i, k)
		i = k
	}
}
