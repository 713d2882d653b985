package executor

import (
	"fmt"
	"slices"
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// The ctx side of a hand-over. A lease keeps a finished prompt's blocks as they
// are until a puller has them, its deadline passes or it is cancelled. Blocks
// are found through the request's table, never by content again.

// openLease answers a ctx leg with its first token and the handle.
func (c *Core) openLease(s *sequence, out Output) {
	if !c.enter(s, request.CtxSend) {
		return
	}
	c.sch.Remove(&s.Seq)
	if out.Finish == request.Running { // else another choice needs the blocks
		out.Finish = request.FinishNotFinished
	}
	before := s.lease
	out.Handle = c.lease(s, len(s.req.Prompt))
	s.offer = handOverTokens(out.Tokens)
	c.closeTurn(s, true)
	c.emit(s, out)
	switch {
	case before.granted:
		c.complete(s, &before)
	case before.attached:
		s.lease.attached, s.lease.peer = true, before.peer
		c.grant(s, before.have)
	case before.gone:
		c.endLease(s)
	}
}

// lease puts the blocks of s, in CtxSend, under a lease for its first p tokens.
func (c *Core) lease(s *sequence, p int) *transfer.Handle {
	c.epoch++
	s.lease = lease{first: c.epoch, epoch: c.epoch, expires: c.now + c.patience()}
	c.hold(s, HoldLease)
	c.openLeases++
	for _, id := range s.Table {
		if c.leaseRefs[id]++; c.leaseRefs[id] == 1 {
			c.leased++
		}
	}
	c.retime(s)
	return &transfer.Handle{
		ID: transfer.ID(s.req.TransferID), Incarnation: c.cfg.Incarnation, Endpoint: c.cfg.Endpoint,
		Rank: c.cfg.Rank, Epoch: s.lease.first, Lease: c.cfg.Lease, PromptTokens: p, Layout: c.cfg.Layout,
		Root: s.root, Hashes: slices.Clone(s.chain(p/c.cfg.BlockTokens, c.cfg.BlockTokens)),
	}
}

// endLease gives leased blocks back and retires the request.
func (c *Core) endLease(s *sequence) {
	for _, id := range s.Table {
		if c.leaseRefs[id]--; c.leaseRefs[id] == 0 {
			c.leased--
		}
	}
	c.openLeases--
	c.fx().Revoked = append(c.fx().Revoked, transfer.ID(s.req.TransferID))
	s.holds &^= holdLease
	c.finish(s, Output{})
}

// leaseOf returns the request that holds the lease of id, or nil.
func (c *Core) leaseOf(id transfer.ID) *sequence {
	if s := c.byCtx[id]; s != nil && s.State == request.CtxSend {
		return s
	}
	return nil
}

// Attach answers a puller with the blocks it lacks, or refuses. A new puller
// replaces the one before, whose Done will find its epoch stale.
func (c *Core) Attach(now time.Duration, m transfer.Attach) {
	c.now = now
	if m.GenFirst {
		c.attachFirst(m)
		return
	}
	refuse := func(reason, detail string) { c.turnAway(m, reason, detail) }
	s := c.leaseOf(m.ID)
	switch {
	case m.Incarnation != c.cfg.Incarnation:
		refuse(transfer.RejectUnknown, "this worker was restarted since")
		return
	case s == nil:
		refuse(transfer.RejectUnknown, "no lease is open for this id")
		return
	case m.Epoch != s.lease.first:
		refuse(transfer.RejectStale, fmt.Sprintf("epoch %d, the lease has %d", m.Epoch, s.lease.first))
		return
	}
	if d := layoutDiff(c.cfg.Layout, m.Layout); d != "" {
		refuse(transfer.RejectLayout, d)
		return
	}
	c.serve(s, m)
}

// serve gives the lease of s to a puller. Each gets an epoch of its own, which the
// handle does not tell: who gave up before it was granted anything cannot end the
// lease of one that came after it.
func (c *Core) serve(s *sequence, m transfer.Attach) {
	if s.lease.peer != m.Peer {
		c.epoch++
		s.lease.epoch = c.epoch
	}
	s.lease.attached, s.lease.peer = true, m.Peer
	c.renew(s)
	c.grant(s, m.Have)
}

// grant lets the puller of s read the blocks behind those that it has.
func (c *Core) grant(s *sequence, have []blockhash.Hash) {
	skip := commonHashes(s.hashes, have)
	c.fx().Accepts = append(c.fx().Accepts, transfer.Accept{
		Peer: s.lease.peer, ID: transfer.ID(s.req.TransferID), Epoch: s.lease.epoch,
		Skip: skip, Blocks: slices.Clone(s.Table[skip:]), First: s.offer,
	})
}

// Done ends a lease whose puller has everything; if the lease is not that
// puller's any more, the answer voids the pull.
func (c *Core) Done(now time.Duration, m transfer.Done) {
	c.now = now
	s := c.leaseOf(m.ID)
	ok := s != nil && s.lease.attached && s.lease.peer == m.Peer && s.lease.epoch == m.Epoch
	c.fx().Dones = append(c.fx().Dones, transfer.DoneReply{Peer: m.Peer, ID: m.ID, OK: ok})
	if !ok {
		c.stats.StalePulls++
		c.lost(transfer.Detach{Peer: m.Peer, ID: m.ID}) // if it reads early
		return
	}
	table, moved := s.Table, s.lent
	c.endLease(s)
	if moved {
		c.demote(table)
	}
}

// demote lets blocks go first that live on another rank now: two copies of every
// conversation that moved would fill the pools. What other prefixes build on
// keeps its priority.
func (c *Core) demote(table []int32) {
	for _, id := range slices.Backward(table) {
		if c.kv.Unreferenced(id) && c.kv.Indexed(id) {
			c.kv.SetPriority(id, 0)
		}
	}
}

// Detach notes that a puller is gone. After a CANCEL the lease ends; after a
// broken stream another one may still come until it expires.
func (c *Core) Detach(now time.Duration, m transfer.Detach) {
	c.now = now
	if c.lost(m) {
		return
	}
	s := c.leaseOf(m.ID)
	if s == nil || !s.lease.attached || s.lease.peer != m.Peer {
		c.stats.UnknownMessages++
		return
	}
	if m.Cancelled {
		c.endLease(s)
		return
	}
	s.lease.attached = false
	s.lease.expires = min(s.lease.expires, c.now+c.patience())
	c.retime(s)
	c.epoch++
	s.lease.epoch = c.epoch
}

// Release ends a lease whose puller gave up and could not say so on the stream
// over which it read. A ctx leg that is still computed opens none.
func (c *Core) Release(now time.Duration, m transfer.Release) {
	c.now = now
	s := c.byCtx[m.ID]
	current := s != nil && (!s.lease.attached || s.lease.epoch == m.Epoch && (s.lease.granted || s.State == request.CtxSend))
	switch {
	case !current || s.lent:
		c.stats.UnknownMessages++
	case s.State == request.CtxSend:
		c.endLease(s)
	case s.met():
		c.withdraw(s)
		c.retime(s)
	case s.req.GenFirst && s.State.Alive():
		s.lease.gone = true
	default:
		c.stats.UnknownMessages++
	}
}

// KeepAlive renews a lease, for a puller that waits or one that reads.
func (c *Core) KeepAlive(now time.Duration, m transfer.KeepAlive) {
	c.now = now
	if m.Epoch == 0 && c.prolong(m.ID) { // no lease has this epoch
		return
	}
	s := c.leaseOf(m.ID)
	if s == nil && c.readsEarly(m) {
		return // it needs no lease yet
	}
	if s == nil || m.Epoch != s.lease.first && m.Epoch != s.lease.epoch {
		c.stats.UnknownMessages++
		return
	}
	c.renew(s)
}

func (c *Core) renew(s *sequence) {
	s.lease.expires = c.now + c.cfg.Lease
	c.retime(s)
}

// layoutDiff names the first field in which two KV layouts differ, or "".
func layoutDiff(a, b transfer.Layout) string {
	for _, f := range []struct {
		name string
		x, y any
	}{
		{"layers", a.Layers, b.Layers},
		{"kv_heads", a.KVHeads, b.KVHeads},
		{"head_dim", a.HeadDim, b.HeadDim},
		{"dtype", a.DType, b.DType},
		{"tokens_per_block", a.BlockTokens, b.BlockTokens},
		{"packing", a.Packing, b.Packing},
	} {
		if f.x != f.y {
			return fmt.Sprintf("%s: %v here, %v there", f.name, f.x, f.y)
		}
	}
	return ""
}

func commonHashes(a, b []blockhash.Hash) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
