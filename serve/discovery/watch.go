package discovery

import "time"

// Fate is how a leg is lost.
type Fate uint8

// The fates of a leg.
const (
	FateGone   Fate = iota // the process that ran it is gone
	FateSilent             // neither it nor its worker's probes say anything
)

// Watch looks after one leg: it tells when the process that runs the leg is lost. All methods of a nil Watch do nothing.
type Watch struct {
	r     *Registry
	e     *entry
	seen  int // good probes of the address before the leg began
	lost  func(Fate)
	heard func() time.Time
}

// Watch begins to look after a leg that is about to start on an instance; nil for an unknown one. lost is called, once at
// most, when the leg cannot succeed any more. It is gone when nothing listens at its address, or another process answers there.
// A leg that began after the last good probe of the old process may run on the new one already and is spared: if it does not,
// its connection breaks by itself. It is silent when the last probes got no answer and heard, which tells when the leg last
// said something, is before them: the worker stands still, or cannot be reached although it takes connections. A worker that
// answers its probes may take its time. lost and heard must return at once and not call the registry. Stop is required.
func (r *Registry) Watch(id string, heard func() time.Time, lost func(Fate)) *Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.table.byID[id]
	if e == nil {
		return nil
	}
	w := &Watch{r: r, e: e, seen: e.seen, lost: lost, heard: heard}
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
