package lockstep

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/adprouter"
	"tandem/engine/request"
)

// A delivery in pieces says what it would have said at once, in the same order
// for each request.
func TestDeliverySplits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 100).Draw(t, "limit")
		var d Delivery
		for i := range rapid.IntRange(0, 12).Draw(t, "requests") {
			d.New = append(d.New, &Arrival{
				Item:  adprouter.Item{ID: request.ID(i + 1)},
				Bytes: rapid.IntRange(1, 150).Draw(t, "bytes"),
			})
		}
		for range rapid.IntRange(0, 8).Draw(t, "removals") {
			id := request.ID(rapid.IntRange(0, 14).Draw(t, "removed"))
			d.Removals = append(d.Removals, Removal{ID: id, Code: request.Cancelled})
		}
		d.Drain = rapid.Bool().Draw(t, "drain")
		whole := d
		var arrived []request.ID
		var removed []Removal
		for !d.Empty() {
			if whole.Drain && !d.Drain {
				t.Fatal("the drain came before the last request")
			}
			var now Delivery
			now, d = d.split(limit)
			bytes := 0
			for _, a := range now.New {
				arrived = append(arrived, a.Item.ID)
				bytes += a.Bytes
			}
			if bytes > limit && len(now.New) > 1 {
				t.Fatalf("%d requests of %d bytes in one piece of %d", len(now.New), bytes, limit)
			}
			for _, r := range now.Removals {
				if int(r.ID) <= len(whole.New) && r.ID > 0 && !slices.Contains(arrived, r.ID) {
					t.Fatalf("request %d is removed before it has come", r.ID)
				}
			}
			removed = append(removed, now.Removals...)
		}
		if len(arrived) != len(whole.New) || !slices.IsSorted(arrived) || len(removed) != len(whole.Removals) {
			t.Fatalf("%v and %v of %+v", arrived, removed, whole)
		}
	})
}
