package executor

import (
	"slices"

	"tandem/engine/request"
)

// Hold takes all rows that prefill out of the planned batch, for the balance
// between ranks, and gives back the blocks that the plan took for them. Requests
// that it had just admitted wait again, in their old place and as if they had
// not been looked at; running ones keep what they had before the plan. Decode
// rows, pulls and pauses stay planned. Hold returns the batch that is left, or
// nil: then nothing runs and no Apply follows. Without a planned batch it does
// nothing and returns nil; of two batches it takes the later, which must not be
// running yet, and which feeds no other. Cached blocks that were evicted for a held row are
// lost, but the next plan finds their room empty.
func (c *Core) Hold() *Batch {
	if c.flights.n == 0 {
		return nil
	}
	f := c.flights.newest()
	b := &f.batch
	for _, cp := range b.Copies[:f.reused] {
		c.kv.EndCopy(cp.From)
	}
	b.Copies, f.reused = slices.Delete(b.Copies, 0, f.reused), 0
	rows, keep := b.Rows[:0], f.rows[:0]
	for i, row := range b.Rows {
		planned := f.rows[i]
		if row.Context {
			c.holdBack(c.slots[planned.Seq.Slot], planned.Grown)
			continue
		}
		rows, keep = append(rows, row), append(keep, planned)
	}
	clear(b.Rows[len(rows):])
	b.Rows, f.rows = rows, keep
	c.kv.ClearPending()
	f.share.ctxRequests, f.share.ctxTokens, f.share.ctxPrior = 0, 0, 0
	c.recordHeld(f)
	if len(rows) > 0 {
		return b
	}
	c.flights.drop()
	return nil
}

// holdBack undoes what the plan did for a row, which took the last grown blocks
// of a running request's table.
func (c *Core) holdBack(s *sequence, grown int) {
	fresh := s.fresh
	s.fresh = false
	c.alight(s)
	if s.State == request.Closed {
		c.retire(s) // cancelled since
		return
	}
	c.rollBack(s)
	if !fresh {
		c.sch.Shrink(&s.Seq, grown)
		return
	}
	c.unadmit(s, s.from)
}
