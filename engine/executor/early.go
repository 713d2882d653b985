package executor

import (
	"fmt"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Pipelined hand-overs: the puller of a generation-first request may read the
// blocks of each chunk while later ones are computed. What is full is as immutable
// as under a lease, since the request has it until its end; a request that loses
// its blocks before that withdraws them.

// publish grants the full blocks of s that are computed for certain to the puller
// that waits for them, or tells it of more.
func (c *Core) publish(s *sequence) {
	l := &s.lease
	coming := s.fresh || s.holds&holdOffload != 0 // what it shares is not all here yet
	if !s.met() || !l.early || s.fam != nil || s.State != request.Prefill || coming {
		return
	}
	b := c.cfg.BlockTokens
	ready, id := s.done/b, transfer.ID(s.req.TransferID)
	if l.granted {
		if ready-l.skip > l.shown {
			l.shown = ready - l.skip
			c.fx().Progress = append(c.fx().Progress, transfer.Progress{Peer: l.peer, ID: id, Ready: l.shown})
		}
		return
	}
	skip, total := commonHashes(s.chain(len(s.req.Prompt)/b, b), l.have), c.blocksFor(len(s.req.Prompt))
	if ready <= skip || len(s.Table) < total {
		return
	}
	c.epoch++
	l.granted, l.epoch, l.skip, l.shown = true, c.epoch, skip, ready-skip
	c.fx().Accepts = append(c.fx().Accepts, transfer.Accept{
		Peer: l.peer, ID: id, Epoch: l.epoch, Skip: skip, Blocks: append([]int32(nil), s.Table[skip:total]...), Coming: total - ready,
	})
}

// withdraw takes back what was published of a request that loses its blocks. Its
// puller computes the prompt itself, and no other will come.
func (c *Core) withdraw(s *sequence) {
	if l := &s.lease; l.granted && s.met() {
		c.fx().Revoked = append(c.fx().Revoked, transfer.ID(s.req.TransferID))
		l.attached, l.granted, l.gone = false, false, true
	}
}

// complete puts a grant that was published early under the lease of the whole
// prompt, whose first token goes with it.
func (c *Core) complete(s *sequence, before *lease) {
	l := &s.lease
	l.attached, l.peer, l.epoch = true, before.peer, before.epoch
	c.fx().Progress = append(c.fx().Progress, transfer.Progress{
		Peer: l.peer, ID: transfer.ID(s.req.TransferID), Whole: true, First: s.offer,
	})
}

// readsEarly reports whether a message is of the puller that reads a prompt which
// is still computed.
func (c *Core) readsEarly(m transfer.KeepAlive) bool {
	s := c.byCtx[m.ID]
	return s != nil && s.met() && s.lease.granted && s.lease.epoch == m.Epoch
}

// checkEarly proves that a puller was shown nothing that may still be written.
func (c *Core) checkEarly(s *sequence) error {
	if l := &s.lease; l.granted && (!s.met() || (l.skip+l.shown)*c.cfg.BlockTokens > s.done) {
		return fmt.Errorf("INV-17: %d+%d blocks were published of %d computed tokens", l.skip, l.shown, s.done)
	}
	return nil
}
