package disagg

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// told reads what a waiter's channel says: "", "place" or "out".
func (w *waiter) told() string {
	select {
	case ok := <-w.turn:
		if ok {
			return "place"
		}
		return "out"
	default:
		return ""
	}
}

func TestFairQueueKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places, room := rapid.IntRange(1, 4).Draw(t, "places"), rapid.IntRange(0, 6).Draw(t, "room")
		q := newFairQueue(places, room)
		weights := map[string]float64{"a": 1, "b": 1, "c": 3}
		running, waiting := []*waiter{}, []*waiter{}
		count := func(list []*waiter, tenant string) (n int) {
			for _, w := range list {
				if w.tenant == tenant {
					n++
				}
			}
			return n
		}
		settle := func() {
			waiting = slices.DeleteFunc(waiting, func(w *waiter) bool {
				switch w.told() {
				case "place":
					running = append(running, w)
				case "out":
				default:
					return false
				}
				return true
			})
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "do") {
			case 0, 1:
				w := &waiter{tenant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), priority: float64(rapid.IntRange(0, 2).Draw(t, "priority"))}
				w.weight = weights[w.tenant]
				full := len(waiting) == room
				mine := float64(count(waiting, w.tenant)+1) / w.weight
				switch q.arrive(w) {
				case entryRuns:
					running = append(running, w)
				case entryWaits:
					waiting = append(waiting, w)
				case entryRefused:
					if !full {
						t.Fatal("refused while there is room")
					}
					for name, weight := range weights {
						if name != w.tenant && float64(count(waiting, name)-1)/weight > mine {
							t.Fatalf("%s refused while %s fills the room", w.tenant, name)
						}
					}
				}
			case 2:
				if len(running) > 0 {
					i := rapid.IntRange(0, len(running)-1).Draw(t, "leaves")
					gone := running[i]
					running = slices.Delete(running, i, i+1)
					before := slices.Clone(waiting)
					q.leave(gone.tenant)
					n := len(running)
					settle()
					if len(before) > 0 {
						if len(running) != n+1 {
							t.Fatal("a free place is not passed on")
						}
						checkTurn(t, running[n], before, running[:n], weights, count)
					}
				}
			case 3:
				if len(waiting) > 0 {
					i := rapid.IntRange(0, len(waiting)-1).Draw(t, "gives up")
					if !q.giveUp(waiting[i]) {
						t.Fatal("a waiter is not known")
					}
					waiting = slices.Delete(waiting, i, i+1)
				}
			}
			settle()
			if len(running) > places || len(waiting) > room || q.running != len(running) || q.waiting != len(waiting) {
				t.Fatalf("%d run and %d wait; queue says %d, %d", len(running), len(waiting), q.running, q.waiting)
			}
			if len(waiting) > 0 && len(running) < places {
				t.Fatal("requests wait beside a free place")
			}
		}
		for _, w := range waiting {
			q.giveUp(w)
		}
		for _, w := range running {
			q.leave(w.tenant)
		}
		if len(q.lanes) != 0 || q.running != 0 || q.waiting != 0 {
			t.Fatalf("left behind: %+v", q)
		}
	})
}

// checkTurn: nobody with less running for their weight was passed over, and no more urgent or earlier request of the same tenant.
func checkTurn(t *rapid.T, got *waiter, before, running []*waiter, weights map[string]float64, count func([]*waiter, string) int) {
	share := func(tenant string) float64 { return float64(count(running, tenant)) / weights[tenant] }
	for _, w := range before {
		switch {
		case w.tenant != got.tenant && share(w.tenant) < share(got.tenant):
			t.Fatalf("%s was passed over for %s", w.tenant, got.tenant)
		case w.tenant == got.tenant && w != got && (w.priority > got.priority || w.priority == got.priority && w.seq < got.seq):
			t.Fatalf("a request of %s was passed over", w.tenant)
		}
	}
}

// A tenant who floods does not keep another from being served next, or from waiting at all.
func TestFloodDoesNotStarve(t *testing.T) {
	q := newFairQueue(2, 4)
	var flood []*waiter
	for range 6 {
		w := &waiter{tenant: "loud", weight: 1}
		q.arrive(w)
		flood = append(flood, w)
	}
	if got := q.arrive(&waiter{tenant: "loud", weight: 1}); got != entryRefused {
		t.Errorf("room is full: %v", got)
	}
	quiet := &waiter{tenant: "quiet", weight: 1}
	if got := q.arrive(quiet); got != entryWaits || flood[5].told() != "out" {
		t.Errorf("the last of the flood makes room: %v", got)
	}
	q.leave("loud")
	if quiet.told() != "place" {
		t.Error("the quiet one is next")
	}
	urgent := &waiter{tenant: "loud", weight: 1, priority: 1}
	if got := q.arrive(urgent); got != entryWaits {
		t.Errorf("%v", got)
	}
	q.leave("loud")
	if urgent.told() != "place" {
		t.Error("its own most urgent request goes first")
	}
}

func TestUnlimitedQueueNeverWaits(t *testing.T) {
	q := newFairQueue(0, 0)
	for i := range 100 {
		if q.arrive(&waiter{tenant: fmt.Sprint(i % 3), weight: 1}) != entryRuns {
			t.Fatal("waits")
		}
	}
}
