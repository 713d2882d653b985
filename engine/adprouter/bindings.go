package adprouter

import (
	"fmt"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// binding is one conversation's home. Its touch number is unique and grows, so
// that the set of bindings also fixes their order of use.
type binding struct {
	hash   uint64 // of the key
	sum    uint64 // digest of the fields below, as it went into the sum of all
	touch  uint64
	tokens int64  // prompt length when last placed at home
	mark   int64  // the prompt is computed when home has computed that much
	moved  uint64 // touch number of its last move, 0 = none
	rank   int
	to     int // where a move under way goes, -1 = none
}

func (b *binding) digest() uint64 {
	d := mix(b.hash + uint64(b.rank) + uint64(b.to+1)<<32)
	d = mix(d ^ b.touch)
	d = mix(mix(d^uint64(b.tokens)) ^ uint64(b.mark))
	return mix(d ^ b.moved)
}

// bindings is the bounded map conversation to rank, least recently used first
// to go. sum is the order-free sum of the entries' digests; only the methods
// that change an entry change it.
type bindings struct {
	lru     *simplelru.LRU[string, *binding]
	sum     uint64
	touches uint64
	evicted uint64   // dropped by the bound, for metrics
	spare   *binding // the last one dropped, for the next new one
	moves   moves
}

func newBindings(limit, ranks int) *bindings {
	b := &bindings{moves: moves{busy: make([]int, ranks)}}
	lru, err := simplelru.NewLRU(max(limit, 1), func(_ string, e *binding) {
		b.sum -= e.sum
		b.evicted++
		if e.to >= 0 {
			b.moves.take(e)
			b.moves.counts.Forgotten++
		}
		b.spare = e
	})
	if err != nil {
		panic("adprouter: " + err.Error()) // only for a size below 1
	}
	b.lru = lru
	return b
}

// peek returns a conversation's binding, or nil, and leaves its place in the
// order of use alone.
func (b *bindings) peek(key string) *binding {
	e, _ := b.lru.Peek(key)
	return e
}

// touch makes a bound conversation the newest; e is its binding.
func (b *bindings) touch(key string, e *binding) {
	b.touches++
	e.touch = b.touches
	b.count(e)
	b.lru.Get(key)
}

// bind binds a conversation that is not bound, as the newest.
func (b *bindings) bind(key string, rank, tokens int, mark int64) {
	b.touches++
	e := b.spare
	if b.spare = nil; e == nil {
		e = &binding{}
	}
	*e = binding{hash: hashKey(key), rank: rank, to: -1, touch: b.touches, tokens: int64(tokens), mark: mark}
	b.count(e)
	b.lru.Add(key, e)
}

// count brings the sum up to date with a binding that has changed.
func (b *bindings) count(e *binding) {
	d := e.digest()
	b.sum += d - e.sum
	e.sum = d
}

// check recomputes sum from the entries, compares the order of use with the
// touch numbers and the moves under way with the entries.
func (b *bindings) check() error {
	var sum, last uint64
	moving := 0
	for _, key := range b.lru.Keys() {
		e := b.peek(key)
		if e.hash != hashKey(key) {
			return fmt.Errorf("binding of %q has the hash of another key", key)
		}
		if e.touch <= last {
			return fmt.Errorf("binding of %q has touch %d after %d", key, e.touch, last)
		}
		if e.to >= 0 {
			if moving++; b.moves.find(e) < 0 {
				return fmt.Errorf("binding of %q to rank %d goes to %d without a move", key, e.rank, e.to)
			}
		}
		last = e.touch
		sum += e.digest()
	}
	if sum != b.sum {
		return fmt.Errorf("digest of %d bindings is %016x, their sum is %016x", b.lru.Len(), b.sum, sum)
	}
	return b.moves.check(moving)
}
