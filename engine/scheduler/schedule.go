package scheduler

// Schedule plans one step: decode rows, started prefills, pulls, admissions, in
// that order, and before the prefills those of short prompts behind long ones. The
// plan and its slices are valid until the next call.
func (s *Scheduler) Schedule(lim Limits) *Plan {
	s.begin(lim)
	s.decode()
	s.prefill = min(s.tokens, s.besideDecode(len(s.plan.Rows)))
	s.relieve()
	s.continuePrefill()
	if !s.paused {
		s.reserved = s.promised()
		s.admitPulls()
		if !lim.Hold {
			s.admit()
		}
		for _, q := range s.plan.Found {
			s.put(q, inWaiting)
		}
	}
	s.dealOut()
	return &s.plan
}

// besideDecode bounds the prefill rows of a step that has so many rows of decoding
// requests. Each of these waits for all of the step, so that few of them are worth small
// steps, and where they are many the prompts behind them wait longer than they do.
func (s *Scheduler) besideDecode(rows int) int {
	most := s.cfg.MaxNumTokens
	if rows > 0 && s.cfg.PrefillMixed > 0 {
		most = s.cfg.PrefillMixed
	}
	if rows > 0 && s.cfg.PrefillPerDecode > 0 && s.cfg.ChunkPrefill {
		most = min(most, max(rows*s.cfg.PrefillPerDecode, 2*s.cfg.BlockTokens))
	}
	return most
}

func (s *Scheduler) begin(lim Limits) {
	s.step++
	s.lim = lim
	s.lim.MaxTokens = min(lim.MaxTokens, s.cfg.MaxNumTokens)
	s.lim.MaxBatch = min(lim.MaxBatch, s.cfg.MaxBatch)
	s.tokens = s.lim.MaxTokens
	s.paused, s.full, s.barred = false, false, nil
	s.earlier = len(s.running.list)+len(s.recv.list)+len(s.loading.list) > 0
	p := &s.plan
	p.Rows, p.Admitted, p.Receive, p.Loading = p.Rows[:0], p.Admitted[:0], p.Receive[:0], p.Loading[:0]
	p.Paused, p.Starved, p.Found, s.deals = p.Paused[:0], p.Starved[:0], p.Found[:0], s.deals[:0]
}

// decode gives each decoding request one row, oldest first, and pauses the
// youngest when blocks run out. A prefill that is older than a decoding request
// gets its blocks before that one, which only one whose pull failed still lacks,
// and one place in the batch is kept for such prefills: requests that were pulled
// come without asking for one.
func (s *Scheduler) decode() {
	places := s.lim.MaxBatch
	for i := 0; i < len(s.running.list); {
		q := s.running.list[i]
		switch {
		case !s.wanted(q):
		case !decoding(q):
			places = s.lim.MaxBatch - 1
			s.grow(q, q.Known)
		case s.tokens > 0 && len(s.plan.Rows) < places && s.grow(q, q.Computed+1):
			s.row(q, 1)
		}
		if i < len(s.running.list) && s.running.list[i] == q {
			i++ // else q itself was paused
		}
	}
}

// continuePrefill gives started prefills their next chunk.
func (s *Scheduler) continuePrefill() {
	for _, q := range s.running.list {
		if q.step == s.step || !s.prefills(q) {
			continue
		}
		n := s.offer(q.Computed, q.Known-q.Computed, true)
		if n == 0 {
			s.full = true
			return
		}
		s.rowOrDeal(q, n)
	}
}

// prefills reports whether q may get a chunk in this step.
func (s *Scheduler) prefills(q *Seq) bool {
	return !decoding(q) && s.wanted(q) && s.blocksFor(q.Known) <= len(q.Table)
}

// wanted reports whether q may run in this step.
func (s *Scheduler) wanted(q *Seq) bool { return !q.Last && (q.Suspect || !s.lim.Suspects) }

// row adds a row of n tokens to the step.
func (s *Scheduler) row(q *Seq, n int) {
	q.step = s.step
	s.tokens -= n
	s.plan.Rows = append(s.plan.Rows, Row{Seq: q, Tokens: n, Grown: q.grown})
}

