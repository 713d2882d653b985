package executor

import (
	"fmt"
	"iter"

	"tandem/engine/request"
)

// Stats returns a snapshot. It is cheap enough for every iteration.
func (c *Core) Stats() Stats {
	st := c.stats
	st.BlocksTotal = c.kv.Total()
	st.BlocksReusable = c.kv.Reusable()
	st.BlocksFree = c.kv.Free() - st.BlocksReusable
	st.EvictedBlocks = c.kv.Evicted()
	st.BlocksReceiving = c.recvBlocks
	st.BlocksLeased = c.leased
	st.BlocksActive = st.BlocksTotal - c.kv.Free() - st.BlocksReceiving - st.BlocksLeased
	st.HandoffsOpen = c.openLeases
	st.Receiving = c.recvOpen
	st.Loading = len(c.loads.waiting)
	st.Running = c.sch.Running() + c.sch.Loading()
	c.tierStats(&st)
	st.Waiting = c.sch.Waiting() + c.awaiting
	st.ErrorBudget = max(0, c.budget())
	if c.watchRoom(); c.full >= 0 {
		st.PoolFull = c.now - max(c.full, c.gained)
	}
	for _, s := range c.slots {
		if s != nil {
			c.holdAges(s, &st.HoldAges)
		}
		switch {
		case s == nil:
		case s.State == request.Closed:
			st.BlocksFenced += c.fenced(s)
		case s.State == request.Prefill:
			st.Prefilling++
		case s.State == request.Decode || s.State == request.GenReady:
			st.Decoding++
		case s.State == request.Paused:
			st.PausedNow++
		}
	}
	st.Holds = c.openLeases + c.recvOpen + st.Loading
	for i := range c.flights.n {
		st.Holds += len(c.flights.ring[c.flights.first^i].rows)
	}
	return st
}

// fenced returns how many blocks of a closed request nobody else has, so that
// they are free as soon as the steps that run are over.
func (c *Core) fenced(s *sequence) (n int) {
	if s.holds&holdStep == 0 {
		return 0
	}
	for _, id := range s.Table {
		if id >= 0 && c.kv.Refs(id) == 1 {
			n++
		}
	}
	return n
}

// watchRoom notes since when no block is free.
func (c *Core) watchRoom() {
	switch {
	case c.kv.Free() > 0:
		c.full = -1
	case c.full < 0:
		c.full = c.now
	}
}

// tierStats fills in what concerns the tiers below the device.
func (c *Core) tierStats(st *Stats) {
	t, size := c.kv.TierStats(), uint64(c.cfg.Layout.BlockBytes())
	st.HostBlocks, st.DiskBlocks, st.HostTotal = t.Host, t.Disk, t.HostTotal
	st.OffloadBytes, st.OnboardBytes = t.Offloaded*size, t.Onboarded*size
	st.SpillBytes, st.LoadBytes = t.Spilled*size, t.Loaded*size
	st.HostHitTokens, st.DiskHitTokens = t.Onboarded*uint64(c.cfg.BlockTokens), t.Loaded*uint64(c.cfg.BlockTokens)
	st.HostEvicted, st.DiskEvicted = t.HostEvicted, t.DiskEvicted
	st.TierFailed, st.BadFiles, st.DiskRests = t.FailedMoves, t.BadFiles, t.DiskSuspends
}

// tables yields the tables of all requests that are not retired.
func (c *Core) tables() iter.Seq[[]int32] {
	return func(yield func([]int32) bool) {
		for _, s := range c.slots {
			if s != nil && !yield(s.Table) {
				return
			}
		}
	}
}

// Check proves the core's invariants (engine-core §14, as far as they concern
// one rank). It is slow: for tests, debug builds and shutdown.
func (c *Core) Check() error {
	if err := c.kv.Check(c.tables()); err != nil {
		return err
	}
	count, suspects, recvOpen, recvBlocks, lent, awaiting, forks, lasts, loading := 0, 0, 0, 0, 0, 0, 0, 0, 0
	for i, s := range c.slots {
		if s == nil {
			continue
		}
		count++
		if s.Suspect {
			suspects++
		}
		if s.State == request.CtxWaitPeer {
			awaiting++
		}
		if s.Last {
			lasts++
		}
		if s.holds&holdOffload != 0 {
			loading++
		}
		if s.holds&holdRecv != 0 {
			recvOpen++
			recvBlocks += s.pull.blocks
		}
		if s.lent {
			lent++
		}
		if s.fam != nil && !s.fam.counts(s) {
			forks++
		}
		if q := c.byID[s.req.ID]; s.Slot != i || !s.lent && q != s && (q == nil || q.fam == nil || q.fam != s.fam) {
			return fmt.Errorf("executor: request %d is registered wrongly", s.req.ID)
		}
		if err := c.checkSequence(s); err != nil {
			return fmt.Errorf("executor: request %d in %v: %w", s.req.ID, s.State, err)
		}
	}
	if err := c.checkWrites(); err != nil {
		return err
	}
	switch {
	case count != len(c.byID)+lent+forks || lent != c.lent || count != c.alive+c.closing || suspects != c.suspects:
		return fmt.Errorf("executor: %d requests, %d ids, %d alive, %d closing, %d of %d suspects",
			count, len(c.byID), c.alive, c.closing, suspects, c.suspects)
	case count == 0 && c.ledger != nil && c.ledger.Live() > 0:
		return fmt.Errorf("executor: INV-4: no request is alive, but the ledger has %d turns under way", c.ledger.Live())
	case lasts != c.lasts:
		return fmt.Errorf("executor: %d requests sample their last token, counted %d", lasts, c.lasts)
	case loading != len(c.loads.waiting):
		return fmt.Errorf("executor: HO-2: %d requests wait for lower tiers, counted %d", loading, len(c.loads.waiting))
	case awaiting != c.awaiting:
		return fmt.Errorf("executor: %d requests wait for a peer, counted %d", awaiting, c.awaiting)
	case recvOpen != c.recvOpen || recvBlocks != c.recvBlocks:
		return fmt.Errorf("executor: INV-18: %d pulls of %d blocks, counted %d of %d", recvOpen, recvBlocks, c.recvOpen, c.recvBlocks)
	case count == 0 && (c.kv.Free()+c.kv.InboundBlocks() != c.kv.Total() || len(c.due) != 0 || len(c.byCtx)+len(c.byGen)+len(c.borrows) != 0 ||
		c.leased != 0 || c.openLeases != 0 || c.sch.Running()+c.sch.Waiting()+c.sch.Receiving()+c.sch.Loading() != 0):
		return fmt.Errorf("executor: INV-4: no request is alive, but %d of %d blocks are free, %d deadlines, %d leases",
			c.kv.Free(), c.kv.Total(), len(c.due), c.openLeases)
	case c.stats.IllegalTransition != 0:
		return fmt.Errorf("executor: %d illegal transitions", c.stats.IllegalTransition)
	}
	return nil
}

