package schedule

import (
	"time"

	"tandem/test/bench/workload"
)

// graph is what the requests of a workload wait for, as one load model sees it.
type graph struct {
	nodes []node
	units []unit
}

// node is a request.
type node struct {
	after, before []int         // requests that end before it begins, and that begin after it ends
	wait          time.Duration // after the last of them, or after the start of its unit
	place         int           // in its unit
	root          bool          // it is in a root conversation
	left          bool          // it is left out
	early         bool          // it is left out when the workload is gone through for the first time
}

// unit is a set of requests that wait for nothing outside it: a request alone, a conversation, or a tree of them.
type unit struct {
	requests []int
	root     int // how many are in a root conversation
}

func newGraph(w *workload.Workload, o *Options) (*graph, error) {
	g := &graph{nodes: make([]node, len(w.Requests))}
	turn := map[string]int{} // last request of a conversation
	sets := newSets(len(w.Requests))
	for i := range w.Requests {
		r, n := &w.Requests[i], &g.nodes[i]
		n.root, n.early = r.Parent == "", r.Early
		n.after = r.After
		n.wait = think(o, r.Delay+r.ToolWait)
		prev, follows := turn[r.Conversation]
		if follows = follows && r.Conversation != ""; follows {
			sets.join(prev, i)
		}
		if len(n.after) == 0 && follows && (o.Mode != Fixed || r.Arrival == workload.NoArrival) {
			n.after = []int{prev}
			if n.wait == 0 {
				n.wait = think(o, recorded(&w.Requests[prev], r))
			}
		}
		for _, a := range n.after {
			if a < 0 || a >= i {
				return nil, refuse("request %d of the workload waits for request %d, which is not before it", i, a)
			}
			sets.join(a, i)
			n.left = n.left || g.nodes[a].left
		}
		if len(n.after) == 0 {
			g.clock(r, n, o)
		}
		if r.Conversation != "" {
			turn[r.Conversation] = i
		}
	}
	for i := range w.Requests {
		if p, ok := turn[w.Requests[i].Parent]; ok && w.Requests[i].Parent != "" {
			sets.join(p, i)
		}
	}
	g.gather(w, o, sets)
	if len(g.units) == 0 {
		return nil, refuse("no request of the workload is left to send")
	}
	return g, nil
}

// recorded is the idle time between two turns of a recorded conversation.
func recorded(prev, r *workload.Request) time.Duration {
	if prev.Arrival == workload.NoArrival || r.Arrival == workload.NoArrival || prev.Observed == nil {
		return 0
	}
	return max(0, r.Arrival-prev.Arrival-time.Duration(prev.Observed.E2EMs*float64(time.Millisecond)))
}

// think scales the idle times of a workload.
func think(o *Options, d time.Duration) time.Duration {
	switch {
	case o.NoThink:
		return 0
	case o.ThinkScale > 0:
		return stretched(d, o.ThinkScale)
	}
	return d
}

// clock sets when a request that waits for none begins.
func (g *graph) clock(r *workload.Request, n *node, o *Options) {
	if o.Mode != Fixed {
		return // relative to its unit: see gather
	}
	at := max(0, r.Arrival)
	n.left = at < o.From || o.To > 0 && at >= o.To
	n.wait = at - o.From
}

// gather makes the units, in the order of their first requests.
func (g *graph) gather(w *workload.Workload, o *Options, sets sets) {
	index := map[int]int{}
	earliest := Never
	for i := range g.nodes {
		n := &g.nodes[i]
		if n.left {
			continue
		}
		for _, a := range n.after {
			g.nodes[a].before = append(g.nodes[a].before, i)
		}
		k, ok := index[sets.find(i)]
		if !ok {
			k = len(g.units)
			index[sets.find(i)] = k
			g.units = append(g.units, unit{})
		}
		u := &g.units[k]
		n.place = len(u.requests)
		u.requests = append(u.requests, i)
		if n.root {
			u.root++
		}
		if o.Mode == Fixed && len(n.after) == 0 {
			earliest = min(earliest, n.wait)
		}
	}
	for k := range g.units {
		g.offsets(w, o, &g.units[k], earliest)
	}
}

// offsets turns arrival times into waits after the start of a unit, or of the run.
func (g *graph) offsets(w *workload.Workload, o *Options, u *unit, earliest time.Duration) {
	first := Never
	for _, i := range u.requests {
		if a := w.Requests[i].Arrival; len(g.nodes[i].after) == 0 && a != workload.NoArrival {
			first = min(first, a)
		}
	}
	for _, i := range u.requests {
		n := &g.nodes[i]
		switch a := w.Requests[i].Arrival; {
		case len(n.after) > 0:
		case o.Mode == Fixed:
			if o.AutoOffset {
				n.wait -= earliest
			}
			if o.Speed > 0 {
				n.wait = stretched(n.wait, 1/o.Speed)
			}
		case a != workload.NoArrival:
			n.wait = think(o, a-first)
		default:
			n.wait = 0
		}
	}
}

// sets are disjoint sets of requests.
type sets []int

func newSets(n int) sets {
	s := make(sets, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func (s sets) find(i int) int {
	for s[i] != i {
		s[i] = s[s[i]]
		i = s[i]
	}
	return i
}

func (s sets) join(a, b int) {
	a, b = s.find(a), s.find(b)
	s[max(a, b)] = min(a, b)
}
