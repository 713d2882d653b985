package scheduler

// A prompt that takes many steps would keep those behind it waiting for all of
// them. So while the first prefill in line is long, a part of each step goes to
// shorter ones behind it, in their order. It keeps most of the step, and its
// blocks: nothing is admitted that it may need room for.
const (
	// reliefPart is the part of a step's prefill rows that short ones may take, at least
	// a block.
	reliefPart = 4
	// reliefRatio is how many times longer the first in line must be.
	reliefRatio = 4
	// reliefWindow is how many waiting requests are looked at.
	reliefWindow = 128
)

// relieve gives short prefills behind a long one their rows.
func (s *Scheduler) relieve() {
	if s.cfg.Chunking != FirstCome || !s.cfg.ChunkPrefill || s.paused || s.lim.Suspects {
		return
	}
	long := s.firstPrefill()
	if long == nil || long.Known-long.Computed <= s.cfg.MaxNumTokens {
		return
	}
	part := min(max(s.prefill/reliefPart, s.cfg.BlockTokens), s.prefill-s.cfg.BlockTokens)
	rest := s.prefill - part
	if s.prefill = part; part > 0 {
		short := (long.Known - long.Computed) / reliefRatio
		if s.continueShort(long, short) {
			s.admitShort(long, short)
		}
	}
	s.prefill += rest
}

// firstPrefill returns the request whose turn it is to prefill, or nil.
func (s *Scheduler) firstPrefill() *Seq {
	for _, q := range s.running.list {
		if s.prefills(q) {
			return q
		}
	}
	if len(s.waiting.list) > 0 && s.wanted(s.waiting.list[0]) {
		return s.waiting.list[0]
	}
	return nil
}

// spare reports whether the batch has a row for another request than long.
func (s *Scheduler) spare() bool { return len(s.plan.Rows) < s.lim.MaxBatch-1 }

// continueShort gives chunks to started prefills of at most short tokens. It
// reports whether all of them got one.
func (s *Scheduler) continueShort(long *Seq, short int) bool {
	for _, q := range s.running.list {
		if q == long || !s.prefills(q) || q.Known-q.Computed > short {
			continue
		}
		n := s.offer(q.Computed, q.Known-q.Computed, true)
		if n == 0 || !s.spare() {
			return false
		}
		s.rowOrDeal(q, n)
	}
	return true
}

// admitShort starts waiting requests of at most short tokens that leave room for
// the one that is first in the queue.
func (s *Scheduler) admitShort(long *Seq, short int) {
	if s.lim.Hold || len(s.waiting.list) == 0 || s.borrowers() {
		return
	}
	s.reserved = s.promised()
	head, places := s.waiting.list[0], s.places()
	kept := s.room(head)
	if head == long {
		places--
	}
	for i, seen := 0, 0; i < len(s.waiting.list) && seen < reliefWindow; seen++ {
		q := s.waiting.list[i]
		if q == long || q.Known > short || q.Flying > 0 || s.cfg.Queue == Priority && q.Priority < long.Priority {
			i++
			continue
		}
		extra := kept
		if q == head {
			extra = 0
		}
		m := s.prefix.Match(q)
		if m.Tokens > 0 && m.FromFree && !s.fits(q, m, extra+1) {
			m.Tokens = 0
		}
		n := s.offer(s.found(m), q.Known-s.found(m), false)
		if m.Wait || n == 0 || places < 1+q.Forks || !s.spare() || !s.fits(q, m, extra) {
			return
		}
		places -= 1 + q.Forks
		s.start(q, m, n)
	}
}

// borrowers reports whether a request waits that has its own place among those
// that are admitted, see admitPulls.
func (s *Scheduler) borrowers() bool {
	for _, q := range s.genInit.list {
		if q.Borrows {
			return true
		}
	}
	return false
}
