package workload

import (
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Shared returns the segments that more than one root conversation (or single request) begins with. They keep their content
// when a workload is gone through again; the rest is then new, so that no cache knows it.
func (w *Workload) Shared() map[uint64]bool {
	owner := map[uint64]string{}
	shared := map[uint64]bool{}
	for i := range w.Requests {
		r := &w.Requests[i]
		who := r.Conversation
		switch {
		case r.Parent != "":
			who = r.Parent
		case who == "":
			who = "\x00" + r.ID
		}
		for _, s := range r.Prompt {
			if o, ok := owner[s.ID]; !ok {
				owner[s.ID] = who
			} else if o != who {
				shared[s.ID] = true
			}
		}
	}
	return shared
}

// Reuse returns which share of the full blocks of all prompts, in the order of the workload, a cache of so many tokens
// would have had, with the least recently used leaving first. 0 tokens: no limit.
func (w *Workload) Reuse(block, tokens int) float64 {
	type cache interface {
		Add(key uint64, v struct{}) bool
		Get(key uint64) (struct{}, bool)
	}
	var c cache = boundless{}
	if tokens > 0 {
		lru, err := simplelru.NewLRU[uint64, struct{}](max(1, tokens/block), nil)
		if err != nil {
			return 0
		}
		c = lru
	}
	var blocks []uint64
	hits, all := 0, 0
	for i := range w.Requests {
		blocks = w.Requests[i].AppendBlocks(blocks[:0], block)
		all += len(blocks)
		n := 0
		for n < len(blocks) {
			if _, ok := c.Get(blocks[n]); !ok {
				break // what follows a block that is gone cannot be used
			}
			n++
		}
		hits += n
		for _, b := range slices.Backward(blocks) { // the end of a prompt leaves before its beginning
			c.Add(b, struct{}{})
		}
	}
	if all == 0 {
		return 0
	}
	return float64(hits) / float64(all)
}

type boundless map[uint64]struct{}

func (b boundless) Add(k uint64, v struct{}) bool {
	b[k] = v
	return false
}

func (b boundless) Get(k uint64) (struct{}, bool) {
	v, ok := b[k]
	return v, ok
}
