package adprouter

import (
	"fmt"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// binding is one conversation's home. Its touch number is unique and grows, so
// that the set of bindings also fixes their order of use.
type binding struct {
	hash   uint64 // of the key
	touch  uint64
	tokens int64 // prompt length when last placed
	rank   int
	moved  bool // next return is the first one after a move
}

func (b *binding) digest() uint64 {
	d := mix(b.hash + uint64(b.rank))
	d = mix(d ^ b.touch)
	if b.moved {
		d = ^d
	}
	return mix(d ^ uint64(b.tokens))
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
}

func newBindings(limit int) *bindings {
	b := &bindings{}
	lru, err := simplelru.NewLRU(max(limit, 1), func(_ string, e *binding) {
		b.sum -= e.digest()
		b.evicted++
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

// touch binds key to rank and makes it the newest.
func (b *bindings) touch(key string, rank int, tokens int) {
	b.touches++
	if e, ok := b.lru.Get(key); ok {
		b.sum -= e.digest()
		e.rank, e.touch, e.tokens, e.moved = rank, b.touches, int64(tokens), false
		b.sum += e.digest()
		return
	}
	e := b.spare
	if b.spare = nil; e == nil {
		e = &binding{}
	}
	*e = binding{hash: hashKey(key), rank: rank, touch: b.touches, tokens: int64(tokens)}
	b.sum += e.digest()
	b.lru.Add(key, e)
}

// move gives a bound conversation a new home without using it.
func (b *bindings) move(key string, rank int) bool {
	e := b.peek(key)
	if e == nil {
		return false
	}
	b.sum -= e.digest()
	e.rank, e.moved = rank, true
	b.sum += e.digest()
	return true
}

// check recomputes sum from the entries and compares the order of use with the
// touch numbers.
func (b *bindings) check() error {
	var sum, last uint64
	for _, key := range b.lru.Keys() {
		e := b.peek(key)
		if e.hash != hashKey(key) {
			return fmt.Errorf("binding of %q has the hash of another key", key)
		}
		if e.touch <= last {
			return fmt.Errorf("binding of %q has touch %d after %d", key, e.touch, last)
		}
		last = e.touch
		sum += e.digest()
	}
	if sum != b.sum {
		return fmt.Errorf("digest of %d bindings is %016x, their sum is %016x", b.lru.Len(), b.sum, sum)
	}
	return nil
}
