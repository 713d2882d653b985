package sim

import (
	"fmt"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// puller is the fake byte path of one pull: it copies cache slots from the ctx
// worker's model to the gen worker's, one block at a time.
type puller struct {
	c        *Cluster
	pull     transfer.Pull
	peer     transfer.Peer
	accept   *transfer.Accept
	moved    int
	ready    int // blocks that the owner has computed
	whole    bool
	idle     bool // all that is ready was moved
	first    []transfer.Token
	heard    int // signs of the owner before accept
	cuts     int
	stopping bool
	finished bool
}

func (c *Cluster) startPull(pl transfer.Pull) {
	p := &puller{c: c, pull: pl}
	c.Gen.receives(pl.Dst, true)
	c.pulls[pl.Handle.ID] = p
	c.started = append(c.started, p)
	p.attach()
}

func (p *puller) attach() {
	c, pl := p.c, &p.pull
	c.peers++
	p.peer = c.peers
	peer, h := p.peer, &pl.Handle
	c.send(func() {
		c.Ctx.Core.Attach(c.Now, transfer.Attach{
			Peer: peer, ID: h.ID, Incarnation: h.Incarnation, Epoch: h.Epoch, Layout: h.Layout, Have: pl.Have,
			GenFirst: h.GenFirst, PromptTokens: h.PromptTokens, Prompt: pl.Prompt,
			Early: h.ID%2 == 0,
		})
		c.Ctx.flush()
	})
	p.patience()
}

// cut breaks the connection. The first time the puller comes again and goes on
// where it was.
func (p *puller) cut() {
	p.detach(false)
	if p.cuts++; p.cuts > 1 || p.stopping {
		p.end(p.peer, "connection lost")
		return
	}
	p.accept, p.ready, p.whole, p.idle = nil, 0, false, false
	p.attach()
}

// patience gives up on an owner that says nothing for a while.
func (p *puller) patience() {
	p.heard++
	now := p.heard
	p.c.at(p.c.Now+p.c.Net.AttachTime, func() {
		if p.accept == nil && p.heard == now {
			p.end(p.peer, string(request.TransferTimeout))
		}
	})
}

// alive is a PROGRESS of the owner.
func (p *puller) alive(m transfer.Progress) {
	if p == nil || p.finished || m.Peer != p.peer {
		return
	}
	p.ready = max(p.ready, m.Ready)
	if m.Whole {
		p.whole, p.ready, p.first = true, len(p.pull.Dst), m.First
	}
	p.report(transfer.PullEvent{})
	if p.accept == nil {
		p.patience()
	} else if p.idle && (p.ready > p.moved || p.whole) {
		p.idle = false
		p.read()
	}
}

// ended is the owner's word that the request ended with its first token.
func (p *puller) ended(m transfer.End) {
	if p == nil || p.finished || m.Peer != p.peer {
		return
	}
	p.finished = true
	p.report(transfer.PullEvent{Done: true, Ended: true, First: m.First})
}

// report sends one PullEvent to the gen core; the byte path is local to it, so
// this cannot get lost.
func (p *puller) report(e transfer.PullEvent) {
	e.ID = p.pull.Handle.ID
	if e.Done {
		p.c.Gen.receives(p.pull.Dst, false)
	}
	if !p.c.Net.ReadOn { // else no block is certain before the lease is confirmed
		e.Progress = p.moved
	}
	p.c.Gen.Core.PullEvent(p.c.Now, e)
	p.c.Gen.flush()
}

// end reports failure, once.
func (p *puller) end(peer transfer.Peer, code string) {
	if p == nil || p.finished || peer != p.peer {
		return
	}
	p.finished = true
	e := transfer.PullEvent{Done: true, Code: code, Reason: code}
	if p.accept != nil {
		e.Epoch = p.accept.Epoch
	}
	p.report(e)
}

func (p *puller) accepted(a transfer.Accept) {
	if p == nil || p.finished || a.Peer != p.peer || p.accept != nil {
		return
	}
	if len(a.Blocks) != len(p.pull.Dst) || a.Skip != len(p.pull.Have) {
		p.c.err = fmt.Errorf("sim: transfer %d: %d blocks from %d granted, %d from %d wanted",
			a.ID, len(a.Blocks), a.Skip, len(p.pull.Dst), len(p.pull.Have))
		return
	}
	p.accept = &a
	p.ready = max(p.ready, len(a.Blocks)-a.Coming)
	if a.Coming == 0 {
		p.whole, p.first = true, a.First
	} else {
		p.c.Early++
	}
	p.report(transfer.PullEvent{})
	p.readSoon()
}

func (p *puller) readSoon() {
	peer := p.peer
	p.c.at(p.c.Now+p.c.Net.BlockTime, func() {
		if p.peer == peer {
			p.read()
		}
	})
}

// read moves the next block.
func (p *puller) read() {
	if p.finished {
		return
	}
	c, h, peer := p.c, p.pull.Handle, p.peer
	if p.idle = p.moved >= p.ready && !p.whole; p.idle {
		return
	}
	if p.moved == len(p.pull.Dst) {
		epoch := p.accept.Epoch
		c.send(func() {
			c.Ctx.Core.Done(c.Now, transfer.Done{Peer: peer, ID: h.ID, Epoch: epoch})
			c.Ctx.flush()
		})
		c.at(c.Now+c.Net.AttachTime, func() { p.end(peer, string(request.TransferTimeout)) })
		return
	}
	live := c.serving[h.ID]
	if !live && !c.Net.ReadOn {
		p.end(p.peer, transfer.RejectStale)
		return
	}
	src := c.Ctx.Model.block(p.accept.Blocks[p.moved])
	if live {
		p.checkLeased(src)
	}
	copy(c.Gen.Model.block(p.pull.Dst[p.moved]), src)
	p.moved++
	c.Moved++
	p.report(transfer.PullEvent{})
	c.keepAlive(h.ID, p.accept.Epoch)
	p.readSoon()
}

// checkLeased proves that a leased block still holds the prompt (INV-17).
func (p *puller) checkLeased(src []slot) {
	b := len(src)
	first := (len(p.pull.Have) + p.moved) * b
	t := p.c.Ctx.Tracks[request.ID(p.pull.Handle.ID-1)]
	for i := 0; i < b && first+i < p.pull.Handle.PromptTokens; i++ {
		want := slot{token: t.Req.Prompt[first+i], pos: int32(first + i), root: p.pull.Handle.Root.Wire()}
		if src[i] != want {
			p.c.err = fmt.Errorf("sim: INV-17: leased block of transfer %d holds %+v, want %+v", p.pull.Handle.ID, src[i], want)
		}
	}
}

func (p *puller) reply(d transfer.DoneReply) {
	if p == nil || p.finished || d.Peer != p.peer {
		return
	}
	if !d.OK {
		p.end(p.peer, transfer.RejectStale)
		return
	}
	p.finished = true
	p.report(transfer.PullEvent{Done: true, OK: true, First: p.first})
}

// stop cancels the pull. The byte path goes on writing for a while.
func (p *puller) stop() {
	if p == nil || p.finished || p.stopping {
		return
	}
	p.stopping = true
	c := p.c
	p.detach(true)
	c.at(c.Now+c.Net.StopTime, func() { p.end(p.peer, "stopped") })
}

// detach tells the ctx worker that the puller, as it is now, is gone.
func (p *puller) detach(cancelled bool) {
	c, m := p.c, transfer.Detach{Peer: p.peer, ID: p.pull.Handle.ID, Cancelled: cancelled}
	c.send(func() {
		c.Ctx.Core.Detach(c.Now, m)
		c.Ctx.flush()
	})
}
