package runner

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tandem/engine/executor"
)

// lookEvery bounds how often a rank publishes what it has, unless somebody asks.
const lookEvery = 100 * time.Millisecond

// View is what one rank of this process has. Its goroutine publishes it a few
// times a second and when somebody asks, so it is there also when that goroutine
// hangs; At says how old it is.
type View struct {
	Rank     int
	Now, At  time.Duration // engine clock: of the answer, and of what is in it
	Stats    executor.Stats
	Requests []executor.RequestReport // in order of arrival
	Buckets  executor.Buckets
	Steps    []executor.StepRecord // not older than the answer
	Events   []executor.EventRecord
}

// look is the place where a rank publishes.
type look struct {
	wanted  atomic.Bool
	mu      sync.Mutex
	at      time.Duration
	view    View // without Steps and Events
	spare   []executor.RequestReport
	fresh   chan struct{} // closed with the next publication
	started bool
}

func (l *look) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fresh == nil {
		l.fresh = make(chan struct{})
	}
	l.wanted.Store(true)
	return l.fresh
}

// publish shows what the rank has if it is time. Only the rank's goroutine calls it.
func (r *rank) publish(now time.Duration) {
	l := &r.look
	if !l.wanted.Load() && l.started && now-l.at < lookEvery {
		return
	}
	l.wanted.Store(false)
	l.started, l.at = true, now
	all := r.core.Requests(l.spare[:0])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = l.view.Requests
	l.view = View{Rank: r.id, At: now, Stats: r.core.Stats(), Requests: all, Buckets: r.core.Buckets()}
	if l.fresh != nil {
		close(l.fresh)
		l.fresh = nil
	}
}

// viewNow returns the newest view, without waiting.
func (r *rank) viewNow(now time.Duration) View {
	r.look.mu.Lock()
	v := r.look.view
	v.Requests = slices.Clone(v.Requests)
	r.look.mu.Unlock()
	v.Rank, v.Now = r.id, now
	slices.SortFunc(v.Requests, func(a, b executor.RequestReport) int {
		return int(a.Number) - int(b.Number)
	})
	rec := r.core.Recorder()
	v.Steps, v.Events = rec.Steps(nil), rec.Events(nil)
	return v
}

// Views returns what the ranks of this process have. It waits for an answer of
// each until ctx ends, and takes what they published last of those that do not
// answer: it works on an engine that hangs.
func (e *Engine) Views(ctx context.Context) []View {
	var fresh []<-chan struct{}
	for _, r := range e.ranks {
		fresh = append(fresh, r.look.next())
	}
	e.rouse()
	for _, f := range fresh {
		select {
		case <-f:
		case <-e.done:
		case <-ctx.Done():
		}
	}
	return e.views()
}

func (e *Engine) views() (out []View) {
	for _, r := range e.ranks {
		out = append(out, r.viewNow(e.Now()))
	}
	return out
}

// rouse ends the rest of the loops.
func (e *Engine) rouse() {
	if e.group != nil {
		e.group.wake()
		return
	}
	e.in.rouse()
}
