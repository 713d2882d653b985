package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// reportEvery spaces the progress reports of a fast pull; the final event
// carries the exact count.
const reportEvery = 20 * time.Millisecond

// readChunk is how much is read under one deadline.
const readChunk = 1 << 20

// causeGrace is how long a broken byte path waits for the control stream to say
// why: an owner that revokes closes the one just before it tells on the other.
const causeGrace = 100 * time.Millisecond

// pull is one pull in progress. Block memory is written by the goroutine that
// runs it and by nothing else, so the pull is quiet when run returns.
type pull struct {
	p        *Puller
	ctx      context.Context
	order    transfer.Pull
	to       *places
	verified int              // of the owner's blocks that must come
	epoch    uint32           // of the last ACCEPT
	told     bool             // CANCEL is on its way
	path     string           // by which blocks came last
	first    []transfer.Token // of FIN
	reported time.Time
}

// errEnded is the end of a pull whose request ended with its first token.
var errEnded = &pullError{code: CodeFailed, reason: "the request ended with its first token"}

func (pl *pull) run() (err error) {
	if pl.to, err = placesOf(pl.p.memory, &pl.order); err != nil {
		return err
	}
	defer pl.to.close()
	for tries := 0; ; {
		before := pl.verified
		err := pl.once()
		if tries++; pl.verified > before {
			tries = 0
		}
		if err == nil || !errors.Is(err, errLost) || tries >= triesOfStream || pl.ctx.Err() != nil {
			return err
		}
		pl.p.cfg.Logger.Warn("the control stream broke, the pull attaches again", "disagg_request_id", int64(pl.order.Handle.ID),
			"endpoint", pl.order.Handle.Endpoint, "blocks", pl.verified, "error", err)
	}
}

// triesOfStream is how often in a row the control stream may break without a new
// block.
const triesOfStream = 2

// once is a pull over one control stream.
func (pl *pull) once() error {
	l, accept, err := pl.attach()
	if err != nil {
		return err
	}
	defer pl.part(l)
	if accept == nil {
		return errEnded
	}
	pl.epoch = accept.GetEpoch()
	pl.report()
	defer pl.p.renew(l, &pl.order.Handle, accept.GetEpoch())()
	return pl.transfer(l, accept)
}

// part ends a control stream.
func (pl *pull) part(l *link) { pl.told = l.close() }

// have are the hashes of the leading blocks that need not come any more.
func (pl *pull) have() []transfer.Hash {
	h := pl.order.Handle.Hashes
	return h[:min(len(pl.order.Have)+pl.verified, len(h))]
}

// filled is how many blocks of the order are here as a whole.
func (pl *pull) filled() int {
	if pl.to == nil {
		return 0
	}
	return pl.to.filled(pl.verified)
}

// attach opens the control stream and gets an ACCEPT. A broken or silent
// connection is tried once more on a new one; a REJECT is final. Without an
// ACCEPT the request ended with its first token.
func (pl *pull) attach() (*link, *pb.Accept, error) {
	var firstErr error
	for _, fresh := range []bool{false, true} {
		l, accept, err := pl.tryAttach(fresh)
		var reject *rejected
		switch {
		case err == nil:
			return l, accept, nil
		case errors.As(err, &reject):
			return nil, nil, reject.pullError()
		case pl.ctx.Err() != nil:
			return nil, nil, context.Cause(pl.ctx)
		case firstErr == nil:
			firstErr = err
		default:
			return nil, nil, fmt.Errorf("attach failed twice: %w; before: %w", err, firstErr)
		}
	}
	return nil, nil, firstErr
}

