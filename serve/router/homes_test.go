package router

import (
	"testing"

	"tandem/serve/discovery"
)

// A conversation goes to the home that another frontend gave it, and to a new one when that is gone.
func TestSettledConversationsStick(t *testing.T) {
	list := []discovery.Instance{{ID: "a", Info: &discovery.ServerInfo{}}, {ID: "b", Info: &discovery.ServerInfo{}}, {ID: "c", Info: &discovery.ServerInfo{}}}
	for name, r := range map[string]Keeper{"conversation": NewConversation(Config{Type: KindConversation}), "hybrid": NewHybrid(Config{Type: KindHybrid})} {
		ask := func(id string, at []discovery.Instance) Selection {
			t.Helper()
			sel, err := r.Select(Request{RoutingID: id, ConversationID: id, Text: "hello there", Candidates: func() []discovery.Instance { return at }})
			if err != nil {
				t.Fatal(err)
			}
			sel.Reservation.Release(true)
			return sel
		}
		if r.Home("s") != "" {
			t.Errorf("%s: a home before the first turn", name)
		}
		r.Settle("s", "c")
		if sel := ask("s", list); sel.Instance.ID != "c" || sel.Outcome != Sticky || r.Home("s") != "c" {
			t.Errorf("%s: settled at c, went to %s (%s)", name, sel.Instance.ID, sel.Outcome)
		}
		if sel := ask("s", list[:2]); sel.Outcome != Fallback || r.Home("s") != sel.Instance.ID {
			t.Errorf("%s: without its home it went to %s (%s), its home is %s", name, sel.Instance.ID, sel.Outcome, r.Home("s"))
		}
		ask("t", list[:1])
		r.Settle("t", "b")
		if sel := ask("t", list); sel.Instance.ID != "b" {
			t.Errorf("%s: settled anew at b, went to %s", name, sel.Instance.ID)
		}
		r.Forget("b")
		if r.Home("t") != "" {
			t.Errorf("%s: forgotten, and yet at %s", name, r.Home("t"))
		}
	}
}
