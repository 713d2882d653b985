package sim

import (
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// startBoth submits both legs of a generation-first session, in a drawn order and
// apart in time as their requests may be.
func (c *Cluster) startBoth(s *Session) {
	context := func() { s.Ctx = c.Ctx.Submit(c.Now, s.contextLeg(), nil) }
	generation := func() {
		r := s.contextLeg()
		r.ID, r.Kind = genID(s.ID), request.GenerationOnly
		s.Gen = c.Gen.Submit(c.Now, r, &transfer.Handle{
			ID: transfer.ID(r.TransferID), Incarnation: c.Ctx.cfg.Incarnation, Lease: min(c.Ctx.cfg.Lease, c.Ctx.cfg.PeerWait),
			Layout: c.Ctx.cfg.Layout, GenFirst: true,
		})
	}
	if c.rng.IntN(2) == 0 {
		context, generation = generation, context
	}
	context()
	generation()
	c.both = append(c.both, s)
}

// supervise ends the other leg when one has failed, as a frontend does.
func (c *Cluster) supervise() {
	keep := c.both[:0]
	for _, s := range c.both {
		switch {
		case s.Alone || s.Gen.Finish == request.FinishLength || s.cancelled:
		case broke(s.Ctx) || broke(s.Gen):
			c.Cancel(s)
		default:
			keep = append(keep, s)
		}
	}
	c.both = keep
}

func broke(t *Track) bool {
	return t.Finish == request.FinishError || t.Finish == request.FinishCancelled
}
