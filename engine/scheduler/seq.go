package scheduler

import (
	"sort"

	"tandem/engine/request"
)

// Seq is what the scheduler knows of one request. The owner fills it in before
// Enqueue and keeps Known, Computed and State up to date between calls.
type Seq struct {
	ID       request.ID
	Slot     int     // the owner's own index
	Number   uint64  // arrival, strictly increasing; kept over pauses
	Priority float64 // 0..1, for the Priority queue
	State    request.State

	Known    int     // prompt and generated tokens, with those that running steps sample
	Computed int     // leading tokens whose K and V are in Table's blocks, or will be when the running steps are over
	Flying   int     // running steps that have a row of it
	Ahead    bool    // the newest of Known is still being sampled
	Last     bool    // and after it there are no more: it gets no rows
	Offered  int     // tokens that a pull brings, for GenInit
	Borrows  bool    // for GenInit: waits to prefill after the pull, which is only an optimisation
	Forks    int     // sequences that will start with its first token and count as running then
	Complete int     // blocks that it and its Forks need until their end
	Table    []int32 // its blocks, in order
	Pauses   int
	Suspect  bool // was in a step that failed and has not run since

	front bool // paused too often: treated as the oldest
	where place
	step  uint64 // last step that gave it a row
	bytes int64  // of its pull
	grown int    // blocks that step added to Table
}

// place is the queue a Seq is in.
type place uint8

const (
	nowhere place = iota
	inWaiting
	inGenInit
	inReceiving
	inLoading
	inRunning
)

// maxPauses is how often a request may be paused before it counts as the
// oldest and is never paused for another again.
const maxPauses = 8

// queue is a list of requests in scheduling order.
type queue struct {
	less func(a, b *Seq) bool
	list []*Seq
}

func (q *queue) insert(s *Seq) {
	i := len(q.list)
	if i > 0 && q.less(s, q.list[i-1]) {
		i = sort.Search(i, func(k int) bool { return q.less(s, q.list[k]) })
	}
	q.list = append(q.list, nil)
	copy(q.list[i+1:], q.list[i:])
	q.list[i] = s
}

func (q *queue) remove(s *Seq) {
	i := sort.Search(len(q.list), func(k int) bool { return !q.less(q.list[k], s) })
	if i == len(q.list) || q.list[i] != s {
		panic("scheduler: a request is not in the queue it is marked to be in")
	}
	copy(q.list[i:], q.list[i+1:])
	q.list[len(q.list)-1] = nil
	q.list = q.list[:len(q.list)-1]
}

func byArrival(a, b *Seq) bool {
	if a.front != b.front {
		return a.front
	}
	return a.Number < b.Number
}

func byPriority(a, b *Seq) bool {
	if a.front != b.front { // whatever its priority: nobody may pause it, so it must not be in anyone's way
		return a.front
	}
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	return byArrival(a, b)
}
