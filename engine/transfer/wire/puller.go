package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// Codes of a failed PullEvent: the engine's error codes, and a REJECT's reasons.
const (
	CodeCancelled = "cancelled"
	CodeTimeout   = "transfer_timeout"
	CodeFailed    = "transfer_failed"
	CodeLayout    = transfer.RejectLayout
	CodeUnknown   = transfer.RejectUnknown
	CodeStale     = transfer.RejectStale // the lease ended, or went to another puller
	CodePrompt    = transfer.RejectPrompt
)

// pullError is why a pull failed, with the code it is reported under.
type pullError struct {
	code   string
	reason string
}

func (e *pullError) Error() string { return e.reason }

func errTimeout(reason string) error { return &pullError{code: CodeTimeout, reason: reason} }

var (
	errStopped = &pullError{code: CodeCancelled, reason: "stopped"}
	errClosed  = &pullError{code: CodeCancelled, reason: "the worker is shutting down"}
	errStale   = &pullError{code: CodeStale, reason: "stale: the lease ended before the pull was confirmed"}
)

// Puller fetches blocks for one rank. Its methods may be called from any
// goroutine and never wait for a peer, except Close.
type Puller struct {
	cfg      Config
	memory   *memory
	events   func(transfer.PullEvent)
	controls controls
	paths    []pullerPath // the best one first
	traffic  traffic

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	pulls map[transfer.ID]context.CancelCauseFunc
	beats map[transfer.ID]*beat
	known map[string]string // byte path by endpoint
}

// NewPuller returns a puller that writes blocks of memory and reports to events,
// which is called from many goroutines and must not block. It needs no server.
func NewPuller(cfg Config, memory transfer.Memory, events func(transfer.PullEvent)) *Puller {
	cfg.setDefaults()
	p := &Puller{
		cfg: cfg, memory: newMemory(memory), events: events,
		pulls: map[transfer.ID]context.CancelCauseFunc{},
		beats: map[transfer.ID]*beat{},
		known: map[string]string{},
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	dial := func(ctx context.Context, addr string) (net.Conn, error) { return cfg.Dial(ctx, addr) }
	p.controls = controls{dial: dial, conns: map[string]*control{}}
	p.paths = []pullerPath{localPath{}}
	if shared := newSharedReader(&p.cfg); shared != nil {
		p.paths = append(p.paths, shared)
	}
	p.paths = append(p.paths, &tcpPath{pool: dataPool{dial: dial, idle: map[string][]*idleConn{}}})
	return p
}

// Start begins a pull; a KeepAlive of the same transfer ends. Every Start is
// answered by exactly one PullEvent with Done set.
func (p *Puller) Start(pull transfer.Pull) {
	id := pull.Handle.ID
	ctx, cancel := context.WithCancelCause(p.ctx)
	p.mu.Lock()
	beat, running, closed := p.beats[id], p.pulls[id] != nil, p.ctx.Err() != nil
	delete(p.beats, id)
	if !running && !closed {
		p.pulls[id] = cancel
		p.wg.Add(1)
	}
	p.mu.Unlock()
	if beat != nil {
		beat.cancel()
	}
	switch {
	case closed:
		cancel(nil)
		p.events(failed(id, 0, errClosed))
	case running:
		cancel(nil)
		p.events(failed(id, 0, fmt.Errorf("transfer %d is being pulled already", id)))
	default:
		go p.run(ctx, cancel, pull)
	}
}

// Stop ends a pull, or a KeepAlive, early. The pull still reports its end, and
// its blocks may be written until it does. Unknown ids are ignored.
func (p *Puller) Stop(id transfer.ID) {
	p.mu.Lock()
	pull, beat := p.pulls[id], p.beats[id]
	delete(p.beats, id)
	p.mu.Unlock()
	if pull != nil {
		pull(errStopped)
	}
	if beat != nil {
		beat.cancel()
	}
}

// Close stops every pull, waits for their ends and closes all connections.
func (p *Puller) Close() {
	p.mu.Lock() // no wg.Add after this
	p.cancel(errClosed)
	p.mu.Unlock()
	p.wg.Wait()
	p.controls.close()
	for _, path := range p.paths {
		path.close()
	}
}

// run is the life of one pull.
func (p *Puller) run(ctx context.Context, cancel context.CancelCauseFunc, order transfer.Pull) {
	defer p.wg.Done()
	pl := &pull{p: p, ctx: ctx, order: order}
	err := pl.run()
	if err != nil && errors.Is(context.Cause(ctx), errStopped) && !pl.told {
		h := order.Handle
		h.Epoch = max(h.Epoch, pl.epoch)
		p.Release(h)
	}
	level := slog.LevelWarn // the request may still succeed by a recompute, which hides a broken network
	if ctx.Err() != nil {
		level = slog.LevelDebug // stopped from here
	}
	cancel(nil)
	id := order.Handle.ID
	p.mu.Lock()
	delete(p.pulls, id)
	p.mu.Unlock()
	if errors.Is(err, errEnded) {
		p.events(transfer.PullEvent{ID: id, Progress: pl.filled(), Done: true, Ended: true, First: pl.first, Code: errEnded.code, Reason: errEnded.reason})
		return
	}
	if err != nil {
		p.cfg.Logger.Log(context.WithoutCancel(ctx), level, "fetching KV blocks failed", "disagg_request_id", int64(id),
			"endpoint", order.Handle.Endpoint, "blocks", pl.verified, "error", err)
		e := failed(id, pl.filled(), err)
		e.Epoch = pl.epoch
		p.events(e)
		return
	}
	p.traffic.pulled(pl.path)
	p.cfg.Logger.Debug("KV blocks fetched", "disagg_request_id", int64(id), "endpoint", order.Handle.Endpoint, "path", pl.path, "blocks", pl.verified)
	p.events(transfer.PullEvent{ID: id, Progress: pl.filled(), Done: true, OK: true, First: pl.first})
}

func failed(id transfer.ID, verified int, err error) transfer.PullEvent {
	code := CodeFailed
	var pe *pullError
	if errors.As(err, &pe) {
		code = pe.code
	}
	return transfer.PullEvent{ID: id, Progress: verified, Done: true, Code: code, Reason: err.Error()}
}

func (p *Puller) keepAlive(h *transfer.Handle, epoch uint32) *pb.PullerMessage {
	return &pb.PullerMessage{Kind: &pb.PullerMessage_KeepAlive{KeepAlive: &pb.KeepAlive{
		Id: int64(h.ID), Incarnation: h.Incarnation, Rank: uint32(h.Rank), Epoch: epoch,
		Mac: sign(p.cfg.Key, purposeKeepAlive, h.ID, h.Incarnation),
	}}}
}

// beatEvery is a third of a lease, but never a busy loop.
func beatEvery(lease time.Duration) time.Duration { return max(lease/3, 10*time.Millisecond) }
