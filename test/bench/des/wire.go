package des

import (
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// puller is one hand-over of blocks: from a ctx instance to a gen instance, from
// one rank to another, or to an unlimited gen worker.
type puller struct {
	s     *Sim
	peer  transfer.Peer
	order transfer.Pull
	from  *instance
	to    *rank         // nil: an unlimited gen worker
	done  func(ok bool) // of that
	flow  *flow
	link  *link
	epoch uint32
	first []transfer.Token
	size  int // blocks
	over  bool
}

// beat is how often the end of a long hand-over gives a sign.
const beat = 2 * time.Second

// patience is how long a puller waits for the owner's last word.
const patience = 10 * time.Second

// pull begins what a core ordered.
func (s *Sim) pull(r *rank, order *transfer.Pull) {
	s.attach(&puller{order: *order, to: r}, order.Have)
}

// attach asks the owner of the blocks for them.
func (s *Sim) attach(p *puller, have []blockhash.Hash) {
	s.peers++
	p.s, p.peer = s, s.peers
	p.from = s.byID[p.order.Handle.Endpoint]
	s.pullers[p.peer] = p
	s.byTransfer[p.order.Handle.ID] = p
	h := &p.order.Handle
	s.after(s.cfg.Net.Hop, func() {
		if p.from.dead || p.over {
			p.fail(transfer.RejectUnknown)
			return
		}
		p.from.transfer(func() {
			r := p.from.ranks[h.Rank]
			r.core.Attach(s.now, transfer.Attach{
				Peer: p.peer, ID: h.ID, Incarnation: h.Incarnation, Epoch: h.Epoch, Layout: h.Layout, Have: have,
				GenFirst: h.GenFirst, PromptTokens: h.PromptTokens, Prompt: p.order.Prompt,
			})
			r.carry()
		})
	})
}

// accepted lets the bytes go.
func (s *Sim) accepted(r *rank, a *transfer.Accept) {
	p := s.pullers[a.Peer]
	if p == nil || p.over {
		return
	}
	p.epoch, p.first, p.size = a.Epoch, a.First, len(a.Blocks)
	net := &s.cfg.Net
	bytes := float64(len(a.Blocks)) * float64(r.in.g.Core.Layout.BlockBytes())
	setup := net.Setup
	p.link = r.in.out
	if p.to != nil && p.to.in == r.in {
		p.link, setup = r.link, net.RankSetup
	} else if net.Layers > 0 {
		setup += time.Duration(net.Layers) * net.LayerSetup
		all := bytes
		bytes = max(all/float64(net.Layers), all-net.Bandwidth*s.took[a.ID].Seconds())
		p.link.send(0, all-bytes, func() {}) // nobody waits for these, but they need the link
	}
	delete(s.took, a.ID)
	p.report(transfer.PullEvent{})
	p.flow = p.link.send(setup, bytes, p.arrived)
	s.after(beat, p.beat)
}

// beat tells both ends that the bytes still flow.
func (p *puller) beat() {
	if p.over {
		return
	}
	p.report(transfer.PullEvent{})
	h := &p.order.Handle
	p.s.keepAlive(h.ID, p.epoch, h.Endpoint, h.Rank)
	p.s.after(beat, p.beat)
}

// arrived ends the flow: the owner is told.
func (p *puller) arrived() {
	if p.over {
		return
	}
	s, h := p.s, &p.order.Handle
	s.after(s.cfg.Net.Hop, func() {
		if p.over {
			return
		}
		if p.from.dead {
			p.fail(transfer.RejectUnknown)
			return
		}
		if p.from.deaf {
			s.after(patience, func() { p.fail(string(request.TransferTimeout)) })
			return
		}
		p.from.transfer(func() {
			r := p.from.ranks[h.Rank]
			r.core.Done(s.now, transfer.Done{Peer: p.peer, ID: h.ID, Epoch: p.epoch})
			r.carry()
		})
	})
}

// confirmed ends the hand-over by the owner's word.
func (p *puller) confirmed(ok bool) {
	if !ok {
		p.fail(transfer.RejectStale)
		return
	}
	p.end(transfer.PullEvent{Done: true, OK: true, Progress: p.size, First: p.first})
}

func (p *puller) fail(code string) {
	if p.flow != nil && !p.over {
		p.link.stop(p.flow)
	}
	p.end(transfer.PullEvent{Done: true, Code: code, Reason: code, Epoch: p.epoch})
}

// end reports once that nothing more comes.
func (p *puller) end(e transfer.PullEvent) {
	if p.over {
		return
	}
	p.over = true
	delete(p.s.pullers, p.peer)
	delete(p.s.byTransfer, p.order.Handle.ID)
	if p.to == nil {
		p.done(e.OK)
		return
	}
	p.report(e)
}

// report tells the core that ordered the pull.
func (p *puller) report(e transfer.PullEvent) {
	if p.to == nil || p.to.in.dead {
		return
	}
	e.ID = p.order.Handle.ID
	r := p.to
	r.in.transfer(func() {
		r.core.PullEvent(p.s.now, e)
		r.carry()
	})
}

// toPuller carries an answer back.
func (s *Sim) toPuller(peer transfer.Peer, do func(*puller)) {
	s.after(s.cfg.Net.Hop, func() {
		if p := s.pullers[peer]; p != nil {
			do(p)
		}
	})
}

// stopPull ends a pull that its core wants no more.
func (s *Sim) stopPull(id transfer.ID) {
	p := s.byTransfer[id]
	if p == nil {
		return
	}
	s.after(s.cfg.Net.Hop, func() {
		h := &p.order.Handle
		if !p.over && !p.from.dead {
			p.from.transfer(func() {
				r := p.from.ranks[h.Rank]
				r.core.Detach(s.now, transfer.Detach{Peer: p.peer, ID: h.ID, Cancelled: true})
				r.carry()
			})
		}
		p.fail("stopped")
	})
}

// keepAlive renews a lease.
func (s *Sim) keepAlive(id transfer.ID, epoch uint32, endpoint string, rank int) {
	in := s.byID[endpoint]
	s.after(s.cfg.Net.Hop, func() {
		in.transfer(func() {
			r := in.ranks[rank]
			r.core.KeepAlive(s.now, transfer.KeepAlive{ID: id, Epoch: epoch})
			r.carry()
		})
	})
}

// release ends a lease whose blocks nobody will fetch.
func (s *Sim) release(handle *transfer.Handle) {
	h, in := *handle, s.byID[handle.Endpoint]
	s.after(s.cfg.Net.Hop, func() {
		if in.deaf {
			return
		}
		in.transfer(func() {
			r := in.ranks[h.Rank]
			r.core.Release(s.now, transfer.Release{ID: h.ID, Epoch: h.Epoch})
			r.carry()
		})
	})
}
