package adprouter

// warmup is the set of ranks that have not had their first request. Without
// compat only requests that begin like most others count: common is the leader
// of a running majority vote over the beginnings, votes its lead.
type warmup struct {
	pending []bool // [rank]
	count   int
	common  uint64
	votes   uint64
}

func (w *warmup) init(ranks int, on bool) {
	w.pending, w.count = make([]bool, ranks), 0
	if on {
		w.reset()
	}
}

func (w *warmup) reset() {
	for rank := range w.pending {
		w.pending[rank] = true
	}
	w.count = len(w.pending)
}

func (w *warmup) done(rank int) {
	if w.pending[rank] {
		w.pending[rank] = false
		w.count--
	}
}

// vote counts a request and reports whether it begins as most do. When another
// beginning takes the lead, the ranks warmed with the old one are cold again.
func (w *warmup) vote(it *Item) bool {
	h := hashTokens(it.Head)
	switch {
	case w.votes == 0 && w.common != h:
		w.common, w.votes = h, 1
		w.reset()
	case w.common == h:
		w.votes++
	default:
		w.votes--
		return false
	}
	return true
}

func (w *warmup) shared(it *Item) bool { return w.votes > 0 && w.common == hashTokens(it.Head) }
