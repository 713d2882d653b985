package kvcache

import "math/bits"

const maxPriority = 100

// List numbers. Buckets are 0..maxPriority.
const (
	listEmpty int8 = maxPriority + 1
	listNone  int8 = -1
	numLists       = maxPriority + 2
)

// freeLists are doubly linked lists through the block records: one of empty
// blocks and one per priority. All operations are O(1).
type freeLists struct {
	blocks     []block
	head, tail [numLists]int32
	some       [2]uint64 // which buckets are not empty
	size       [numLists]int
	count      int // blocks in all lists
}

func (l *freeLists) init(blocks []block) {
	l.blocks = blocks
	for i := range l.head {
		l.head[i], l.tail[i] = -1, -1
	}
	for i := range blocks {
		blocks[i].list = listNone
	}
}

// first returns the block to hand out next. The lists must not all be empty.
func (l *freeLists) first() int32 {
	if l.empty() > 0 {
		return l.head[listEmpty]
	}
	return l.least()
}

// empty returns how many blocks hold nothing.
func (l *freeLists) empty() int { return l.size[listEmpty] }

// least returns the block whose content matters least. There must be one.
func (l *freeLists) least() int32 {
	if l.some[0] != 0 {
		return l.head[bits.TrailingZeros64(l.some[0])]
	}
	return l.head[64+bits.TrailingZeros64(l.some[1])]
}

// pushFront makes an empty block the next to be handed out.
func (l *freeLists) pushFront(id int32) {
	b := &l.blocks[id]
	b.list, b.prev, b.next = listEmpty, -1, l.head[listEmpty]
	if b.next >= 0 {
		l.blocks[b.next].prev = id
	} else {
		l.tail[listEmpty] = id
	}
	l.head[listEmpty] = id
	l.added(listEmpty)
}

func (l *freeLists) pushBack(id int32, list int8) {
	b := &l.blocks[id]
	b.list, b.prev, b.next = list, l.tail[list], -1
	if b.prev >= 0 {
		l.blocks[b.prev].next = id
	} else {
		l.head[list] = id
	}
	l.tail[list] = id
	l.added(list)
}

func (l *freeLists) added(list int8) {
	l.count++
	l.size[list]++
	if list != listEmpty {
		l.some[list>>6] |= 1 << (list & 63)
	}
}

func (l *freeLists) remove(id int32) {
	b := &l.blocks[id]
	list := b.list
	if b.prev >= 0 {
		l.blocks[b.prev].next = b.next
	} else {
		l.head[list] = b.next
	}
	if b.next >= 0 {
		l.blocks[b.next].prev = b.prev
	} else {
		l.tail[list] = b.prev
	}
	b.list = listNone
	l.count--
	l.size[list]--
	if list != listEmpty && l.size[list] == 0 {
		l.some[list>>6] &^= 1 << (list & 63)
	}
}

// chains groups blocks by a key in doubly linked lists, with O(1) insertion
// and removal and no allocation beyond the map's.
type chains[K comparable] struct {
	head       map[K]int32
	prev, next []int32
}

func newChains[K comparable](n int) chains[K] {
	return chains[K]{head: make(map[K]int32, n), prev: make([]int32, n), next: make([]int32, n)}
}

// first returns the first block of k's chain, or -1.
func (c *chains[K]) first(k K) int32 {
	if id, ok := c.head[k]; ok {
		return id
	}
	return -1
}

func (c *chains[K]) add(k K, id int32) {
	head := c.first(k)
	c.prev[id], c.next[id] = -1, head
	if head >= 0 {
		c.prev[head] = id
	}
	c.head[k] = id
}

func (c *chains[K]) remove(k K, id int32) {
	p, n := c.prev[id], c.next[id]
	if n >= 0 {
		c.prev[n] = p
	}
	switch {
	case p >= 0:
		c.next[p] = n
	case n >= 0:
		c.head[k] = n
	default:
		delete(c.head, k)
	}
}
