package discovery

// Watch looks after one leg: it tells when the process that runs the leg is lost. All methods of a nil Watch do nothing.
type Watch struct {
	r    *Registry
	e    *entry
	seen int // good probes of the address before the leg began
	lost func()
}

// Watch begins to look after a leg that is about to start on an instance; nil for an unknown one. lost is called, once at
// most, when the leg cannot succeed any more: nothing listens at its address, or another process answers there. A leg that
// began after the last good probe of the old process may run on the new one already and is spared: if it does not, its
// connection breaks by itself. lost must return at once and not call the registry. Stop is required.
func (r *Registry) Watch(id string, lost func()) *Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.table.byID[id]
	if e == nil {
		return nil
	}
	w := &Watch{r: r, e: e, seen: e.seen, lost: lost}
	e.watches[w] = struct{}{}
	return w
}

// Stop ends the watch; afterwards lost is not called any more.
func (w *Watch) Stop() {
	if w == nil {
		return
	}
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	delete(w.e.watches, w)
}
