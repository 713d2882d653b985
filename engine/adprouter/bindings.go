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
		b.sum -= e.sum
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

// touch makes a bound conversation the newest; e is its binding.
func (b *bindings) touch(key string, e *binding, tokens int) {
	b.touches++
	e.touch, e.tokens, e.moved = b.touches, int64(tokens), false
	b.count(e)
	b.lru.Get(key)
}

// bind binds a conversation that is not bound, as the newest.
func (b *bindings) bind(key string, rank, tokens int) {
	b.touches++
	e := b.spare
	if b.spare = nil; e == nil {
		e = &binding{}
	}
	*e = binding{hash: hashKey(key), rank: rank, touch: b.touches, tokens: int64(tokens)}
	b.count(e)
	b.lru.Add(key, e)
}

// move gives a bound conversation a new home without using it.
func (b *bindings) move(key string, rank int) bool {
	e := b.peek(key)
	if e == nil {
		return false
	}
	e.rank, e.moved = rank, true
	b.count(e)
	return true
}

// count brings the sum up to date with a binding that has changed.
func (b *bindings) count(e *binding) {
	d := e.digest()
	b.sum += d - e.sum
	e.sum = d
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