// grow makes q's table cover tokens positions. It pauses the youngest requests
// that have no row in this step until there is room; when that is q itself it
// reports false. It also does if q can wait for the step that runs: for one step
// only, so that younger ones cannot keep it out.
func (s *Scheduler) grow(q *Seq, tokens int) bool {
	need := s.blocksFor(tokens) - len(q.Table)
	q.grown = max(0, need)
	if need <= 0 {
		return true
	}
	if need > s.blocks.Free() && s.lim.Soon && q.step+1 == s.step {
		return false
	}
	for need > s.blocks.Free() {
		v := s.victim(q)
		if v == q && len(s.running.list)+len(s.recv.list)+len(s.loading.list) == 1 && !s.lim.Pending {
			s.Remove(q)
			s.plan.Starved = append(s.plan.Starved, q)
			return false
		}
		s.pause(v)
		if v == q {
			return false
		}
	}
	q.Table, _ = s.blocks.Take(q.Table, need)
	return true
}

// victim returns the last running request without a row in this step that may
// yield to q: never one before q, so the oldest always advances.
func (s *Scheduler) victim(q *Seq) *Seq {
	for i := len(s.running.list) - 1; i >= 0; i-- {
		v := s.running.list[i]
		if v == q {
			break
		}
		if v.step != s.step && !v.front && !v.Last {
			return v
		}
	}
	return q
}

func (s *Scheduler) pause(v *Seq) {
	s.paused = true
	s.Requeue(v)
	s.plan.Paused = append(s.plan.Paused, v)
	if v.Pauses++; v.Pauses > maxPauses {
		s.Remove(v)
		v.front = true
		s.put(v, inWaiting)
	}
}

// promised returns how many blocks admitted requests may still ask for.
func (s *Scheduler) promised() (n int) {
	for _, list := range [...][]*Seq{s.running.list, s.recv.list, s.loading.list} {
		for _, q := range list {
			n += max(0, q.Complete-len(q.Table))
		}
	}
	return n
}

// offer returns how many of remaining tokens a prefill that stands at position
// computed gets now; 0 means none, and none behind it. Without chunked prefill
// one that did not start yet gets all or nothing, unless no step could hold it.
func (s *Scheduler) offer(computed, remaining int, started bool) int {
	if len(s.plan.Rows)+len(s.deals) >= s.lim.MaxBatch {
		return 0
	}
	if s.cfg.Chunking == EqualProgress {
		if n := s.unit(computed, remaining); n <= s.prefill {
			return n
		}
		return 0
	}
	budget := min(s.prefill, s.tokens)
	if remaining <= budget {
		return remaining
	}
	if !s.cfg.ChunkPrefill && !started && remaining <= s.lim.MaxTokens {
		return 0
	}
	return max(0, (computed+budget)/s.cfg.BlockTokens*s.cfg.BlockTokens-computed)
}

// rowOrDeal spends n prefill tokens on q: at once, or as the first round of
// EqualProgress.
func (s *Scheduler) rowOrDeal(q *Seq, n int) {
	s.prefill -= n
	if s.cfg.Chunking == EqualProgress {
		q.step = s.step
		s.tokens -= n
		s.deals = append(s.deals, deal{seq: q, tokens: n})
		return
	}
	s.row(q, n)
	s.prefix.Expect(q, n)
}

// deal is the growing share of one prefill under EqualProgress.
type deal struct {
	seq    *Seq
	tokens int
}

// unit is the next helping of a prefill: up to the end of its block.
func (s *Scheduler) unit(computed, remaining int) int {
	return min(remaining, s.cfg.BlockTokens-computed%s.cfg.BlockTokens)
}

// dealOut shares the rest of the prefill budget among the deals, one unit each
// a round, until a round adds nothing.
func (s *Scheduler) dealOut() {
	for added := true; added; {
		added = false
		for i := range s.deals {
			d := &s.deals[i]
			at := d.seq.Computed + d.tokens
			n := s.unit(at, d.seq.Known-at)
			if n == 0 || n > s.prefill || s.blocksFor(at+n) > len(d.seq.Table) {
				continue
			}
			d.tokens += n
			s.prefill -= n
			s.tokens -= n
			added = true
		}
	}
	for _, d := range s.deals {
		s.plan.Rows = append(s.plan.Rows, Row{Seq: d.seq, Tokens: d.tokens, Grown: d.seq.grown})
	}
}
