package des

import (
	"math/rand/v2"

	"tandem/test/bench/workload"
)

// Aged lets the first n trees of a workload begin at a random turn of their root
// conversations, as if they had run before: a load whose conversations all begin
// anew is not steady for as long as they last. Requests of a tree must follow each
// other, as those of the generators do.
func Aged(w *workload.Workload, n int, seed uint64) *workload.Workload {
	rng := rand.New(rand.NewPCG(seed, 0xa6ed))
	out := *w
	out.Requests = make([]workload.Request, 0, len(w.Requests))
	place := make([]int, len(w.Requests)) // in out, -1 = left out
	for begin := 0; begin < len(w.Requests); n-- {
		roots, end := []int{}, begin
		for ; end < len(w.Requests); end++ {
			r := &w.Requests[end]
			if r.Parent == "" && r.Conversation != w.Requests[begin].Conversation {
				break
			}
			if r.Parent == "" {
				roots = append(roots, end)
			}
		}
		first := begin
		if n > 0 {
			first = roots[rng.IntN(len(roots))]
		}
		for i := begin; i < end; i++ {
			if place[i] = -1; i >= first {
				place[i] = len(out.Requests)
				out.Requests = append(out.Requests, moved(w.Requests[i], place))
			}
		}
		begin = end
	}
	return &out
}

// moved is a request with the new places of those that it waits for.
func moved(r workload.Request, place []int) workload.Request {
	var after []int
	for _, a := range r.After {
		if place[a] >= 0 {
			after = append(after, place[a])
		}
	}
	r.After = after
	return r
}
