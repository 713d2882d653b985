package workload

import (
	"math/rand/v2"
	"slices"
	"time"
)

// timeline is when the requests of a workload began and ended, as it tells itself, each within its tree: a root
// conversation with all its sub-agents, which begins at 0.
type timeline struct {
	tree       []int   // by request
	trees      [][]int // requests in the order of the workload
	start, end []time.Duration
}

// timeline follows what the requests wait for; requests whose duration is not known end when they begin.
func (w *Workload) timeline() *timeline {
	t := &timeline{tree: make([]int, len(w.Requests)), start: make([]time.Duration, len(w.Requests)), end: make([]time.Duration, len(w.Requests))}
	of := map[string]int{} // conversation to tree
	for i := range w.Requests {
		r := &w.Requests[i]
		at, known := of[r.Conversation]
		if !known && r.Parent != "" {
			at, known = of[r.Parent]
		}
		if !known {
			at = len(t.trees)
			t.trees = append(t.trees, nil)
		}
		if r.Conversation != "" {
			of[r.Conversation] = at
		}
		t.tree[i] = at
		t.trees[at] = append(t.trees[at], i)
		if first := t.trees[at][0]; len(r.After) == 0 && r.Arrival > w.Requests[first].Arrival && w.Requests[first].Arrival != NoArrival {
			t.start[i] = r.Arrival - w.Requests[first].Arrival
		}
		for _, a := range r.After {
			t.start[i] = max(t.start[i], t.end[a]+r.Delay+r.ToolWait)
		}
		if t.end[i] = t.start[i]; r.Observed != nil {
			t.end[i] += time.Duration(r.Observed.E2EMs * float64(time.Millisecond))
		}
	}
	return t
}

// chained returns the workload with what follows by its place only written down: a turn that waits for none waits for the
// turn before, as long as it did when it was recorded.
func (w *Workload) chained() *Workload {
	out := *w
	out.Requests = slices.Clone(w.Requests)
	turn := map[string]int{}
	for i := range out.Requests {
		r := &out.Requests[i]
		if r.Conversation == "" {
			continue
		}
		if prev, ok := turn[r.Conversation]; ok && len(r.After) == 0 {
			r.After = []int{prev}
			if p := &w.Requests[prev]; r.Delay+r.ToolWait == 0 && p.Observed != nil && p.Arrival != NoArrival && r.Arrival != NoArrival {
				r.Delay = max(0, r.Arrival-p.Arrival-time.Duration(p.Observed.E2EMs*float64(time.Millisecond)))
			}
		}
		turn[r.Conversation] = i
	}
	return &out
}

// Compress returns the workload with no more than most between the starts of two requests of a tree that follow each other:
// what is longer is shortened, and all after it comes earlier. Waits stay waits from an end to a start.
func (w *Workload) Compress(most time.Duration) *Workload {
	out := w.chained()
	t := out.timeline()
	for _, tree := range t.trees {
		starts := make([]time.Duration, len(tree))
		for k, i := range tree {
			starts[k] = t.start[i]
		}
		slices.Sort(starts)
		moved := make([]time.Duration, len(starts))
		for k := 1; k < len(starts); k++ {
			moved[k] = moved[k-1] + min(starts[k]-starts[k-1], most)
		}
		at := func(x time.Duration) time.Duration {
			k, _ := slices.BinarySearch(starts, x+1)
			return moved[max(k-1, 0)] + min(x-starts[max(k-1, 0)], most)
		}
		first := out.Requests[tree[0]].Arrival
		for _, i := range tree {
			r := &out.Requests[i]
			if len(r.After) == 0 {
				if first != NoArrival && r.Arrival != NoArrival {
					r.Arrival = first + at(t.start[i])
				}
				continue
			}
			var ended time.Duration
			for _, a := range r.After {
				ended = max(ended, at(t.end[a]))
			}
			wait := max(0, at(t.start[i])-ended)
			r.ToolWait = min(r.ToolWait, wait)
			r.Delay = wait - r.ToolWait
		}
	}
	return out
}

// JoinMidway returns the workload with its first lanes trees joined at a random moment between the parts from and to of
// their time, as clients that have been there for long. The turn of the root conversation that runs then comes first and
// is Warm: it brings the history that the server lacks. What began before it is Early.
func (w *Workload) JoinMidway(lanes int, from, to float64, seed uint64) *Workload {
	rng := rngOf(seed, "join midway")
	out := w.chained()
	t := out.timeline()
	for _, tree := range t.trees[:min(lanes, len(t.trees))] {
		if warm := t.joins(out, tree, rng, from, to); warm >= 0 {
			for _, i := range tree {
				r := &out.Requests[i]
				r.Early = t.start[i] < t.start[warm] || r.Parent == "" && i < warm
			}
			out.Requests[warm].Warm = true
		}
	}
	return out
}

// joins draws the root's turn at which a tree is joined; -1 if it has only one, which is not the last.
func (t *timeline) joins(w *Workload, tree []int, rng *rand.Rand, from, to float64) int {
	var last time.Duration
	for _, i := range tree {
		last = max(last, t.start[i])
	}
	moment := time.Duration((from + (to-from)*rng.Float64()) * float64(last))
	var turns []int
	for _, i := range tree {
		if w.Requests[i].Parent == "" {
			turns = append(turns, i)
		}
	}
	if len(turns) < 2 {
		return -1
	}
	warm := turns[0]
	for _, i := range turns[:len(turns)-1] {
		if t.start[i] <= moment {
			warm = i
		}
	}
	return warm
}
