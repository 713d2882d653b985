package discovery

import (
	"cmp"
	"slices"
)

// RendezvousOrder returns all indices of ids by highest-random-weight hashing: the owner of key first, then those that would
// own it were the ones before them gone. Frontends that see the same ids agree without talking to each other; when an id
// leaves, only its own keys move, and when one joins, it takes about 1/len(ids) of them. The order of ids does not matter.
func RendezvousOrder(key string, ids []string) []int {
	order := make([]int, len(ids))
	weights := make([]uint64, len(ids))
	for i, id := range ids {
		order[i], weights[i] = i, rendezvousWeight(key, id)
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(ids[a], ids[b]), a-b)
	})
	return order
}

// rendezvousWeight is FNV-1a over key, a separator and id, finished so that every input bit reaches every output bit. It is
// part of what frontends agree on: another formula in one of them would split conversations.
func rendezvousWeight(key, id string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * prime
	}
	h *= prime // a zero byte between the two
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
