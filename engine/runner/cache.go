package runner

import (
	"context"

	"tandem/engine/executor"
)

// snapshotAsk asks a rank for its index.
type snapshotAsk struct{ reply chan []executor.CacheEvent }

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
