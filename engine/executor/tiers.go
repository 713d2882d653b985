package executor

import (
	"slices"
	"time"

	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// Content of blocks that were evicted may be in a tier below the device: memory of
// the host, files. A request that finds some there takes blocks for it, is in
// Prefill with the hold offload, and gets no rows before all has come; others go
// on. If some does not come it waits as if it had never been admitted. One that is
// to pull is in GenInit meanwhile, and pulls what follows when all has come.

// Move is an order to copy a block's content between tiers.
type Move = kvcache.Move

// MoveDone is how a Move with a Job ended.
type MoveDone struct {
	Job    uint64
	Result kvcache.Result
	Took   time.Duration // without the time in the queue
}

const (
	// loadTimeout is how long a request waits without any move ending before it
	// computes what it waits for.
	loadTimeout = 10 * time.Second
	// diskRest is how long a disk is left alone that failed or is too slow.
	diskRest = 30 * time.Second
	// loadProbe is after how many refusals content is brought although computing it
	// looks cheaper: the copies may have become faster.
	loadProbe = 64
)

// loads is the state of what comes from lower tiers.
type loads struct {
	waiting []*sequence
	seen    time.Duration // when the last move ended
	retry   time.Duration // when the disk may be used again, 0 = it is
	refused int           // in a row
	cut     bool          // the last match left out what is not worth its copies

	// Moving averages, 0 = not known.
	prefill time.Duration // to compute one prompt token
	onboard time.Duration // to bring a block from the host
	load    time.Duration // to bring one from the disk
	pull    time.Duration // to pull one from a ctx worker
}

// average moves a moving average.
func average(avg *time.Duration, x time.Duration) {
	if *avg == 0 {
		*avg = x
		return
	}
	*avg += (x - *avg) / 8
}

// matchTiers finds the longest prefix of the chain that is worth its copies.
func (c *Core) matchTiers(s *sequence, blocks int) kvcache.Below {
	chain := s.chain(blocks, c.cfg.BlockTokens)
	c.loads.cut = false
	var below kvcache.Below
	c.match, below = c.kv.MatchTiers(c.match[:0], chain, c.cfg.ShareInPass, kvcache.Disk)
	for _, deepest := range []kvcache.Level{kvcache.Disk, kvcache.Host, kvcache.Device} {
		if !below.Any() {
			return below
		}
		// What a step is still to compute can fail while this request waits, so it has
		// no part in that.
		c.match, below = c.kv.MatchTiers(c.match[:0], chain, false, deepest)
		if c.worth(&below, time.Duration(c.cfg.BlockTokens)*c.loads.prefill) {
			return below
		}
		c.loads.cut = true
	}
	return below
}

// matchPull finds what s need not pull: what is on the device, and what is in tiers
// below from which it comes sooner. A loan is pulled as a whole.
func (c *Core) matchPull(s *sequence) kvcache.Below {
	b := c.cfg.BlockTokens
	chain, below := s.chain(s.Offered/b, b), kvcache.Below{First: -1}
	c.loads.cut = false
	for _, deepest := range []kvcache.Level{kvcache.Disk, kvcache.Host} {
		if s.Borrows {
			break
		}
		if c.match, below = c.kv.MatchTiers(c.match[:0], chain, false, deepest); c.worth(&below, c.loads.pull) {
			return below
		}
		c.loads.cut = true
	}
	if c.match, below = c.kv.MatchTiers(c.match[:0], chain, false, kvcache.Device); below.Any() {
		c.match = c.match[:below.First]
	}
	return kvcache.Below{First: -1}
}

// worth reports whether bringing content costs less time than to come by it in
// another way, which takes instead for each block; 0 = not known.
func (c *Core) worth(b *kvcache.Below, instead time.Duration) bool {
	l := &c.loads
	n := b.Host + b.Disk
	if n == 0 || c.cfg.OnboardAlways || instead == 0 || l.refused >= loadProbe {
		return true
	}
	ahead := time.Duration(c.kv.InboundBlocks()) * max(l.onboard, l.load) / 2
	return time.Duration(b.Host)*l.onboard+time.Duration(b.Disk)*l.load+ahead <= time.Duration(n)*instead
}

// weighed notes that the blocks of the last match are used.
func (c *Core) weighed(fetched int) {
	switch l := &c.loads; {
	case l.cut:
		l.refused++
		c.stats.RecomputedCheaper++
	case fetched > 0:
		l.refused = 0
	}
}

// startLoading lets a request wait that got its blocks.
func (c *Core) startLoading(a *scheduler.Admission) {
	s := c.slots[a.Seq.Slot]
	s.done, s.from, s.first, s.fresh = s.Computed, s.State, !s.admitted, false
	if !s.admitted {
		s.admitted = true
		s.cached = min(s.Computed, len(s.req.Prompt))
	}
	c.tally.Admitted++
	c.awaitLoads(s)
	c.enter(s, request.Prefill)
}

// awaitLoads lets s wait for what comes to its first blocks.
func (c *Core) awaitLoads(s *sequence) {
	s.loadAt, s.loadBegan = 0, c.now
	c.hold(s, HoldOffload)
	c.loads.waiting = append(c.loads.waiting, s)
	c.retime(s)
}

// Moved takes the end of a move.
func (c *Core) Moved(now time.Duration, d MoveDone) {
	c.now = now
	c.loads.seen = now
	mv, lost := c.kv.Moved(d.Job, d.Result)
	switch {
	case mv.Job == 0:
		c.stats.UnknownMessages++
		return
	case d.Result == kvcache.Failed && (mv.Kind == kvcache.Spill || mv.Kind == kvcache.Load):
		c.restDisk()
	case d.Result == kvcache.Done && mv.Kind == kvcache.Onboard:
		average(&c.loads.onboard, d.Took)
	case d.Result == kvcache.Done && mv.Kind == kvcache.Load:
		average(&c.loads.load, d.Took)
	}
	for _, s := range slices.Clone(c.loads.waiting) {
		switch {
		case lost >= 0 && slices.Contains(s.Table[:s.committed], lost):
			c.unload(s)
		case c.allHere(s):
			c.loaded(s)
		}
	}
}

// allHere reports whether all content has come that s waits for.
func (c *Core) allHere(s *sequence) bool {
	for s.loadAt < s.committed && !c.kv.Inbound(s.Table[s.loadAt]) {
		s.loadAt++
	}
	return s.loadAt == s.committed
}

// loaded lets a request run for which everything is here.
func (c *Core) loaded(s *sequence) {
	c.stopLoading(s)
	if s.State == request.GenInit {
		c.startPull(s, s.committed)
		return
	}
	if s.first {
		c.countPrefix(s)
	}
	c.sch.Received(&s.Seq)
	c.retime(s)
}

// unload puts a request back in its place in the queue.
func (c *Core) unload(s *sequence) {
	c.stopLoading(s)
	if s.State == request.GenInit {
		c.sch.RequeueGen(&s.Seq)
		s.done, s.committed = 0, 0
		c.retime(s)
		return
	}
	c.unadmit(s, s.from)
}

func (c *Core) stopLoading(s *sequence) {
	if s.holds&holdOffload == 0 {
		return
	}
	s.holds &^= holdOffload
	i := slices.Index(c.loads.waiting, s)
	c.loads.waiting = slices.Delete(c.loads.waiting, i, i+1)
}

// loadDue is when s has waited too long.
func (c *Core) loadDue(s *sequence) time.Duration {
	return max(s.loadBegan, c.loads.seen) + loadTimeout
}

// loadOverdue gives up what s waits for, and with it whoever waits for the same.
func (c *Core) loadOverdue(s *sequence) {
	if c.loadDue(s) > c.now {
		return
	}
	c.restDisk()
	for _, id := range s.Table[:s.committed] {
		c.kv.Abandon(id)
	}
	for _, q := range slices.Clone(c.loads.waiting) {
		if slices.ContainsFunc(q.Table[:q.committed], func(id int32) bool { return c.kv.Inbound(id) && !c.kv.Indexed(id) }) {
			c.unload(q)
		}
	}
}

// restDisk leaves the disk alone for a while.
func (c *Core) restDisk() {
	c.kv.SuspendDisk()
	c.loads.retry = c.now + diskRest
}

// wakeDisk uses the disk again when its rest is over and nothing is stuck there.
func (c *Core) wakeDisk() {
	if l := &c.loads; l.retry > 0 && l.retry <= c.now && c.kv.InboundBlocks() == 0 {
		l.retry = 0
		c.kv.ResumeDisk()
	}
}

// Remains is what would be lost with the process and belongs into files: see
// kvcache. The core must be idle, and is of no use afterwards.
func (c *Core) Remains() []Move { return c.kv.Remains() }

// Restore enters the files that an earlier process left, the least recently used
// first. Call it before anything else.
func (c *Core) Restore(files []kvcache.File) { c.kv.Restore(files) }
