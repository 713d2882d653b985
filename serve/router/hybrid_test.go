package router

import (
	"testing"

	"tandem/serve/discovery"
)

// The hybrid router sees the load that other frontends put on a worker, and not its own twice.
func TestHybridCountsTheLoadOfOthers(t *testing.T) {
	info := &discovery.ServerInfo{MaxBatchSize: 8}
	list := []discovery.Instance{{ID: "a", Info: info}, {ID: "b", Info: info}}
	r := NewHybrid(Config{Type: KindHybrid})
	ask := func(id string) Selection {
		t.Helper()
		sel, err := r.Select(Request{RoutingID: id, ConversationID: id, Candidates: func() []discovery.Instance { return list }})
		if err != nil {
			t.Fatal(err)
		}
		return sel
	}
	r.Report("a", 3)
	open := []Selection{ask(""), ask(""), ask("")}
	for _, sel := range open {
		if sel.Instance.ID != "b" {
			t.Errorf("others keep a busy, and it was chosen beside %v", open)
		}
	}
	r.Report("b", 3) // these are ours
	if n := r.busy("b"); n != 3 {
		t.Errorf("b has our 3 requests, and counts as %d", n)
	}
	for i := range open {
		open[i].Reservation.Release(true)
	}
	if n := r.busy("b"); n != 0 {
		t.Errorf("b is idle, and counts as %d", n)
	}
	r.Settle("home", "a")
	r.Report("a", 40) // beyond its share: even a conversation goes elsewhere
	if sel := ask("home"); sel.Instance.ID != "b" || sel.Outcome != Overflow || r.Home("home") != "a" {
		t.Errorf("%s, %s, home %s", sel.Instance.ID, sel.Outcome, r.Home("home"))
	}
	r.Report("a", 0)
	if sel := ask("home"); sel.Instance.ID != "a" {
		t.Errorf("a is idle again, and the conversation went to %s", sel.Instance.ID)
	}
	r.Report("a", 9)
	r.Forget("a")
	if n := r.busy("a"); n != 1 { // its own reservation ends by itself
		t.Errorf("a restarted, and counts as %d", n)
	}
}
