package wire

import (
	"context"
	"time"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// An owner whose puller gave up need not keep the blocks until the lease ends. The
// puller tells it by CANCEL, on another stream if the one it had is broken.
const (
	releaseTries = 3
	releaseLimit = 10 * time.Second // of all tries
	releasePause = 100 * time.Millisecond
)

// Release tells the owner of a handle that nobody will come for its blocks. It
// does not wait, and gives up after some tries: then the lease ends by itself.
func (p *Puller) Release(h transfer.Handle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.release(h)
	}()
}

func (p *Puller) release(h transfer.Handle) {
	ctx, cancel := context.WithTimeout(p.ctx, releaseLimit)
	defer cancel()
	pause := releasePause
	for try := range releaseTries {
		if try > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause *= 2
		}
		if p.sendCancel(ctx, &h, try > 0) {
			return
		}
	}
	p.cfg.Logger.Debug("the owner of KV blocks could not be told that nobody fetches them: they are kept until their lease ends",
		"disagg_request_id", int64(h.ID), "endpoint", h.Endpoint)
}

// sendCancel sends one CANCEL on a stream of its own and reports whether the owner
// got it.
func (p *Puller) sendCancel(ctx context.Context, h *transfer.Handle, fresh bool) bool {
	l, err := p.openLink(ctx, h, fresh)
	if err != nil {
		return false
	}
	timer := time.AfterFunc(cancelGrace, l.hangUp)
	defer timer.Stop()
	told := l.tell(&pb.Cancel{
		Reason: "nobody fetches the blocks", Id: int64(h.ID), Incarnation: h.Incarnation, Rank: uint32(h.Rank), Epoch: h.Epoch,
		Mac: sign(p.cfg.Key, purposeCancel, h.ID, h.Incarnation), GenFirst: h.GenFirst,
	})
	l.cancel(context.Canceled)
	l.finish()
	return told
}
