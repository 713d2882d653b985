package scheduler

// admitPulls gives blocks to requests that wait to pull their K and V, in
// arrival order.
func (s *Scheduler) admitPulls() {
	for i := 0; i < len(s.genInit.list); {
		q := s.genInit.list[i]
		if len(s.recv.list) >= s.cfg.MaxRecv {
			return
		}
		if q.Borrows && s.lim.Hold {
			i++
			continue
		}
		m := s.prefix.Match(q)
		pulled := s.blocksFor(q.Offered) - len(m.Blocks)
		if q.Borrows && pulled == 0 {
			s.Remove(q)
			s.plan.Found = append(s.plan.Found, q)
			continue
		}
		bytes := int64(pulled) * s.cfg.BlockBytes
		if s.recvBytes > 0 && s.recvBytes+bytes > s.cfg.MaxRecvBytes {
			return
		}
		if !s.pullFits(q, m, pulled) {
			if q.Borrows {
				s.barred = q
			}
			return
		}
		s.Remove(q)
		s.prefix.Use(q, m)
		q.Table, _ = s.blocks.Take(q.Table, pulled)
		q.Computed = len(m.Blocks) * s.cfg.BlockTokens
		q.bytes = bytes
		s.put(q, inReceiving)
		s.reserved += max(0, q.Complete-len(q.Table))
		s.plan.Receive = append(s.plan.Receive, Admission{Seq: q, Shared: len(m.Blocks), Wait: m.Wait})
	}
}

// kept returns how many blocks a pull of q leaves alone. That of a borrower begins
// before its turn to prefill, so that the blocks are here by then; it takes no
// room from the first in line.
func (s *Scheduler) kept(q *Seq) int {
	if !q.Borrows || len(s.waiting.list) == 0 || !s.waiting.less(s.waiting.list[0], q) {
		return 0
	}
	return s.room(s.waiting.list[0])
}

// room returns how many blocks must be left for a request that is first in line.
func (s *Scheduler) room(q *Seq) int {
	if s.cfg.Policy == MaxUtilization {
		return s.blocksFor(q.Known)
	}
	return q.Complete
}

// pullFits is the admission predicate of pulls. A policy without eviction
// reserves the whole life of the request, so that what is pulled can run to its
// end. MaxUtilization asks for what comes and some room to grow, as admit does:
// a request that is paused later computes its K and V here. One that was paused
// goes before younger pulls.
func (s *Scheduler) pullFits(q *Seq, m Match, fresh int) bool {
	free := s.blocks.Free() - s.kept(q)
	if s.cfg.Policy != MaxUtilization {
		return q.Complete-len(m.Blocks)+m.Fetch+m.Unreferenced <= free-s.reserved
	}
	if !q.Borrows && len(s.waiting.list) > 0 && byArrival(s.waiting.list[0], q) {
		return false
	}
	need := fresh + m.Fetch + m.Unreferenced
	if len(s.running.list)+len(s.recv.list)+len(s.loading.list) > 0 {
		need += s.headroom()
	}
	return need <= free
}

// admit starts waiting requests, first in line first, as long as the policy and
// the budgets allow. Blocks for all known tokens are taken at once: admitting by
// the first chunk could restart a long prompt for ever.
func (s *Scheduler) admit() {
	places := s.places()
	for len(s.waiting.list) > 0 && !s.full {
		q := s.waiting.list[0]
		if places < 1+q.Forks || !s.wanted(q) || q.Flying > 0 || s.barred != nil && s.waiting.less(s.barred, q) {
			return
		}
		m := s.prefix.Match(q)
		if !s.fits(q, m, 0) {
			return
		}
		if m.Tokens > 0 && m.FromFree && !s.fits(q, m, 1) {
			m.Tokens = 0 // the block to copy from is needed itself
		}
		n := 0
		if !m.Wait { // else it has no row yet
			computed := s.found(m)
			if n = s.offer(computed, q.Known-computed, false); n == 0 {
				return
			}
		}
		places -= 1 + q.Forks
		s.start(q, m, n)
	}
}

// found returns how many tokens of a request a match has.
func (s *Scheduler) found(m Match) int { return len(m.Blocks)*s.cfg.BlockTokens + m.Tokens }

// start gives a waiting request its blocks and, unless it waits for some of them,
// a row of n tokens.
func (s *Scheduler) start(q *Seq, m Match, n int) {
	s.Remove(q)
	s.prefix.Use(q, m)
	q.Table, _ = s.blocks.Take(q.Table, s.blocksFor(q.Known)-len(m.Blocks))
	q.Computed = s.found(m)
	s.reserved += max(0, q.Complete-len(q.Table))
	if m.Wait {
		s.put(q, inLoading)
		s.plan.Loading = append(s.plan.Loading, Admission{Seq: q, Shared: len(m.Blocks)})
		return
	}
	s.put(q, inRunning)
	s.plan.Admitted = append(s.plan.Admitted, Admission{
		Seq: q, Shared: len(m.Blocks), From: m.From, Copied: m.Tokens,
	})
	s.rowOrDeal(q, n)
}

// places returns how many more sequences may run.
func (s *Scheduler) places() int {
	n := s.cfg.MaxBatch
	for _, q := range s.running.list {
		if !q.Last {
			n -= 1 + q.Forks
		}
	}
	for _, q := range s.loading.list {
		n -= 1 + q.Forks
	}
	return n
}

// fits is the admission predicate; extra blocks are taken by other means.
func (s *Scheduler) fits(q *Seq, m Match, extra int) bool {
	free := s.blocks.Free() - extra
	shared := len(m.Blocks) - m.Fetch
	if s.cfg.Policy == MaxUtilization {
		need := s.blocksFor(q.Known) - shared + m.Unreferenced
		if len(s.running.list)+len(s.loading.list) > 0 {
			need += s.headroom()
		}
		return need <= free
	}
	if s.cfg.Policy == StaticBatch && s.earlier {
		return false
	}
	return q.Complete-shared+m.Unreferenced <= free-s.reserved
}