func (pl *pull) tryAttach(fresh bool) (*link, *pb.Accept, error) {
	h := &pl.order.Handle
	l, err := pl.p.openLink(pl.ctx, h, fresh)
	if err != nil {
		return nil, nil, err
	}
	l.alive, l.epoch = pl.report, h.Epoch
	m := &pb.Attach{
		Id: int64(h.ID), Incarnation: h.Incarnation, Rank: uint32(h.Rank), Epoch: h.Epoch,
		Layout: encodeLayout(h.Layout), Have: encodeHashes(pl.have()),
		Mac: sign(pl.p.cfg.Key, purposeAttach, h.ID, h.Incarnation),
	}
	if h.GenFirst {
		m.GenFirst, m.PromptTokens, m.Prompt, m.Early = true, uint32(h.PromptTokens), pl.order.Prompt[:], !pl.p.cfg.NoEarly
	}
	err = l.send(&pb.PullerMessage{Kind: &pb.PullerMessage_Attach{Attach: m}})
	var answer *pb.OwnerMessage
	if err == nil {
		answer, err = await(l, l.answer, pl.p.cfg.AttachTimeout, "answer to ATTACH")
	}
	if err == nil {
		switch r := answer.GetReject(); {
		case r != nil:
			err = &rejected{reason: r.GetReason(), detail: r.GetDetail()}
		case answer.GetFin() != nil:
			err = pl.takeFirst(answer.GetFin())
		default:
			err = pl.checkAccept(answer.GetAccept())
		}
	}
	if err != nil {
		pl.part(l)
		return nil, nil, err
	}
	l.epoch = answer.GetAccept().GetEpoch()
	return l, answer.GetAccept(), nil
}

// rejected is a REJECT.
type rejected struct{ reason, detail string }

func (r *rejected) Error() string { return "rejected: " + r.reason + ": " + r.detail }

func (r *rejected) pullError() error {
	code := CodeFailed
	switch r.reason {
	case transfer.RejectUnknown:
		code = CodeUnknown
	case transfer.RejectLayout:
		code = CodeLayout
	case transfer.RejectStale:
		code = CodeStale
	case transfer.RejectPrompt:
		code = CodePrompt
	}
	return &pullError{code: code, reason: clip(r.Error())}
}

// checkAccept compares a grant with the order: it must offer every missing block.
func (pl *pull) checkAccept(a *pb.Accept) error {
	h := &pl.order.Handle
	total := h.Layout.Blocks(h.PromptTokens)
	switch {
	case int(a.GetSkip()) > len(pl.order.Have)+pl.verified || int(a.GetSkip())+int(a.GetBlocks()) != total || a.GetComing() > a.GetBlocks():
		return &rejected{"protocol", fmt.Sprintf("accept offers blocks %d+%d, %d of them later, the prompt has %d and %d are here",
			a.GetSkip(), a.GetBlocks(), a.GetComing(), total, len(pl.order.Have)+pl.verified)}
	case a.GetBlocks() > 0 && int(a.GetBlockBytes()) != h.Layout.BlockBytes():
		return &rejected{transfer.RejectLayout, fmt.Sprintf("the owner's blocks have %d bytes, the handle's %d", a.GetBlockBytes(), h.Layout.BlockBytes())}
	case len(a.GetToken()) != tokenBytes || a.GetDataPort() > 65535:
		return &rejected{"protocol", "accept names no byte path"}
	}
	return nil
}

// renew sends KEEPALIVEs while a pull is attached. The returned function ends it.
func (p *Puller) renew(l *link, h *transfer.Handle, epoch uint32) func() {
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(beatEvery(h.Lease))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-l.ctx.Done():
				return
			case <-tick.C:
				_ = l.send(p.keepAlive(h, epoch)) // a broken stream shows in readLoop
			}
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}

// transfer moves the bytes, waits for FIN and gets the owner's confirmation.
func (pl *pull) transfer(l *link, a *pb.Accept) error {
	fin, err := pl.fetch(l, a)
	if err != nil {
		return err
	}
	if err := pl.takeFirst(fin); err != nil {
		return err
	}
	if fin.GetFinished() {
		return errEnded
	}
	if fin.GetEpoch() != a.GetEpoch() || fin.GetBlocks() != a.GetBlocks() {
		return fmt.Errorf("%w: FIN of epoch %d, %d blocks; want %d, %d", errCorrupt,
			fin.GetEpoch(), fin.GetBlocks(), a.GetEpoch(), a.GetBlocks())
	}
	if err := l.send(&pb.PullerMessage{Kind: &pb.PullerMessage_Done{Done: &pb.Done{Epoch: a.GetEpoch()}}}); err != nil {
		return err
	}
	reply, err := await(l, l.reply, pl.p.cfg.IdleTimeout, "answer to DONE")
	if err != nil {
		return err
	}
	if !reply.GetOk() {
		return errStale
	}
	return nil
}

