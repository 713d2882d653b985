package sim

import (
	"slices"

	"tandem/engine/blockhash"
	"tandem/engine/executor"
	"tandem/engine/kvcache"
)

// shelf is what a worker has below its device: contents of blocks in host slots
// and in files, and the orders to move some that were not carried out yet.
type shelf struct {
	host  map[int32][]slot // nil: its Offload failed
	files map[blockhash.Hash][]slot
	known []kvcache.File // of files, in the order of their coming
	queue []executor.Move
}

func newShelf() *shelf { return &shelf{host: map[int32][]slot{}, files: map[blockhash.Hash][]slot{}} }

// take keeps orders. What is offloaded is read at once, as it must be, and what
// comes back is spoilt until then, so that nobody can read it too early.
func (x *shelf) take(m *Model, moves []executor.Move) {
	for _, mv := range moves {
		switch mv.Kind {
		case kvcache.Offload:
			x.host[mv.Slot] = slices.Clone(m.block(mv.Block))
		case kvcache.Onboard, kvcache.Load:
			clear(m.block(mv.Block))
		}
		x.queue = append(x.queue, mv)
	}
}

// next carries out the oldest order, unless it is to fail.
func (x *shelf) next(m *Model, res kvcache.Result) (mv executor.Move, end kvcache.Result) {
	mv, x.queue = x.queue[0], x.queue[1:]
	switch mv.Kind {
	case kvcache.Offload:
		if res != kvcache.Done {
			x.host[mv.Slot] = nil
		}
	case kvcache.Onboard:
		if res = found(res, x.host[mv.Slot]); res == kvcache.Done {
			copy(m.block(mv.Block), x.host[mv.Slot])
		}
	case kvcache.Load:
		if res = found(res, x.files[mv.Hash]); res == kvcache.Done {
			copy(m.block(mv.Block), x.files[mv.Hash])
		}
	case kvcache.Spill:
		if res = found(res, x.host[mv.Slot]); res == kvcache.Done {
			x.forget(mv.Hash)
			x.files[mv.Hash] = slices.Clone(x.host[mv.Slot])
			x.known = append(x.known, kvcache.File{Hash: mv.Hash, Parent: mv.Parent, Priority: mv.Priority})
		}
	case kvcache.Erase:
		x.forget(mv.Hash)
	case kvcache.EraseAll:
		clear(x.files)
		x.known = nil
	}
	return mv, res
}

// found is the result of a copy of content, which may be missing.
func found(res kvcache.Result, content []slot) kvcache.Result {
	if res == kvcache.Done && content == nil {
		return kvcache.Failed
	}
	return res
}

func (x *shelf) forget(h blockhash.Hash) {
	delete(x.files, h)
	x.known = slices.DeleteFunc(x.known, func(f kvcache.File) bool { return f.Hash == h })
}

// restart is what a process that died leaves to the next: its files.
func (x *shelf) restart() *shelf {
	y := newShelf()
	y.files, y.known = x.files, x.known
	return y
}

// pump carries out at most n moves of a worker and reports whether there were any.
func (c *Cluster) pump(w *Worker, n int) (moved bool) {
	for range n {
		if len(w.shelf.queue) == 0 {
			break
		}
		res := kvcache.Done
		if c.rng.Float64() < c.Net.MoveFail {
			res = kvcache.Corrupt + kvcache.Result(c.rng.IntN(2))
		}
		mv, end := w.shelf.next(w.Model, res)
		moved = true
		if mv.Job > 0 {
			c.Shelved++
			w.Core.Moved(c.Now, executor.MoveDone{Job: mv.Job, Result: end, Took: c.Net.MoveTime})
			w.flush()
		}
	}
	return moved
}
