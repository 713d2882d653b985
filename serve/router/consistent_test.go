package router

import (
	"fmt"
	"testing"
)

func TestConsistentHash(t *testing.T) {
	one, two := NewConsistent(Config{}), NewConsistent(Config{})
	at := func(r Router, id string, live ...string) string {
		t.Helper()
		sel, err := r.Select(Request{RoutingID: id, Candidates: kvServers(live...)})
		if err != nil {
			t.Fatal(err)
		}
		sel.Reservation.Release(true)
		return sel.Instance.ID
	}
	share, moved := map[string]int{}, 0
	const n = 1200
	for i := range n {
		id := fmt.Sprint("s", i)
		home := at(one, id, "A", "B", "C", "D")
		if other := at(two, id, "D", "C", "A", "B"); other != home {
			t.Fatalf("%s lives on %s and, for another frontend, on %s", id, home, other)
		}
		share[home]++
		left := at(one, id, "A", "B", "C")
		if home != "D" && left != home {
			t.Fatalf("%s moved from %s to %s though only D left", id, home, left)
		}
		if left != home {
			moved++
		}
	}
	for name, have := range share {
		if have < n/5 || have > n/3 {
			t.Errorf("%s has %d of %d conversations", name, have, n)
		}
	}
	if moved != share["D"] {
		t.Errorf("%d moved, D had %d", moved, share["D"])
	}
}

func TestConsistentHashIsBoundedAndReadsBeginnings(t *testing.T) {
	r := NewConsistent(Config{})
	all := kvServers("A", "B")
	count := map[Outcome]int{}
	for range 8 {
		sel, err := r.Select(Request{RoutingID: "busy", Candidates: all})
		if err != nil {
			t.Fatal(err)
		}
		count[sel.Outcome]++
	}
	if count[Sticky] != 6 || count[Overflow] != 2 {
		t.Errorf("eight at once: %v", count)
	}
	begin := text(200, 200, 'A')
	for _, c := range []struct {
		name, a, b string
		same       bool
		why        Outcome
	}{
		{"same beginning", begin + "x", begin + "yyy", true, Implicit},
		{"too short", "x", "x", false, Load},
	} {
		r := NewConsistent(Config{})
		first, _ := r.Select(Request{Text: c.a, Candidates: all})
		first.Reservation.Release(true)
		second, _ := r.Select(Request{Text: c.b, Candidates: all})
		if (first.Instance.ID == second.Instance.ID) != c.same || second.Outcome != c.why {
			t.Errorf("%s: %s, then %s %s", c.name, first.Instance.ID, second.Instance.ID, second.Outcome)
		}
	}
}
