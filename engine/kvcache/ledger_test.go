package kvcache

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
)

func talk(id string) Conversation {
	return Conversation{ID: id, Root: blockhash.Root("m", "", "")}
}

// links are the hashes of a chain with a name for each of its blocks.
func links(names string) (out []blockhash.Hash) {
	h := blockhash.Hash{}
	for _, c := range names {
		h = blockhash.Next(h, []int32{c})
		out = append(out, h)
	}
	return out
}

func TestLedgerFindsDeadTails(t *testing.T) {
	for _, tc := range []struct {
		turns int
		ends  []string // chains of the turns before
		next  string   // prompt of the next one
		dead  string   // of its oldest turn that is dropped, as its end
	}{
		{1, nil, "ab", ""},
		{1, []string{"abRR"}, "abc", "RR"},
		{1, []string{"abc"}, "abcd", ""},
		{1, []string{"abc"}, "xyz", "abc"},
		{1, []string{"abRR", "abcSS"}, "abcd", "SS"},
		{2, []string{"abRR"}, "abc", ""},
		{2, []string{"abRR", "abcSS"}, "abcd", "RR"},
		{2, []string{"abRR", "abRRS"}, "abc", ""},
		{1, []string{"abcd"}, "ab", "cd"},
	} {
		l := NewLedger(tc.turns, 10, 1000)
		turn := uint64(0)
		for _, end := range tc.ends {
			turn++
			l.Begin(talk("x"), turn)
			l.End(talk("x"), turn, links(end))
		}
		l.Begin(talk("x"), 99)
		got := l.Prefilled(talk("x"), 99, links(tc.next))
		var want []blockhash.Hash
		if len(tc.ends) >= tc.turns {
			oldest := tc.ends[len(tc.ends)-tc.turns]
			want = links(oldest)[len(oldest)-len(tc.dead):]
			slices.Reverse(want)
		}
		if len(got) != len(tc.dead) || len(got) > 0 && !slices.Equal(got, want) {
			t.Errorf("%+v: %d blocks are dead", tc, len(got))
		}
	}
}

func TestLedgerTracksOneTurnAtATime(t *testing.T) {
	l := NewLedger(1, 10, 1000)
	if !l.Begin(talk("a"), 1) || l.Begin(talk("a"), 2) || !l.Begin(talk("b"), 3) {
		t.Error("one turn of each conversation must be tracked")
	}
	if !l.Begin(Conversation{ID: "a", Root: blockhash.Root("m", "", "tenant")}, 4) {
		t.Error("another tenant's conversation of the same id is taken for an overlap")
	}
	l.End(talk("a"), 2, links("xyz")) // was never tracked
	l.End(talk("a"), 1, links("abRR"))
	l.Begin(talk("a"), 5)
	if got := l.Prefilled(talk("a"), 5, links("abc")); len(got) != 2 {
		t.Errorf("%d dead blocks", len(got))
	}
	l.End(talk("a"), 5, nil) // cancelled: the record before stays
	l.Begin(talk("a"), 6)
	if got := l.Prefilled(talk("a"), 6, links("abd")); len(got) != 2 {
		t.Errorf("%d dead blocks after a turn that was cancelled", len(got))
	}
	if l.Live() != 3 {
		t.Errorf("%d turns are under way", l.Live())
	}
	l.Clear()
	l.End(talk("a"), 6, links("abd"))
	if l.Len() != 0 || l.Live() != 0 {
		t.Errorf("%d conversations after a reset", l.Len())
	}
}

func TestLedgerIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys, refs := rapid.IntRange(1, 5).Draw(t, "keys"), rapid.IntRange(1, 40).Draw(t, "refs")
		l := NewLedger(rapid.IntRange(1, 3).Draw(t, "turns"), keys, refs)
		turn := uint64(0)
		open := map[string]uint64{}
		t.Repeat(map[string]func(*rapid.T){
			"turn": func(t *rapid.T) {
				turn++
				id := fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "id"))
				if l.Begin(talk(id), turn) {
					open[id] = turn
				}
			},
			"end": func(t *rapid.T) {
				id := fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "id"))
				chain := links("abcdefgh"[:rapid.IntRange(0, 8).Draw(t, "n")])
				l.Prefilled(talk(id), open[id], chain)
				l.End(talk(id), open[id], chain)
				delete(open, id)
			},
			"": func(t *rapid.T) {
				sum := 0
				for _, el := range l.entries {
					e := el.Value.(*ledgerEntry)
					for _, c := range e.past {
						sum += len(c)
					}
					if len(e.past) > l.turns {
						t.Fatalf("%d turns are kept", len(e.past))
					}
				}
				if l.Len() > keys || sum != l.refs || sum > refs && l.Len() > 1 || l.order.Len() != l.Len() {
					t.Fatalf("%d conversations with %d hashes, counted %d", l.Len(), sum, l.refs)
				}
			},
		})
	})
}
