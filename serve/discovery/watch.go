package discovery

import "context"

// Watch looks after one leg: it tells when the process that runs the leg is lost.
type Watch struct {
	r    *Registry
	e    *entry
	seen int             // good probes of the address before the leg began
	down <-chan struct{} // closed at the next loss of any leg
}

// Watch begins to look after a leg that is about to start on an instance; nil for an unknown one.
func (r *Registry) Watch(id string) *Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.table.byID[id]
	if e == nil {
		return nil
	}
	return &Watch{r: r, e: e, seen: e.seen, down: e.down}
}

// Lost waits until the leg cannot succeed any more and returns true, or until ctx ends. A leg is lost when nothing listens
// at its address, or when another process answers there. One that began after the last good probe of the old process may
// run on the new one already and is spared: if it does not, its connection breaks by itself.
func (w *Watch) Lost(ctx context.Context) bool {
	for {
		select {
		case <-w.down:
		case <-ctx.Done():
			return false
		}
		w.r.mu.Lock()
		lost := w.seen < w.e.lost
		w.down = w.e.down
		w.r.mu.Unlock()
		if lost {
			return true
		}
	}
}
