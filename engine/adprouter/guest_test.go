package adprouter

import (
	"testing"

	"tandem/engine/request"
)

// A sub-agent goes where its parent lives. It does not take the parent away, nor
// does its prompt change what the parent's next turn counts.
func TestGuests(t *testing.T) {
	c := Defaults(2, 16)
	c.Kind, c.Rehome.On = ConversationAware, true
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	idle := []RankState{{}, {}}
	r.Route(idle, []Item{{ID: 1, Key: "a", Rank: -1, Tokens: 30_000}})
	for range 3 {
		r.Route(idle, nil) // it is computed
	}
	busy := []RankState{{Active: 8, QueuedPrefill: 90_000}, {}}
	if p := r.Route(busy, []Item{{ID: 2, Key: "a", Guest: true, Rank: -1, Tokens: 33_000}}).Placed[0]; p.Rank != 0 || p.Reason != Sticky {
		t.Errorf("a sub-agent of a busy home: %+v", p)
	}
	r.Route(idle, nil)
	if got := r.work[0]; got != 0 {
		t.Errorf("work %d", got)
	}
	r.Route(idle, []Item{{ID: 3, Key: "a", Guest: true, Rank: -1, Tokens: 12_000}, {ID: 4, Key: "a", Rank: -1, Tokens: 30_500}})
	if want := int64(guestWork + 500 + 2*c.DecodeCost); r.work[0] != want {
		t.Errorf("a sub-agent and a turn of 500 new tokens count %d, want %d", r.work[0], want)
	}
	for range 3 {
		r.Route(idle, nil)
	}
	p := r.Route(busy, []Item{{ID: 5, Key: "a", Rank: -1, Tokens: 31_000}}).Placed[0]
	if p.Rank != 1 || p.Reason != Moved || p.Work < 500 || p.Work > 1500 {
		t.Errorf("the parent's own turn: %+v", p)
	}
	if p := r.Route(busy, []Item{{ID: 6, Key: "a", Guest: true, Rank: -1, Tokens: 12_000}}).Placed[0]; p.Rank != 1 || p.Reason != Moved {
		t.Errorf("a sub-agent of a parent on the move: %+v", p)
	}
	r.Move("a", 1)
	r.Route(idle, nil)
	r.Route(idle, []Item{{ID: 7, Key: "a", Rank: -1, Tokens: 31_400}})
	if want := int64(400 + c.DecodeCost); r.work[1] != want {
		t.Errorf("after the move a turn of 400 new tokens counts %d, want %d", r.work[1], want)
	}
}

func TestGuestsOfRequests(t *testing.T) {
	for want, r := range map[bool]request.Request{
		true:  {ConversationID: "child", AffinityKey: "parent"},
		false: {ConversationID: "own", AffinityKey: "own"},
	} {
		if it := NewItem(&r, 0); it.Guest != want {
			t.Errorf("%+v: guest %v", r, it.Guest)
		}
	}
	if it := NewItem(&request.Request{ConversationID: "own", AffinityKey: " "}, 0); it.Guest || it.Key != "own" {
		t.Errorf("%+v", it)
	}
}