// takeFirst keeps the first tokens that FIN tells.
func (pl *pull) takeFirst(fin *pb.Fin) (err error) {
	if pl.first, err = decodeTokens(fin.GetFirstGenTokens()); err != nil {
		return fmt.Errorf("FIN: %w", err)
	}
	return nil
}

// fetch gets the missing blocks, while the owner computes them if it does, until
// FIN says that there are no more.
func (pl *pull) fetch(l *link, a *pb.Accept) (*pb.Fin, error) {
	r := pl.p.routes(l, a)
	defer func() { r.shut(pl.verified == pl.to.want) }()
	ready, ordered := pl.within(a, int(a.GetBlocks()-a.GetComing())), 0
	var fin *pb.Fin
	for {
		var err error
		switch {
		case pl.verified < ready:
			err = pl.step(l, a, r, ready, &ordered)
		case fin != nil:
			return fin, nil
		default:
			fin, err = l.news(pl.p.cfg.IdleTimeout)
		}
		if err != nil || fin.GetFinished() {
			return l.ending(fin, err)
		}
		if fin != nil {
			ready = pl.to.want
		} else {
			ready = max(ready, pl.within(a, int(l.ready.Load())))
		}
	}
}

// request is a PULL of nothing yet, before the first block that is missing.
func (pl *pull) request(a *pb.Accept) pullRequest {
	return pullRequest{
		token: token(a.GetToken()), first: uint32(len(pl.order.Have) + pl.verified), layerTo: uint16(pl.order.Handle.Layout.Layers),
	}
}

// within turns a count of the blocks of an ACCEPT into one of those that must come.
func (pl *pull) within(a *pb.Accept, n int) int {
	return min(max(int(a.GetSkip())+n-len(pl.order.Have), pl.verified), pl.to.want)
}

// step orders what is ready and takes what comes. A path that breaks is opened
// anew, or the next one, from the first block on that is missing.
func (pl *pull) step(l *link, a *pb.Accept, r *route, ready int, ordered *int) (err error) {
	if len(r.paths) == 0 {
		return errNoPath
	}
	if r.open == nil {
		*ordered = pl.verified
		r.open, err = r.paths[0].open(l.ctx, pl, l, a, r.breaks > 0)
	}
	if err == nil && *ordered < ready {
		err = r.open.read(ready - *ordered)
		*ordered = ready
	}
	n := 0
	if err == nil {
		if n, err = r.open.poll(); n > 0 {
			r.breaks = 0
			pl.advance(r.paths[0].name(), n)
		}
	}
	if err == nil {
		return nil
	}
	path := r.paths[0].name()
	if err = pl.ioError(l, err); !resumable(err) {
		return err
	}
	if r.broke(); len(r.paths) == 0 {
		return err
	}
	pl.p.traffic.resumed(path)
	pl.p.cfg.Logger.Warn("a byte path broke, the pull goes on", "disagg_request_id", int64(pl.order.Handle.ID),
		"path", path, "next", r.paths[0].name(), "blocks", pl.verified, "error", err)
	return nil
}

// resumable tells whether a pull may go on after an error of its byte path: the
// lease lives as far as is known, and there is time.
func resumable(err error) bool {
	var pe *pullError
	return !errors.As(err, &pe) && !errors.Is(err, errLost)
}

// ioError says why the byte path failed: the pull's own end or the control
// stream's comes before what the socket says.
func (pl *pull) ioError(l *link, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		select {
		case <-l.ctx.Done():
		case <-time.After(causeGrace):
		}
	}
	if cause := context.Cause(l.ctx); cause != nil {
		return cause
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return errTimeout(err.Error())
	}
	return err
}

// advance counts more verified blocks and reports them now and then.
func (pl *pull) advance(path string, n int) {
	pl.verified += n
	if pl.path != path {
		pl.path = path
		pl.p.comesBy(pl.order.Handle.Endpoint, path)
	}
	pl.p.traffic.received(path, n*pl.order.Handle.Layout.BlockBytes())
	if time.Since(pl.reported) >= reportEvery {
		pl.report()
	}
}

// report tells the core that the owner is alive and how far the pull is.
func (pl *pull) report() {
	pl.reported = time.Now()
	pl.p.events(transfer.PullEvent{ID: pl.order.Handle.ID, Progress: pl.filled()})
}
