package traces

import (
	"container/heap"
	"fmt"
	"slices"

	"tandem/test/bench/workload"
)

// finish joins requests that wait for others by name, orders them, and checks all.
func (r *reader) finish() (*workload.Workload, *Report, error) {
	if err := r.join(); err != nil {
		return nil, nil, err
	}
	if err := r.order(); err != nil {
		return nil, nil, err
	}
	if err := r.check(); err != nil {
		return nil, nil, err
	}
	if len(r.w.Requests) == 0 {
		err := fmt.Errorf("%s: %w: no request is in it", r.o.Name, ErrTrace)
		if r.skipped > 0 {
			err = fmt.Errorf("%w: %d rows are beyond the limits of the format", err, r.skipped)
		}
		return nil, nil, err
	}
	rep := Describe(r.w)
	rep.LeftOut, rep.Skipped = r.bad, r.skipped
	return r.w, rep, nil
}

// join turns names into indexes.
func (r *reader) join() error {
	if len(r.links) == 0 {
		return nil
	}
	index := make(map[string]int, len(r.w.Requests))
	for i := range r.w.Requests {
		index[r.w.Requests[i].ID] = i
	}
	for _, l := range r.links {
		for _, id := range l.ids {
			at, ok := index[id]
			if !ok || at == l.request {
				if err := r.failAt(r.lines[l.request], "wait_for", "names %q, which is no other request of the file", id); err != nil {
					return err
				}
				continue
			}
			if q := &r.w.Requests[l.request]; !slices.Contains(q.After, at) {
				q.After = append(q.After, at)
			}
		}
	}
	return nil
}

// order puts each request behind those it waits for, and else keeps the order of the file.
func (r *reader) order() error {
	n := len(r.w.Requests)
	sorted := true
	left := make([]int, n)
	before := make([][]int, n)
	for i := range r.w.Requests {
		left[i] = len(r.w.Requests[i].After)
		for _, a := range r.w.Requests[i].After {
			sorted = sorted && a < i
			before[a] = append(before[a], i)
		}
	}
	if sorted {
		return nil
	}
	var free lowest
	for i, k := range left {
		if k == 0 {
			heap.Push(&free, i)
		}
	}
	order := make([]int, 0, n)
	for free.Len() > 0 {
		i := heap.Pop(&free).(int)
		order = append(order, i)
		for _, b := range before[i] {
			if left[b]--; left[b] == 0 {
				heap.Push(&free, b)
			}
		}
	}
	for i, k := range left {
		if k > 0 { // and so do those that wait for it
			if err := r.failAt(r.lines[i], "wait_for", "waits, by way of others, for the request itself"); err != nil {
				return err
			}
		}
	}
	r.keep(order)
	return nil
}

// keep makes the list the requests of order, which must have each behind those it waits for.
func (r *reader) keep(order []int) {
	position := make(map[int]int, len(order))
	requests, lines := make([]workload.Request, len(order)), make([]place, len(order))
	for at, i := range order {
		position[i] = at
		q := r.w.Requests[i]
		var after []int
		for _, a := range q.After {
			if p, ok := position[a]; ok { // what was left out is waited for by nobody
				after = append(after, p)
			}
		}
		q.After = after
		requests[at], lines[at] = q, r.lines[i]
	}
	r.w.Requests, r.lines = requests, lines
}

// lowest is a heap of indexes.
type lowest []int

func (h lowest) Len() int           { return len(h) }
func (h lowest) Less(i, j int) bool { return h[i] < h[j] }
func (h lowest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lowest) Push(x any)        { *h = append(*h, x.(int)) }
func (h *lowest) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// check runs the workload's own checks and names lines.
func (r *reader) check() error {
	wrong := map[int]bool{}
	for _, p := range r.w.Check() {
		wrong[p.Request] = true
		if err := r.failAt(r.lines[p.Request], p.Field, "%s", p.Text); err != nil {
			return err
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	var order []int
	for i := range r.w.Requests {
		if !wrong[i] {
			order = append(order, i)
		}
	}
	r.keep(order)
	return nil
}
