package workload

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func agentsOf(seed uint64) *Workload {
	o := C4(6, seed)
	o.Fanout, o.Turns = 0.3, Geometric(6)
	return Agentic(o)
}

// gaps returns the longest time between starts of a tree that follow each other.
func longest(w *Workload) (most time.Duration) {
	t := w.timeline()
	for _, tree := range t.trees {
		var starts []time.Duration
		for _, i := range tree {
			starts = append(starts, t.start[i])
		}
		slices.Sort(starts)
		for k := 1; k < len(starts); k++ {
			most = max(most, starts[k]-starts[k-1])
		}
	}
	return most
}

func TestCompressShortensWhatIsTooLongOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := agentsOf(rapid.Uint64().Draw(t, "seed"))
		recorded := rapid.Bool().Draw(t, "recorded")
		for i := range w.Requests {
			if recorded {
				w.Requests[i].Observed = &Observed{E2EMs: float64(Mix(1, uint64(i)) % 20000)}
			}
		}
		most := time.Duration(rapid.IntRange(1, 60_000).Draw(t, "ms")) * time.Millisecond
		c := w.Compress(most)
		before, after := w.timeline(), c.timeline()
		if whole := w.Compress(100 * time.Hour).timeline(); !slices.Equal(whole.start, before.start) {
			t.Fatal("without a gap that is too long something moved")
		}
		for i := range c.Requests {
			old, now := w.Requests[i].Delay+w.Requests[i].ToolWait, c.Requests[i].Delay+c.Requests[i].ToolWait
			if now < 0 || now > old || after.start[i] > before.start[i] {
				t.Fatalf("request %d waits for %v instead of %v, %v instead of %v after the beginning", i, now, old, after.start[i], before.start[i])
			}
		}
		// A request that runs longer than the gap may be keeps the next from coming.
		if got := longest(c); got > most && !recorded {
			t.Fatalf("a gap of %v is left, at most %v was asked for", got, most)
		}
	})
}

func TestCompressKeepsTimesOfItsOwn(t *testing.T) {
	second := time.Second
	w := &Workload{Requests: []Request{
		{ID: "a", Conversation: "c", Arrival: 5 * second, Input: 1, Observed: &Observed{E2EMs: 1000}},
		{ID: "b", Conversation: "c", Arrival: 105 * second, Input: 1},
		{ID: "d", Conversation: "s", Parent: "c", Arrival: 106 * second, Input: 1},
	}}
	c := w.Compress(10 * second)
	if b := c.Requests[1]; !slices.Equal(b.After, []int{0}) || b.Delay != 9*second {
		t.Errorf("the second turn waits for %v and %v, want the first and 9s", b.After, b.Delay)
	}
	if d := c.Requests[2]; d.Arrival != 16*second {
		t.Errorf("the sub-agent arrives at %v, want 16s", d.Arrival)
	}
	if len(w.Requests[1].After) != 0 || w.Requests[2].Arrival != 106*second {
		t.Error("the workload itself was changed")
	}
}

func TestJoinMidway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := agentsOf(rapid.Uint64().Draw(t, "seed"))
		lanes := rapid.IntRange(0, 8).Draw(t, "lanes")
		from := rapid.Float64Range(0, 1).Draw(t, "from")
		j := w.JoinMidway(lanes, from, 1, rapid.Uint64().Draw(t, "draw"))
		tl := w.timeline()
		for k, tree := range tl.trees {
			warm, early, turns := -1, 0, 0
			for _, i := range tree {
				r := &j.Requests[i]
				if r.Parent == "" {
					turns++
				}
				if r.Early {
					early++
				}
				if !r.Warm {
					continue
				}
				if warm >= 0 || r.Parent != "" || r.Early {
					t.Fatalf("tree %d: %s is warm", k, r.ID)
				}
				warm = i
			}
			if want := k < lanes && turns > 1; (warm >= 0) != want || !want && early > 0 {
				t.Fatalf("tree %d of %d turns, %d lanes: warm %d, %d early", k, turns, lanes, warm, early)
			}
			if warm >= 0 && j.Requests[warm].Final {
				t.Fatalf("tree %d: after the warm turn none is left to measure", k)
			}
			for _, i := range tree {
				for _, a := range j.Requests[i].After {
					if j.Requests[i].Early && !j.Requests[a].Early {
						t.Fatalf("%s is left out, but not %s, for which it waits", j.Requests[i].ID, j.Requests[a].ID)
					}
				}
			}
		}
	})
}

func TestPathologiesAreWhole(t *testing.T) {
	for _, w := range []*Workload{OneSided(1), PinnedGroups(1), HeadOfLine(240, 20, 1), Aborts(20, 1)} {
		if problems := w.Check(); len(problems) > 0 || w.Source == "" {
			t.Errorf("%s: %v", w.Name, problems)
		}
	}
	if w := Aborts(20, 1); len(w.Requests) != 1201 || w.Requests[1200].Leave != 0 || w.Requests[0].Leave == 0 {
		t.Errorf("%d requests, the last leaves after %v", len(w.Requests), w.Requests[1200].Leave)
	}
}
