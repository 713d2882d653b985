package tokenizer

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
)

const (
	maxCachedWord = 48      // bytes; longer pieces rarely repeat
	cacheShards   = 16      // power of two
	shardEntries  = 1 << 10 // per generation; at most 2 * 16 * 1024 words in all
)

// wordCache remembers the ids of short words. Each shard keeps two generations:
// when the young one is full it replaces the old one, so memory is bounded and
// words in use survive. It changes speed only, never a result.
type wordCache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu         sync.Mutex
	young, old map[string][]int32
}

func newWordCache() *wordCache { return &wordCache{seed: maphash.MakeSeed()} }

func (c *wordCache) shard(word string) *cacheShard {
	return &c.shards[maphash.String(c.seed, word)%cacheShards]
}

// get returns ids that the caller must not change.
func (c *wordCache) get(word string) ([]int32, bool) {
	s := c.shard(word)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ids, ok := s.young[word]; ok {
		return ids, true
	}
	ids, ok := s.old[word]
	if ok {
		s.add(word, ids)
	}
	return ids, ok
}

func (c *wordCache) put(word string, ids []int32) {
	s := c.shard(word)
	// Clone: the word is a window into a prompt that must not be kept alive.
	word, ids = strings.Clone(word), slices.Clone(ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(word, ids)
}

func (s *cacheShard) add(word string, ids []int32) {
	if len(s.young) >= shardEntries {
		s.old, s.young = s.young, nil
	}
	if s.young == nil {
		s.young = make(map[string][]int32)
	}
	s.young[word] = ids
}
