package runner

import (
	"context"

	"tandem/engine/executor"
)

// snapshotAsk asks a rank for its index.
type snapshotAsk struct{ reply chan []executor.CacheEvent }

// resetAsk asks a rank to forget what can be reused.
type resetAsk struct{ done chan struct{} }

// CacheEvents returns the records of the ranks' indexes of reusable blocks, by
// rank. It is empty when none are kept, and when some of the ranks are in other
// processes: an instance tells of all its blocks or of none.
func (e *Engine) CacheEvents() []*executor.CacheEvents {
	if len(e.ranks) == 0 || e.group != nil && e.group.spans() || e.ranks[0].core.CacheEvents() == nil {
		return nil
	}
	out := make([]*executor.CacheEvents, len(e.ranks))
	for i, r := range e.ranks {
		out[i] = r.core.CacheEvents()
	}
	return out
}

// CacheSnapshot returns the index of a rank that CacheEvents names, as events,
// and begins to record. It waits for the step that runs.
func (e *Engine) CacheSnapshot(ctx context.Context, rank int) ([]executor.CacheEvent, error) {
	ask := snapshotAsk{reply: make(chan []executor.CacheEvent, 1)}
	e.TransferEvent(e.ranks[rank].id, ask)
	select {
	case events := <-ask.reply:
		return events, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-e.done:
		return nil, ErrStopped
	}
}

// ResetCache lets the ranks of this process forget all K and V that could be
// reused, in every tier. What is submitted afterwards finds nothing of it; what runs
// goes on. It returns how many ranks did: none in a process that keeps no books, as
// those of a tensor-parallel group but the first.
func (e *Engine) ResetCache(ctx context.Context) (ranks int, err error) {
	for _, r := range e.ranks {
		ask := resetAsk{done: make(chan struct{})}
		e.TransferEvent(r.id, ask)
		select {
		case <-ask.done:
			ranks++
		case <-ctx.Done():
			return ranks, context.Cause(ctx)
		case <-e.done:
			return ranks, ErrStopped
		}
	}
	return ranks, nil
}
