package wire

import (
	"context"
	"time"

	"tandem/engine/transfer"
)

// beat renews the lease of one request that waits in a queue, on a control
// stream of its own that is kept between KEEPALIVEs.
type beat struct {
	kick   chan struct{}
	cancel context.CancelFunc
}

// KeepAlive sends one KEEPALIVE for a request that waits for blocks, which does
// it every third of the handle's lease. It does not wait. The stream stays open
// for the next one until Start or Stop of the transfer, or until linger has
// passed without a call; 0 means the length of the lease.
func (p *Puller) KeepAlive(h transfer.Handle, linger time.Duration) {
	if linger == 0 {
		linger = h.Lease
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil || p.pulls[h.ID] != nil {
		return
	}
	b := p.beats[h.ID]
	if b == nil {
		ctx, cancel := context.WithCancel(p.ctx)
		b = &beat{kick: make(chan struct{}, 1), cancel: cancel}
		p.beats[h.ID] = b
		p.wg.Add(1)
		go p.beat(ctx, b, h, max(linger, time.Second))
	}
	offer(b.kick, struct{}{})
}

// beat runs until it is cancelled or nobody has kicked it for linger.
func (p *Puller) beat(ctx context.Context, b *beat, h transfer.Handle, linger time.Duration) {
	defer p.wg.Done()
	defer b.cancel()
	idle := time.NewTimer(linger)
	defer idle.Stop()
	var l *link
	for going := true; going; {
		select {
		case <-b.kick:
			l = p.sendBeat(ctx, l, &h)
			idle.Reset(linger)
			continue
		case <-ctx.Done():
		case <-idle.C:
		}
		p.mu.Lock()
		// A kick that came meanwhile is not lost, unless the transfer is over.
		if going = ctx.Err() == nil && len(b.kick) > 0; !going && p.beats[h.ID] == b {
			delete(p.beats, h.ID)
		}
		p.mu.Unlock()
	}
	if l != nil {
		l.close()
	}
}

// sendBeat sends one KEEPALIVE over l, or over a new link. It returns the link to
// use next time, nil after a failure.
func (p *Puller) sendBeat(ctx context.Context, l *link, h *transfer.Handle) *link {
	if l != nil && l.ctx.Err() != nil {
		l.close()
		l = nil
	}
	var err error
	if l == nil {
		if l, err = p.openLink(ctx, h, false); err != nil {
			p.cfg.Logger.Debug("keep-alive", "transfer_id", int64(h.ID), "error", err)
			return nil
		}
	}
	if err = l.send(p.keepAlive(h, h.Epoch)); err != nil {
		p.cfg.Logger.Debug("keep-alive", "transfer_id", int64(h.ID), "error", err)
		l.close()
		return nil
	}
	return l
}
