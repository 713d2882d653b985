package comm

import "time"

// watch measures waits for the whole hub, so that no collective needs a timer or
// a clock. It looks a few times a second; a wait begins when it is first seen.
func (h *hub) watch() {
	defer h.bg.Done()
	tick := time.NewTicker(h.watchEvery())
	defer tick.Stop()
	var w wait
	for beaten := time.Now(); ; {
		select {
		case <-h.done:
			return
		case now := <-tick.C:
			missing := h.step(&w, now)
			if h.up == nil || now.Sub(beaten) < min(beatEvery, 2*h.watchEvery()) {
				continue
			}
			beaten = now
			select {
			case h.beats <- missing:
			default: // a peer takes nothing
			}
		}
	}
}

// report sends what watch sees to the other processes. A peer that takes nothing
// blocks it, which must not keep watch from its time-outs.
func (h *hub) report() {
	defer h.bg.Done()
	for {
		select {
		case <-h.done:
			return
		case missing := <-h.beats:
			h.up.beat(h.moved(), missing)
		}
	}
}

// beatEvery is the pace of reports between processes.
const beatEvery = 500 * time.Millisecond

func (h *hub) watchEvery() time.Duration {
	every := min(250*time.Millisecond, h.cfg.StallAfter/4)
	if h.cfg.Timeout > 0 {
		every = min(every, h.cfg.Timeout/8)
	}
	return max(every, time.Millisecond)
}

// wait is one meeting at which some ranks have arrived and others have not.
type wait struct {
	round    uint64
	progress uint64
	since    time.Time
	warned   bool
}

// step looks at the meeting that is due. It returns the ranks that are missing.
func (h *hub) step(w *wait, now time.Time) (missing []int) {
	round, progress := h.bar.round.Load(), h.moved()+h.elsewhere.Load()
	if h.bar.arrived.Load() == 0 {
		w.since = time.Time{}
		return nil
	}
	if w.since.IsZero() || round != w.round || progress != w.progress {
		*w = wait{round: round, progress: progress, since: now}
		return nil
	}
	op, iter, missing := h.due(round)
	if op == OpNone {
		return nil // just over
	}
	waited := now.Sub(w.since)
	if !w.warned && waited >= h.cfg.StallAfter {
		w.warned = true
		if h.cfg.OnStall != nil {
			h.cfg.OnStall(Stall{Op: op, Iter: iter, Missing: missing, Waited: waited})
		}
	}
	if limit := h.limit(); limit > 0 && waited >= limit {
		h.fail(&TimeoutError{Op: op, Iter: iter, Missing: missing, Waited: waited})
	}
	return missing
}

// limit is the time-out. A leaf waits a little longer for the root, which knows
// better who is missing.
func (h *hub) limit() time.Duration {
	if h.up == nil || h.up.reduces() || h.cfg.Timeout <= 0 {
		return h.cfg.Timeout
	}
	return h.cfg.Timeout + max(h.cfg.Timeout/8, 3*h.watchEvery())
}

// due tells which collective ranks wait in, and for whom.
func (h *hub) due(round uint64) (op Op, iter uint64, missing []int) {
	for _, r := range h.ranks {
		if r.at.Load() <= round {
			missing = append(missing, r.id)
			continue
		}
		if o := Op(r.op.Load()); o != OpNone {
			op, iter = o, r.iter.Load()
		}
	}
	if h.up == nil {
		return op, iter, missing
	}
	if absent := h.absent.Load(); len(missing) == 0 && absent != nil && len(*absent) > 0 {
		return op, iter, *absent
	}
	if len(missing) == 0 || h.up.reduces() {
		missing = append(missing, h.up.missing()...)
	}
	return op, iter, missing
}

// moved is the progress of this process: what all local ranks reported, and its
// work.
func (h *hub) moved() (n uint64) {
	if h.cfg.Work != nil {
		n = h.cfg.Work()
	}
	for _, r := range h.ranks {
		n += r.progress.Load()
	}
	return n
}
