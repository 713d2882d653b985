package adprouter

import (
	"fmt"
	"strings"
)

// mix is the splitmix64 step: a bijection of 64-bit words that spreads every bit.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// hashKey mixes eight bytes at a time: the same in every process, unlike the hash
// of the runtime's maps.
func hashKey(s string) uint64 {
	h := uint64(len(s))
	for ; len(s) >= 8; s = s[8:] {
		h = mix(h ^ (uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56))
	}
	var last uint64
	for i := range len(s) {
		last |= uint64(s[i]) << (8 * i)
	}
	return mix(h ^ last)
}

func hashTokens(head []int32) uint64 {
	h := uint64(len(head))
	for _, t := range head {
		h = mix(h ^ uint64(uint32(t)))
	}
	return h
}

// Digest returns a digest of everything that the next Route depends on besides
// its arguments: bindings and their order, moves under way, cursor, warm-up set,
// recent work, and the last assignment. Equal routers have equal digests; it goes into the
// exchange together with the queue's.
func (r *Router) Digest() uint64 {
	d := r.bind.moves.digest(mix(r.bind.sum))
	d = mix(d ^ uint64(r.cursor))
	d = mix(d ^ r.warm.votes)
	d = mix(d ^ r.warm.common)
	for rank := range r.cfg.Ranks {
		if r.warm.pending[rank] {
			d ^= 1
		}
		d = mix(mix(d^uint64(r.recent[rank])<<1) ^ uint64(r.queue[rank]))
		d = mix(d ^ uint64(r.done[rank]))
	}
	return mix(d ^ r.assigned)
}

// Dump describes the replicated state for the report of a divergence: the parts
// of the digest, and the bindings used last, newest first.
func (r *Router) Dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "router %s digest %016x: cursor %d, warm-up pending %v, recent work %v, queues %v, computed %v, last assignment %016x\n",
		r.cfg.Kind, r.Digest(), r.cursor, r.Pending(), r.recent, r.queue, r.done, r.assigned)
	keys := r.bind.lru.Keys()
	fmt.Fprintf(&b, "%d bindings, digest %016x, %d touches, %d evicted\n", len(keys), r.bind.sum, r.bind.touches, r.bind.evicted)
	for i := len(keys) - 1; i >= max(0, len(keys)-64); i-- {
		e := r.bind.peek(keys[i])
		fmt.Fprintf(&b, "  key %016x rank %d touch %d tokens %d moved %d\n", e.hash, e.rank, e.touch, e.tokens, e.moved)
	}
	fmt.Fprintf(&b, "%d moves under way in call %d\n", len(r.bind.moves.open), r.bind.moves.calls)
	for _, m := range r.bind.moves.open {
		fmt.Fprintf(&b, "  key %016x to rank %d tokens %d until call %d\n", m.of.hash, m.of.to, m.tokens, m.until)
	}
	return b.String()
}
