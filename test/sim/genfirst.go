package sim

import (
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/executor"
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

// comes lets a puller elsewhere attach to a ctx leg that has no rank yet, soon or
// never: it asks all ranks.
func (p *paths) comes(r *request.Request) {
	if p.rng.IntN(6) == 0 {
		return
	}
	p.peer++
	peer, cfg := p.peer, &p.in.Ranks[0].cfg
	p.outer[peer] = &outside{rank: nowhere}
	m := transfer.Attach{
		Peer: peer, ID: transfer.ID(r.TransferID), Incarnation: cfg.Incarnation, Layout: cfg.Layout,
		GenFirst: true, PromptTokens: len(r.Prompt), Prompt: promptHash(cfg, r),
	}
	m.Layout.BlockTokens = cfg.BlockTokens
	leaves := p.rng.IntN(8) == 0
	for i := range p.in.Ranks {
		p.later(i, func(now time.Duration, c *executor.Core) {
			if p.outer[peer] == nil {
				return
			}
			c.Attach(now, m)
			if leaves {
				p.later(i, func(now time.Duration, c *executor.Core) {
					delete(p.outer, peer)
					c.Detach(now, transfer.Detach{Peer: peer, ID: m.ID, Cancelled: i%2 == 0})
				})
			}
		})
	}
}

// nowhere is the rank of a puller whose request has none.
const nowhere = -1

// claimed lets the other ranks forget a puller.
func (p *paths) claimed(rank int, m transfer.Progress) {
	o := p.outer[m.Peer]
	if o == nil || !m.Claimed || o.rank == rank {
		return
	}
	if o.rank != nowhere {
		p.in.fail("puller %d is claimed by the ranks %d and %d", m.Peer, o.rank, rank)
	}
	o.rank = rank
	p.in.Log.Met++
	for i := range p.in.Ranks {
		if i != rank {
			p.later(i, func(now time.Duration, c *executor.Core) {
				c.Detach(now, transfer.Detach{Peer: m.Peer, ID: m.ID, Cancelled: true})
			})
		}
	}
}

// promptHash is the hash behind the last token of a prompt.
func promptHash(cfg *executor.Config, r *request.Request) blockhash.Hash {
	at := blockhash.Root(cfg.Namespace, "", r.CacheSalt)
	for rest := r.Prompt; len(rest) > 0; {
		n := min(cfg.BlockTokens, len(rest))
		at, rest = blockhash.Next(at, rest[:n]), rest[n:]
	}
	return at
}

// first is what a ctx worker elsewhere would have sampled.
func (p *paths) first(m *Member, id transfer.ID) []transfer.Token {
	t := p.trackOf(m, id)
	return []transfer.Token{{ID: Oracle(m.cfg.Vocab, m.Root(t.Req), t.Req.Prompt, 1)[0]}}
}

// endsEarly lets some generation-first pulls hear that their request ended with
// the first token: always those for which that is true, and some others.
func (p *paths) endsEarly(f *fetch) bool {
	h := &f.pull.Handle
	if !h.GenFirst {
		return false
	}
	m := p.in.Ranks[f.rank]
	if t := p.trackOf(m, h.ID); t.Req.MaxTokens > 1 && p.rng.IntN(8) > 0 {
		return false
	}
	f.over = true
	delete(p.pulls, h.ID)
	delete(p.peers, f.peer)
	m.Core.PullEvent(p.in.Now, transfer.PullEvent{ID: h.ID, Done: true, Ended: true, First: p.first(m, h.ID)})
	m.flush()
	return true
}
