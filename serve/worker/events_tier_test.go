package worker

import (
	"encoding/json"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/runner"
)

// Events tell in which memory a block is.
func TestEventsTellOfTiers(t *testing.T) {
	for want, ev := range map[string]executor.CacheEvent{
		`{"type":"created","hash_algo":"tandem-kv1","num_blocks_per_cache_level":[16,8,4],"incarnation":"i1"}`: {Kind: executor.CacheCreated, Pools: []int{16, 8, 4}},
		`{"type":"stored","parent_hash":3,"blocks":[{"block_hash":7,"cache_level":2,"priority":35}]}`:          {Kind: executor.CacheStored, Parent: 3, Blocks: []uint64{7}, Level: 2, Priority: 35},
		`{"type":"updated","block_hash":7,"cache_level":{"old_value":0,"new_value":1}}`:                        {Kind: executor.CacheUpdated, Blocks: []uint64{7}, Was: 0, Level: 1},
	} {
		got, err := json.Marshal(eventOf(0, &ev, &runner.Info{Incarnation: "i1"}).Data)
		if err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}
