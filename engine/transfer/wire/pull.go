package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
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
	verified int
	first    []transfer.Token // of FIN
	reported time.Time
}

// errEnded is the end of a pull whose request ended with its first token.
var errEnded = &pullError{code: CodeFailed, reason: "the request ended with its first token"}

func (pl *pull) run() error {
	if err := pl.check(); err != nil {
		return err
	}
	l, accept, err := pl.attach()
	if err != nil {
		return err
	}
	defer l.close()
	if accept == nil {
		return errEnded
	}
	pl.report()
	defer pl.p.renew(l, &pl.order.Handle, accept.GetEpoch())()
	return pl.transfer(l, accept)
}

// check compares the order with its handle before the network is touched.
func (pl *pull) check() error {
	h, dst := &pl.order.Handle, pl.order.Dst
	if h.Layout.BlockTokens <= 0 {
		return fmt.Errorf("pull %d: the handle has no layout", h.ID)
	}
	if want := h.Layout.Blocks(h.PromptTokens) - len(pl.order.Have); len(dst) != want {
		return fmt.Errorf("pull %d: %d destination blocks, want %d", h.ID, len(dst), want)
	}
	for _, id := range dst {
		if got, want := pl.p.memory.at(id).size(), h.Layout.BlockBytes(); got != want {
			return &pullError{code: CodeLayout, reason: fmt.Sprintf("own blocks have %d bytes, the handle's %d", got, want)}
		}
	}
	return nil
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
	l.alive = pl.report
	m := &pb.Attach{
		Id: int64(h.ID), Incarnation: h.Incarnation, Rank: uint32(h.Rank), Epoch: h.Epoch,
		Layout: encodeLayout(h.Layout), Have: encodeHashes(pl.order.Have),
		Mac: sign(pl.p.cfg.Key, purposeAttach, h.ID, h.Incarnation),
	}
	if h.GenFirst {
		m.GenFirst, m.PromptTokens, m.Prompt = true, uint32(h.PromptTokens), pl.order.Prompt[:]
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
		l.close()
		return nil, nil, err
	}
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
	case int(a.GetSkip()) > len(pl.order.Have) || int(a.GetSkip())+int(a.GetBlocks()) != total:
		return &rejected{"protocol", fmt.Sprintf("accept offers blocks %d+%d, the prompt has %d and %d are here",
			a.GetSkip(), a.GetBlocks(), total, len(pl.order.Have))}
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

// transfer moves the bytes, checks FIN and gets the owner's confirmation.
func (pl *pull) transfer(l *link, a *pb.Accept) error {
	var sum uint32
	if len(pl.order.Dst) > 0 {
		var err error
		if sum, err = pl.fetch(l, a); err != nil {
			return err
		}
	}
	fin, err := await(l, l.fin, pl.p.cfg.IdleTimeout, "FIN")
	if err != nil {
		return err
	}
	if fin.GetEpoch() != a.GetEpoch() || int(fin.GetBlocks()) != len(pl.order.Dst) || fin.GetCrc() != sum {
		return fmt.Errorf("%w: FIN of epoch %d, %d blocks, checksum %08x; want %d, %d, %08x", errCorrupt,
			fin.GetEpoch(), fin.GetBlocks(), fin.GetCrc(), a.GetEpoch(), len(pl.order.Dst), sum)
	}
	if err := pl.takeFirst(fin); err != nil {
		return err
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

// fetch gets the missing blocks and returns the checksum that FIN must have.
func (pl *pull) fetch(l *link, a *pb.Accept) (uint32, error) {
	req := &pullRequest{
		token: token(a.GetToken()), first: uint32(len(pl.order.Have)), blocks: uint32(len(pl.order.Dst)),
		layerTo: uint16(pl.order.Handle.Layout.Layers),
	}
	if l.local != nil {
		return 0, pl.fetchLocal(l, req)
	}
	_, host, err := splitEndpoint(pl.order.Handle.Endpoint)
	if err != nil {
		return 0, err
	}
	addr := net.JoinHostPort(host, strconv.Itoa(int(a.GetDataPort())))
	sum, reused, err := pl.fetchTCP(l, req, addr, false)
	if err != nil && reused && pl.verified == 0 && l.ctx.Err() == nil {
		// The owner closed the idle connection as we took it.
		sum, _, err = pl.fetchTCP(l, req, addr, true)
	}
	return sum, err
}

func (pl *pull) fetchLocal(l *link, req *pullRequest) error {
	ss := l.local.byToken(req.token)
	if ss == nil {
		return errStale
	}
	err := ss.copyBlocks(l.ctx, req, func(i int, block extent) error {
		if err := pl.p.memory.at(pl.order.Dst[i]).copyFrom(block); err != nil {
			return err
		}
		pl.advance()
		return nil
	})
	if errors.Is(err, errNotServed) {
		err = errStale
	}
	if err != nil {
		return pl.ioError(l, err)
	}
	return nil
}

// fetchTCP reads frames, straight into block memory where that is in one piece. The connection goes back to
// the pool only after a complete pull.
func (pl *pull) fetchTCP(l *link, req *pullRequest, addr string, fresh bool) (sum uint32, reused bool, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, pl.p.cfg.AttachTimeout)
	conn, reused, err := pl.p.data.get(ctx, addr, fresh)
	cancel()
	if err != nil {
		return 0, false, pl.ioError(l, fmt.Errorf("byte path to %s: %w", addr, err))
	}
	r := &deadlineReader{conn: conn, ctx: l.ctx, idle: pl.p.cfg.IdleTimeout}
	wake := context.AfterFunc(l.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	if sum, err = pl.readBlocks(r, req); err != nil || !wake() {
		_ = conn.Close()
		return sum, reused, pl.ioError(l, err)
	}
	pl.p.data.put(addr, conn)
	return sum, reused, nil
}

func (pl *pull) readBlocks(r *deadlineReader, req *pullRequest) (uint32, error) {
	if err := r.write(req.encode()); err != nil {
		return 0, err
	}
	mem, sum := pl.p.memory, uint32(0)
	buf := mem.borrow()
	defer mem.giveBack(buf)
	for i := range req.blocks {
		want := frameHeader{seq: i, block: req.first + i, layerFrom: req.layerFrom, layerTo: req.layerTo}
		dst := mem.at(pl.order.Dst[i])
		crc, err := readFrame(r, want, dst.place(buf))
		if err != nil {
			return 0, err
		}
		if !dst.inOnePiece() {
			mem.split.Write(dst.id, *buf)
		}
		sum = addFrameSum(sum, crc)
		pl.advance()
	}
	return sum, nil
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

// advance counts one more verified block and reports it now and then.
func (pl *pull) advance() {
	pl.verified++
	pl.p.received.Add(uint64(pl.order.Handle.Layout.BlockBytes()))
	if time.Since(pl.reported) >= reportEvery {
		pl.report()
	}
}

// report tells the core that the owner is alive and how far the pull is.
func (pl *pull) report() {
	pl.reported = time.Now()
	pl.p.events(transfer.PullEvent{ID: pl.order.Handle.ID, Progress: pl.verified})
}

// deadlineReader reads from a connection that must deliver something within
// idle, piece by piece, until ctx ends.
type deadlineReader struct {
	conn net.Conn
	ctx  context.Context
	idle time.Duration
}

func (r *deadlineReader) Read(b []byte) (int, error) {
	if err := r.arm(); err != nil {
		return 0, err
	}
	return r.conn.Read(b[:min(len(b), readChunk)])
}

func (r *deadlineReader) write(b []byte) error {
	if err := r.arm(); err != nil {
		return err
	}
	_, err := r.conn.Write(b)
	return err
}

// arm sets the deadline. If ctx ends in between, the deadline that its AfterFunc
// set may just have been replaced, so ctx is looked at afterwards.
func (r *deadlineReader) arm() error {
	_ = r.conn.SetDeadline(time.Now().Add(r.idle))
	return context.Cause(r.ctx)
}
