package sim

import (
	"fmt"

	"tandem/engine/executor"
	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// A worker with Strict proves after every step what engine-core §14 asks for, as
// far as one sees it from outside. The rest has its place elsewhere:
//
//	INV-1 to 7, 18   executor.Core.Check
//	INV-8, 9, 11     Worker.checkBatch and Worker.output; of INV-8 where rows begin, here
//	INV-10, 12, 17   here; what is leased: executor.Core.Check and puller.checkLeased
//	INV-13, 16       Model.Next, which knows what every slot should hold, and the oracle
//	INV-14           Storm.cancelAll
//	INV-15           Instance.checkSteps
//
// strict is what it remembers from step to step.
type strict struct {
	before []executor.RequestReport // what was here when the step was planned
	missed row                      // the oldest request that the last step left out
	recv   map[int32]bool           // blocks that pulls may write
	replay replay
}

// row names a sequence.
type row struct {
	id     request.ID
	choice int
}

func rowOf(r *executor.Row) row { return row{r.Request.ID, int(r.Request.Sampling.Stream)} }

// look notes what is here before a step is planned.
func (w *Worker) look() {
	if w.Strict {
		w.strict.before = w.Core.Requests(w.strict.before[:0])
	}
}

// older reports whether a goes before b.
func (w *Worker) older(a, b *executor.RequestReport) bool {
	front := func(r *executor.RequestReport) bool { return r.Pauses > 8 } // paused too often
	switch {
	case front(a) != front(b):
		return front(a)
	case w.cfg.Queue == scheduler.Priority && a.Priority != b.Priority:
		return a.Priority > b.Priority
	}
	return a.Number < b.Number
}

// oldest is the first in line of those that may get a row, nil = none. While a
// failed step is repeated nothing is promised.
func (w *Worker) oldest() (first *executor.RequestReport) {
	for i := range w.strict.before {
		r := &w.strict.before[i]
		if r.Failures > 0 {
			return nil
		}
		last := r.Output >= r.MaxTokens || r.Kind == request.ContextOnly && r.Output > 0
		if r.State.Schedulable() && !last && r.Held[executor.HoldOffload] == 0 && (first == nil || w.older(r, first)) {
			first = r
		}
	}
	return first
}

// advances proves INV-10: the oldest running request is part of every step. With
// overlap it may wait for the blocks of one that runs, once. No policy but one
// pauses.
func (w *Worker) advances(b *executor.Batch) error {
	st := w.Core.Stats()
	if st.Paused > 0 && !w.cfg.Policy.Pauses() && !w.forked {
		return fmt.Errorf("sim: INV-10: %d pauses under %s", st.Paused, w.cfg.Policy)
	}
	first, missed := w.oldest(), w.strict.missed
	w.strict.missed = row{}
	if first == nil || w.Tracks[first.ID].Choices()[first.Choice].Finish != request.Running { // its deadline passed
		return nil
	}
	for _, r := range b.Rows {
		if r.Request.ID == first.ID && int(r.Request.Sampling.Stream) == first.Choice {
			return nil
		}
	}
	w.strict.missed = row{first.ID, first.Choice}
	if w.Overlap > Heard && missed != w.strict.missed {
		return nil
	}
	rows := ""
	for _, r := range b.Rows {
		rows += fmt.Sprintf(" %d:%d", r.Request.ID, len(r.Tokens))
	}
	return fmt.Errorf("sim: INV-10: the oldest request %+v gets none of the rows%s", *first, rows)
}

// receives notes blocks that a pull may write, or may not any more.
func (w *Worker) receives(blocks []int32, open bool) {
	if w.strict.recv == nil {
		w.strict.recv = map[int32]bool{}
	}
	for _, id := range blocks {
		if open {
			w.strict.recv[id] = true
		} else {
			delete(w.strict.recv, id)
		}
	}
}

// untouched proves INV-17: no step reads or writes a block under a pull.
func (w *Worker) untouched(b *executor.Batch) error {
	if len(w.strict.recv) == 0 {
		return nil
	}
	for _, c := range b.Copies {
		if w.strict.recv[c.From] || w.strict.recv[c.To] {
			return fmt.Errorf("sim: INV-17: a copy from block %d to %d during a pull", c.From, c.To)
		}
	}
	for _, r := range b.Rows {
		for _, id := range r.Pages {
			if id >= 0 && w.strict.recv[id] {
				return fmt.Errorf("sim: INV-17: request %d has block %d during a pull", r.Request.ID, id)
			}
		}
	}
	return nil
}

// proveBatch proves what a planned batch must keep.
func (w *Worker) proveBatch(b *executor.Batch) error {
	if err := w.untouched(b); err != nil || !w.Strict {
		return err
	}
	if err := w.contiguous(b); err != nil {
		return err
	}
	return w.advances(b)
}

// contiguous proves of INV-8 that a row begins where the last one of its request
// ended, counting the step that runs.
func (w *Worker) contiguous(b *executor.Batch) error {
	at := map[row]int{}
	for i := range w.strict.before {
		if r := &w.strict.before[i]; r.State.Schedulable() && r.Held[executor.HoldOffload] == 0 {
			at[row{r.ID, r.Choice}] = r.Computed
		}
	}
	if w.flying != nil {
		for _, r := range w.flying.batch.Rows {
			at[rowOf(&r)] += len(r.Tokens)
		}
	}
	for _, r := range b.Rows {
		if want, ok := at[rowOf(&r)]; ok && r.Pos != want {
			return fmt.Errorf("sim: INV-8: request %d: a row at %d, %d tokens are computed", r.Request.ID, r.Pos, want)
		}
	}
	return nil
}

// replay is an index that was built from events, as a router does.
type replay struct {
	core  *executor.Core
	index map[uint64]kvcache.Level
	next  uint64
	gaps  int
}

// proveEvents proves INV-12: the events since the last time give the index that a
// snapshot has now, and their ids have no holes.
func (w *Worker) proveEvents() error {
	events, r := w.Core.CacheEvents(), &w.strict.replay
	if !w.Strict || events == nil {
		return nil
	}
	if r.core == w.Core {
		list, next, _, ok := events.Read(r.next, 1<<30)
		if ok {
			for i := range list {
				if err := r.apply(&list[i]); err != nil {
					return err
				}
			}
			r.next = next
		} else if r.gaps++; events.Next() == r.next {
			return fmt.Errorf("sim: INV-12: a gap, and no event after %d", r.next)
		} else {
			r.core = nil
		}
	}
	now := replay{core: w.Core, gaps: r.gaps, index: map[uint64]kvcache.Level{}}
	list := w.Core.CacheSnapshot()
	now.next = list[0].ID
	for i := range list {
		if err := now.apply(&list[i]); err != nil {
			return err
		}
	}
	if r.core == w.Core {
		for h, level := range now.index {
			if have, ok := r.index[h]; !ok || have != level {
				return fmt.Errorf("sim: INV-12: block %d is at level %d, events say %d, %v", h, level, have, ok)
			}
		}
		if len(r.index) != len(now.index) {
			return fmt.Errorf("sim: INV-12: events give %d blocks, the index has %d", len(r.index), len(now.index))
		}
	}
	*r = now
	return nil
}

func (r *replay) apply(e *executor.CacheEvent) error {
	if e.ID != r.next {
		return fmt.Errorf("sim: INV-12: event %d follows %d", e.ID, r.next-1)
	}
	r.next++
	switch e.Kind {
	case kvcache.Created, kvcache.Cleared:
		clear(r.index)
	case kvcache.Stored:
		for _, h := range e.Blocks {
			if _, twice := r.index[h]; twice {
				return fmt.Errorf("sim: EV-1: block %d is stored twice", h)
			}
			r.index[h] = e.Level
		}
	case kvcache.Removed:
		for _, h := range e.Blocks {
			if _, ok := r.index[h]; !ok {
				return fmt.Errorf("sim: EV-1: block %d is removed and was not there", h)
			}
			delete(r.index, h)
		}
	case kvcache.Updated:
		for _, h := range e.Blocks {
			if was, ok := r.index[h]; !ok || was != e.Was {
				return fmt.Errorf("sim: EV-1: block %d was at level %d, %v, and moves from %d", h, was, ok, e.Was)
			}
			r.index[h] = e.Level
		}
	default:
		return fmt.Errorf("sim: event %d is of an unknown kind %q", e.ID, e.Kind)
	}
	return nil
}
