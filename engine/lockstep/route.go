package lockstep

import (
	"slices"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Offer judges a new request on rank 0, for its place in the queue: nil, or the
// error for the client.
func (l *Rank) Offer(r *request.Request, h *transfer.Handle) *request.Error {
	if l.draining || l.out.Drain || l.sent.Drain {
		return request.Errorf(request.EngineDead, "this worker is shutting down")
	}
	if r.DPRank != -1 {
		if err := adprouter.CheckRank(r.DPRank, l.cfg.Router.Ranks); err != nil {
			return err
		}
	}
	if err := adprouter.CheckWeight(r.Answers(), l.cfg.Router.Cap); err != nil {
		return err
	}
	if err := l.core.Precheck(r, h); err != nil {
		return err
	}
	if len(l.clock.live) >= l.cfg.MaxQueued {
		return request.Errorf(request.QueueFull, "%d requests are waiting; try again later", l.cfg.MaxQueued)
	}
	return nil
}

// Route ends the iteration: it takes in what was delivered, by rank (nil = no
// gather was held), admits and places. It returns what came to this rank, valid
// until the next call.
func (l *Rank) Route(now time.Duration, deliveries []Delivery) []Taken {
	l.taken = l.taken[:0]
	for i := range deliveries {
		l.receive(now, i, &deliveries[i])
	}
	if l.probing {
		for i := range l.lists {
			l.lists[i] = nil
			if i < len(deliveries) {
				l.lists[i] = deliveries[i].Matches
			}
		}
		l.queue.Probe(l.lists)
		l.probing = false
	}
	items := l.queue.Admit(l.states, l.router.Config().Kind == adprouter.KVCacheAware)
	res := l.router.Route(l.states, items)
	l.queue.Return(res.Unplaced)
	for _, p := range res.Placed {
		l.place(now, p)
	}
	return l.taken
}

// receive takes in one rank's delivery; the order of things is the same on all
// ranks.
func (l *Rank) receive(now time.Duration, from int, d *Delivery) {
	l.stirs = l.stirs || !d.Empty()
	for _, a := range d.New {
		a.Heard = now
		if l.queue.Push(a.Item) == nil {
			l.waiting[a.Item.ID] = a
		} else if l.cfg.Rank == 0 { // Offer has seen it: cannot be
			l.fates.Ended = append(l.fates.Ended, Removal{ID: a.Item.ID, Code: request.Internal})
		}
	}
	for _, m := range d.Moved {
		if m.OK {
			l.router.Move(m.Key, from)
		} else {
			l.router.MoveFailed(m.Key)
		}
		l.endLoan(now, m.Request, m.Pulled)
	}
	for i := range d.Lent {
		l.borrow(&d.Lent[i])
	}
	for _, r := range d.Removals {
		l.remove(now, r)
	}
	for _, id := range d.Aborts {
		l.fates.Aborts = append(l.fates.Aborts, Abort{ID: id, State: l.core.Abort(now, id)})
	}
	l.draining = l.draining || d.Drain
}

func (l *Rank) remove(now time.Duration, r Removal) {
	if l.queue.Remove(r.ID) {
		delete(l.waiting, r.ID)
		delete(l.clock.live, r.ID)
		if l.cfg.Rank == 0 {
			l.fates.Ended = append(l.fates.Ended, r)
		}
		return
	}
	if r.Code != request.Cancelled {
		return // it was placed before its time was over
	}
	l.endLoan(now, r.ID, false)
	if t, ok := l.moving[r.ID]; ok {
		l.arrive(t)
		l.forget(r.ID)
		l.fates.Ended = append(l.fates.Ended, r)
	} else if i := slices.IndexFunc(l.taken, func(t Taken) bool { return t.Item.ID == r.ID }); i >= 0 {
		l.taken = slices.Delete(l.taken, i, i+1) // the offer for its move came just now
		l.forget(r.ID)
		l.fates.Ended = append(l.fates.Ended, r)
	} else if _, ok := l.mine[r.ID]; ok {
		l.core.Cancel(now, r.ID)
	}
}

// place notes where a request goes, and takes it if that is here.
func (l *Rank) place(now time.Duration, p adprouter.Placed) {
	l.stirs = true
	a := l.waiting[p.ID]
	delete(l.waiting, p.ID)
	delete(l.clock.live, p.ID)
	moved := p.From >= 0 && p.From != p.Rank
	if moved && p.From == l.cfg.Rank && !a.HandOver {
		l.lend(now, p.ID, a)
	}
	if p.Rank != l.cfg.Rank {
		return
	}
	l.stats.Placed[p.Reason.String()]++
	l.mine[p.ID] = a.Item.Key
	t := Taken{Arrival: a, Placed: p}
	if moved && a.HandOver { // its blocks come from elsewhere: the new home is as good
		l.out.Moved = append(l.out.Moved, Moved{Key: a.Item.Key, OK: true})
		moved = false
	}
	if moved {
		l.moving[p.ID] = &t // until the old home says what it has
		l.movingWork += p.Work
		l.movingSeqs += max(a.Item.Weight, 1)
		return
	}
	l.taken = append(l.taken, t)
}

// forget drops a request of this rank that never reached its core; a move that
// was under way for it is over.
func (l *Rank) forget(id request.ID) {
	if key := l.mine[id]; key != "" {
		l.out.Moved = append(l.out.Moved, Moved{Key: key, Request: id})
	}
	delete(l.mine, id)
}

// moveBit tells ids of moves apart from those of hand-overs, which are positive.
const moveBit = -1 << 62

// lend pins what this rank has of a request that moves away, and offers it.
func (l *Rank) lend(now time.Duration, id request.ID, a *Arrival) {
	lent := Lent{ID: id}
	if h, ok := l.core.Lend(now, transfer.ID(moveBit+int64(id)), a.Prompt, a.Salt); ok {
		lent.Handle = h
		l.lent[id] = h.ID
	}
	l.out.Lent = append(l.out.Lent, lent)
}

// arrive ends the wait of a request for its old home's word.
func (l *Rank) arrive(t *Taken) {
	delete(l.moving, t.Item.ID)
	l.movingWork -= t.Placed.Work
	l.movingSeqs -= max(t.Item.Weight, 1)
}

// endLoan ends what this rank lent for a request, unless the borrower has.
func (l *Rank) endLoan(now time.Duration, id request.ID, pulled bool) {
	loan, ok := l.lent[id]
	if !ok {
		return
	}
	delete(l.lent, id)
	if !pulled {
		l.core.Abort(now, loan)
	}
}

// borrow lets a request start here that waited for its old home's offer.
func (l *Rank) borrow(lent *Lent) {
	t, ok := l.moving[lent.ID]
	if !ok {
		return
	}
	l.arrive(t)
	t.Lent = lent.Handle
	if lent.Handle == nil {
		if key := l.mine[lent.ID]; key != "" { // nothing to copy: the new home is as good
			l.out.Moved = append(l.out.Moved, Moved{Key: key, OK: true})
		}
	}
	l.taken = append(l.taken, *t)
}

// probe puts what this rank has cached of the first waiting requests into its
// payload, if some of them were not looked up yet.
func (l *Rank) probe() {
	l.probing = l.unprobed()
	if !l.probing {
		return
	}
	for i := range min(l.queue.Len(), adprouter.MaxProbed) {
		id := l.queue.At(i).ID
		a := l.waiting[id]
		if n := l.core.Cached(a.Prompt, a.Salt); n > 0 {
			l.out.Matches = append(l.out.Matches, adprouter.Match{ID: id, Tokens: int32(n)})
		}
	}
}

// unprobed reports whether a request near the head was not looked up yet.
func (l *Rank) unprobed() bool {
	if l.router.Config().Kind != adprouter.KVCacheAware {
		return false
	}
	for i := range min(l.queue.Len(), adprouter.MaxProbed) {
		if l.queue.At(i).Match == nil {
			return true
		}
	}
	return false
}
