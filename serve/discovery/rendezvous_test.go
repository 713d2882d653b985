package discovery

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRendezvousSpreadsAndMovesOnlyWhatItMust(t *testing.T) {
	ids := []string{"10.0.0.1:8001", "10.0.0.1:8002", "10.0.0.2:8001", "10.0.0.2:8002"}
	count, moved := map[string]int{}, 0
	for i := range 4000 {
		key := fmt.Sprintf("conversation-%d", i)
		owner := ids[RendezvousOrder(key, ids)[0]]
		count[owner]++
		fewer := ids[:3]
		now := fewer[RendezvousOrder(key, fewer)[0]]
		if owner != ids[3] && now != owner {
			t.Fatalf("%s moved from %s to %s although its owner stayed", key, owner, now)
		}
		if now != owner {
			moved++
		}
	}
	for _, id := range ids {
		if n := count[id]; n < 850 || n > 1150 {
			t.Errorf("%s owns %d of 4000 keys", id, n)
		}
	}
	if moved != count[ids[3]] {
		t.Errorf("%d keys moved, %d had to", moved, count[ids[3]])
	}
	if len(RendezvousOrder("k", nil)) != 0 {
		t.Error("nobody owns a key of an empty set")
	}
}

// TestRendezvousIsFixed holds the formula: frontends of different versions must agree.
func TestRendezvousIsFixed(t *testing.T) {
	if got := rendezvousWeight("session-1", "127.0.0.1:8001"); got != 8998907770252069583 {
		t.Errorf("weight %d", got)
	}
}

func TestRendezvousOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.String().Draw(t, "key")
		ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,6}:[0-9]{1,4}`), 0, 8, rapid.ID).Draw(t, "ids")
		order := RendezvousOrder(key, ids)
		left := slices.Clone(ids)
		for _, at := range order {
			if got := left[RendezvousOrder(key, left)[0]]; got != ids[at] {
				t.Fatalf("next is %s, the order says %s", got, ids[at])
			}
			left = slices.DeleteFunc(left, func(id string) bool { return id == ids[at] })
		}
		if len(left) > 0 {
			t.Fatalf("the order lacks %v", left)
		}
		slices.Reverse(ids)
		if again := RendezvousOrder(key, ids); len(again) > 0 && ids[again[0]] != ids[len(ids)-1-order[0]] {
			t.Fatal("the order of ids matters")
		}
	})
}
