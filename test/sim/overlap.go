package sim

import (
	"fmt"
	"slices"
	"time"

	"tandem/engine/executor"
)

// Overlap says when the fake device runs a step whose results are taken only after
// the next one was launched. A real one may do so at any moment in between.
type Overlap int

// The moments. InTurn: there is no overlap. Heard: neither, but the core hears what
// comes in while a step runs. Eager: at its launch. Lazy: when its results are
// waited for.
const (
	InTurn Overlap = iota
	Heard
	Eager
	Lazy
)

// launch is a step that the device has.
type launch struct {
	batch  *executor.Batch
	before *launch // whose tokens its rows may take over
	ran    bool
	failed bool
	res    executor.Result
}

// overlapped is an iteration with a step in flight before and after it.
func (w *Worker) overlapped(now time.Duration) (bool, error) {
	old := w.flying
	if w.Overlap == Heard {
		if err := w.Land(now); err != nil {
			return true, err
		}
		w.flying = w.launch(now, nil)
		return old != nil || w.flying != nil, w.check()
	}
	if w.flying = w.launch(now, old); w.Overlap == Eager {
		if err := w.catchUp(w.flying); err != nil {
			return true, err
		}
	}
	if old != nil {
		if err := w.land(now, old); err != nil {
			return true, err
		}
	}
	return old != nil || w.flying != nil, w.check()
}

func (w *Worker) launch(now time.Duration, before *launch) *launch {
	w.look()
	b := w.Core.Plan(now)
	w.flush()
	if b == nil {
		return nil
	}
	if err := w.proveBatch(b); err != nil && w.err == nil {
		w.err = err
	}
	return &launch{batch: b, before: before}
}

func (w *Worker) land(now time.Duration, l *launch) error {
	if err := w.catchUp(l); err != nil {
		return err
	}
	l.before = nil
	l.failed = !w.apply(now, l.batch, l.res)
	return nil
}

// Land waits for the step that runs.
func (w *Worker) Land(now time.Duration) error {
	old := w.flying
	w.flying = nil
	if old == nil {
		return nil
	}
	return w.land(now, old)
}

// catchUp runs a step unless it ran before.
func (w *Worker) catchUp(l *launch) error {
	if l == nil || l.ran {
		return nil
	}
	l.ran = true
	if l.before != nil && l.before.failed { // it runs on nothing, and may do anything to its blocks
		w.Model.Spoil(l.batch)
		l.res = executor.Result{Sampled: make([]executor.Sampled, len(l.batch.Rows))}
		return nil
	}
	b := *l.batch
	b.Rows = slices.Clone(b.Rows)
	for i := range b.Rows {
		r := &b.Rows[i]
		if r.Feed == 0 {
			continue
		}
		if l.before == nil || r.Feed > len(l.before.res.Sampled) {
			return fmt.Errorf("sim: request %d takes row %d over of a step that has none", r.Request.ID, r.Feed)
		}
		w.Fed++
		r.Tokens = []int32{l.before.res.Sampled[r.Feed-1].Token.ID}
	}
	if err := w.checkBatch(&b); err != nil {
		return err
	}
	l.res = w.run(&b)
	return nil
}

// knownTo are the tokens of a row's choice, with the one that it takes over before
// the client has seen it.
func (w *Worker) knownTo(r *executor.Row) []int32 {
	known := w.known(r.Request)
	if r.Feed > 0 && len(known) == r.Pos {
		known = append(known, r.Tokens[0])
	}
	return known
}
