package runner

import (
	"sync"

	"tandem/engine/executor"
)

// moves is a queue of moves with goroutines that carry them out. Senders never wait.
type moves struct {
	mu     sync.Mutex
	more   sync.Cond
	list   []executor.Move
	closed bool
	gone   chan struct{} // closed when all goroutines have ended
}

func (q *moves) run(n int, do func(worker int, mv *executor.Move)) {
	q.more.L, q.gone = &q.mu, make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for mv, ok := q.next(); ok; mv, ok = q.next() {
				do(i, &mv)
			}
		})
	}
	go func() { wg.Wait(); close(q.gone) }()
}

func (q *moves) put(mv *executor.Move) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.list = append(q.list, *mv)
	}
	q.more.Signal()
}

func (q *moves) next() (mv executor.Move, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.list) == 0 && !q.closed {
		q.more.Wait()
	}
	if q.closed {
		return mv, false
	}
	mv = q.list[0]
	q.list = q.list[1:]
	return mv, true
}

// close drops what is queued and lets the goroutines end.
func (q *moves) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.more.Broadcast()
}
