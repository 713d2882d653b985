package executor

import (
	"errors"
	"time"

	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// Plan applies deadlines and decides the next step. It returns nil if nothing
// can run now; otherwise the driver runs the batch and calls Apply. One batch may
// be planned while another runs; nil then means that its results are needed first.
func (c *Core) Plan(now time.Duration) *Batch {
	if c.flights.n == len(c.flights.ring) {
		panic("executor: Plan before the batch before the last was applied")
	}
	c.expire(now)
	c.kv.NextPending()
	if c.resets {
		c.ResetCache()
	}
	for c.fatal == nil && !c.resets && c.ahead() {
		p := c.sch.Schedule(c.limits())
		c.carryOut(p)
		if len(p.Rows) > 0 {
			c.stuck = 0
			return c.build(p)
		}
		if c.flights.n > 0 {
			break // nothing is stuck: what comes back may change all of this
		}
		if c.suspects > 0 {
			c.trustAll() // what is suspect cannot run: do not stall the others
			continue
		}
		if len(p.Starved)+len(p.Found) == 0 && !c.callIn() && !c.unstick() {
			break
		}
	}
	return nil
}

// limits are the budgets of the next step: smaller after a failed one.
func (c *Core) limits() scheduler.Limits {
	l := scheduler.Limits{MaxTokens: c.cfg.MaxNumTokens, MaxBatch: c.cfg.MaxBatch}
	if c.suspects > 0 {
		l = c.piece
		l.Suspects = true
	}
	l.Pending = c.pending() || c.flights.n > 0
	l.Soon = c.flights.n > 0 && c.closing+c.lasts > 0
	limit := c.cfg.MaxLeasedFraction
	l.Hold = limit < 1 && float64(c.leased) > limit*float64(c.cfg.Blocks)
	return l
}

// pending reports whether blocks will come back without a step: from a lease, a
// pull, a request that has ended, or a copy into them.
func (c *Core) pending() bool {
	return c.openLeases > 0 || c.sch.Receiving()+c.sch.Loading() > 0 || c.closing > 0 || c.kv.InboundBlocks() > 0
}

// carryOut gives the scheduler's decisions their effect on requests.
func (c *Core) carryOut(p *scheduler.Plan) {
	for _, q := range p.Paused {
		s := c.slots[q.Slot]
		c.withdraw(s)
		c.retain(s)
		s.done, s.committed = 0, 0
		c.copied(s)
		c.stats.Paused++
		c.tally.Paused++
		c.note(EventPaused, s.req.ID, nil)
		c.enter(s, request.Paused)
	}
	for _, q := range p.Starved {
		c.fail(c.slots[q.Slot], request.Errorf(request.Capacity, "the KV pool has no room for this request any more"))
	}
	for _, a := range p.Receive {
		s := c.slots[a.Seq.Slot]
		s.done = s.Computed
		if a.Wait {
			c.awaitLoads(s)
			continue
		}
		c.startPull(s, a.Shared)
	}
	for _, q := range p.Found {
		s := c.slots[q.Slot]
		if c.enter(s, request.Waiting) {
			c.settleLoan(s, true, false)
		}
	}
	for i := range p.Loading {
		c.startLoading(&p.Loading[i])
	}
	for _, a := range p.Admitted {
		s := c.slots[a.Seq.Slot]
		c.tally.Admitted++
		s.done = s.Computed
		s.fresh, s.from, s.first = true, s.State, !s.admitted
		if !s.admitted {
			s.admitted = true
			s.cached = min(s.Computed, len(s.req.Prompt))
		}
		c.enter(s, request.Prefill)
	}
}

// build makes the batch of a plan.
func (c *Core) build(p *scheduler.Plan) *Batch {
	f := c.flights.begin()
	f.rows, f.share, f.planned, f.void = append(f.rows[:0], p.Rows...), share{}, c.now, false
	b := &f.batch
	c.stats.Iter++
	b.Iter = c.stats.Iter
	b.Copies, b.Rows = b.Copies[:0], b.Rows[:0]
	for _, a := range p.Admitted {
		if a.Copied > 0 {
			b.Copies = append(b.Copies, Copy{From: a.From, To: a.Seq.Table[a.Shared], Tokens: a.Copied})
		}
	}
	f.reused = len(b.Copies)
	for _, r := range f.rows {
		s := c.slots[r.Seq.Slot]
		if s.part > 0 {
			b.Copies = append(b.Copies, Copy{From: s.source, To: s.Table[s.prompt/c.cfg.BlockTokens], Tokens: s.part})
			s.part, s.fresh, s.first = 0, true, false
		}
		b.Rows = append(b.Rows, c.row(f, s, r.Tokens))
		c.fly(s, len(b.Rows), &b.Rows[len(b.Rows)-1])
	}
	c.recordStep(f)
	return b
}

// unknown stands for a token that is being sampled.
var unknown = []int32{0}

// row makes the row of s that computes n tokens.
func (c *Core) row(f *flight, s *sequence, n int) Row {
	if s.State == request.GenReady {
		c.enter(s, request.Decode)
	}
	ctx := s.State != request.Decode && !s.Ahead
	f.share.add(ctx, s.Computed, n)
	if s.times.Scheduled == 0 {
		s.times.Scheduled = c.now
	}
	end := s.Computed + n
	row := Row{
		Request: s.runs(), Pos: s.Computed, Pages: s.Table[:c.blocksFor(end)],
		Sample: end == s.Known, Index: s.output(), Context: ctx,
	}
	if s.Ahead {
		row.Tokens, row.Feed = unknown, s.row
	} else {
		row.Tokens = s.tokens[s.Computed:end:end]
	}
	if row.Sample && !s.Ahead { // else they draw from the row before
		row.Forks = s.forkRequests()
	}
	s.scoreRow(&row, end)
	return row
}

// unstick is the deadlock detector (ER-5): nothing runs although requests wait
// and no event will change that. It ends the first in line and reports whether
// it did.
func (c *Core) unstick() bool {
	q := c.sch.Head()
	if q == nil || c.pending() {
		return false
	}
	c.stats.Deadlocks++
	c.note(EventDeadlock, c.slots[q.Slot].req.ID, nil)
	if c.stuck++; c.stuck >= 3 {
		c.die(errors.New("executor: nothing could be scheduled three times in a row"))
		return false
	}
	c.fail(c.slots[q.Slot], request.Errorf(request.Internal, "the scheduler found no way to run this request"))
	return true
}

// die ends all requests and refuses new ones.
func (c *Core) die(err error) {
	c.fatal = err
	c.record.note(EventRecord{At: c.now, Iter: c.stats.Iter, Kind: EventFatal, Code: request.EngineDead, Text: err.Error()})
	c.dismiss("this worker's engine stopped")
	for _, s := range c.slots {
		if s == nil || s.State == request.Closed {
			continue
		}
		if s.State == request.CtxSend {
			c.endLease(s)
			continue
		}
		c.fail(s, request.Errorf(request.EngineDead, "the engine stopped: %v", err))
	}
}