func (c *Core) checkSequence(s *sequence) error {
	b := c.cfg.BlockTokens
	if s.holds&holdStep != 0 != (s.Flying > 0) || s.Flying < 0 || s.Flying > c.flights.n {
		return fmt.Errorf("OV-3: %d rows in %d steps that run, holds %b", s.Flying, c.flights.n, s.holds)
	}
	if s.State.Alive() && (s.Known > len(s.tokens) != s.Ahead || s.Known-len(s.tokens) > s.Flying) {
		return fmt.Errorf("OV-3: %d known tokens, %d of them certain, with %d rows in steps that run", s.Known, len(s.tokens), s.Flying)
	}
	switch s.State {
	case request.Waiting, request.GenInit, request.Paused, request.CtxWaitPeer, request.Fork:
		if s.State == request.Fork != (s.head != nil) {
			return fmt.Errorf("waits for the prompt of another: %v", s.head != nil)
		}
		if s.State == request.GenInit && s.holds == holdOffload {
			break // pulls when what it has below is here
		}
		if len(s.Table) != 0 || s.holds&^holdStep != 0 || s.Flying > 0 && s.State != request.Paused || s.Last {
			return fmt.Errorf("has %d blocks, holds %b", len(s.Table), s.holds)
		}
		return nil
	case request.Closed:
		if s.holds == 0 {
			return fmt.Errorf("SM-5: nothing holds it")
		}
	}
	if s.Computed > len(s.Table)*b || s.done > s.Computed || s.done < s.Computed && s.Flying == 0 || s.committed > len(s.Table) {
		return fmt.Errorf("INV-6: %d (%d) of %d tokens computed, %d blocks, %d committed", s.done, s.Computed, s.Known, len(s.Table), s.committed)
	}
	if s.committed*b > s.done {
		return fmt.Errorf("INV-5: %d blocks are shared or in the index, and only %d tokens computed: the next row would write them", s.committed, s.done)
	}
	if s.State == request.GenRecv != (s.holds&holdRecv != 0) && s.State != request.Closed ||
		s.State == request.CtxSend != (s.holds&holdLease != 0) {
		return fmt.Errorf("holds %b", s.holds)
	}
	if err := c.checkEarly(s); err != nil {
		return err
	}
	for i, id := range s.Table {
		if id < 0 {
			if i >= c.behind(s) {
				return fmt.Errorf("the block at %d is gone, and the window reaches it from %d on", i, s.done)
			}
			continue
		}
		if c.kv.Inbound(id) && s.holds&holdOffload == 0 && s.State != request.Closed {
			return fmt.Errorf("HO-3: block %d at %d has no content yet, and nothing keeps the request from reading it", id, i)
		}
		h, ok := c.kv.Hash(id)
		if ok && (i >= len(s.hashes) || s.hashes[i] != h) {
			return fmt.Errorf("INV-6: block %d at %d has other content", id, i)
		}
		private := i >= s.committed
		if private && c.flights.n == 0 && (ok || c.kv.Refs(id) != 1) {
			return fmt.Errorf("INV-5: block %d at %d may be written: indexed %v, %d references", id, i, ok, c.kv.Refs(id))
		}
	}
	return nil
}

// checkWrites proves for the steps that run that nobody else has what they write: it
// is not in the index, under a lease or read, but by those that were admitted to
// read it in the same pass.
func (c *Core) checkWrites() error {
	b := c.cfg.BlockTokens
	for n := range c.flights.n {
		f := &c.flights.ring[c.flights.first^n]
		for j := range f.batch.Rows {
			r, s := &f.batch.Rows[j], c.slots[f.rows[j].Seq.Slot]
			// A request that was paused has no table any more, and what writes its blocks next comes after this step.
			for i := r.Pos / b; !f.void && i*b < r.Pos+len(r.Tokens) && i < len(s.Table); i++ {
				id := s.Table[i]
				if _, ok := c.kv.Hash(id); ok || c.leaseRefs[id] > 0 {
					return fmt.Errorf("executor: INV-5: request %d writes block %d: indexed %v, %d leases", s.req.ID, id, ok, c.leaseRefs[id])
				}
				for _, q := range c.slots {
					if q != nil && q != s && i < len(q.Table) && q.Table[i] == id && q.done > r.Pos && !q.fresh {
						return fmt.Errorf("executor: INV-5: request %d writes block %d, which request %d reads", s.req.ID, id, q.req.ID)
					}
				}
			}
		}
	}
	return nil
}
