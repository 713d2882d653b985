package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// Device runs batches. It is called from the engine goroutine only.
type Device interface {
	// Run computes a batch and returns the logits of its LogitRows, [rows*vocab],
	// valid until the next Run.
	Run(b *tensor.Batch) ([]float32, error)
	// CopyBlockPrefix copies the first tokens positions of one block to another.
	CopyBlockPrefix(from, to int32, tokens int) error
	// Progress is a count that moves while Run makes headway. It is read from
	// other goroutines.
	Progress() uint64
}

// Transport moves blocks between workers. Its methods return at once; what it
// has to say comes back through Engine.TransferEvent.
type Transport interface {
	Start(transfer.Pull)
	Stop(transfer.ID)
	KeepAlive(h transfer.Handle, limit time.Duration)
	Accept(transfer.Accept)
	Reject(transfer.Reject)
	DoneReply(transfer.DoneReply)
	Revoke(transfer.ID)
	EncodeHandle(*transfer.Handle) []byte
	DecodeHandle([]byte) (*transfer.Handle, error)
}

// Config is what an engine needs beyond its device.
type Config struct {
	Core   executor.Config
	Info   Info
	Logger *slog.Logger
}

// Info describes the engine to its peers; it never changes.
type Info struct {
	Role             executor.Role
	Model            string // served name
	Fingerprint      string
	Incarnation      string
	Namespace        string
	TransferEndpoint string // tcp://host:port, empty without transfer
	Layout           transfer.Layout
	Vocab            int
	MaxBatch         int
	MaxNumTokens     int
	MaxSeqLen        int
	Backend          string // for people: device, instruction set, threads

	Ranks         int    // attention-DP ranks that requests are placed on; 1 without attention DP
	TensorRanks   int    // ranks that share each request; 1 with attention DP
	Conversations bool   // placement keeps a conversation on its rank
	Router        string // effective router, empty with one rank
}

// Route says where a request was placed and why; see adprouter.Reason.
type Route struct {
	Rank   int
	Reason string
}

// Engine is the driver of one rank.
type Engine struct {
	cfg       Config
	core      *executor.Core
	device    Device
	transport Transport
	log       *slog.Logger
	start     time.Time

	in     *inbox
	nextID atomic.Uint64
	done   chan struct{}
	drain  chan struct{}
	once   sync.Once

	// owned by the engine goroutine
	mail    mail
	streams map[request.ID]*Stream
	samples sampling
	batch   tensor.Batch
	iter    uint64

	status status
}

// ErrStopped is returned to callers of an engine that has ended.
var ErrStopped = errors.New("the engine has stopped")

// New makes an engine. transport may be nil for a worker without transfer.
func New(cfg Config, device Device, transport Transport) (*Engine, error) {
	core, err := executor.New(cfg.Core)
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{
		cfg: cfg, core: core, device: device, transport: transport, log: cfg.Logger, start: time.Now(),
		in: newInbox(), done: make(chan struct{}), drain: make(chan struct{}),
		streams: make(map[request.ID]*Stream),
	}
	e.samples.init(cfg.Info.Vocab)
	e.status.set(core.Stats(), e.Now())
	return e, nil
}

// Now returns the engine clock, to make deadlines with.
func (e *Engine) Now() time.Duration { return time.Since(e.start) }

// NewID returns a request id that this engine has not used.
func (e *Engine) NewID() request.ID { return request.ID(e.nextID.Add(1)) }

// Info describes the engine.
func (e *Engine) Info() Info { return e.cfg.Info }

// Submit hands a request to the engine and returns once it has a place in the
// queue. opaque is the encoded handle of a GenerationOnly request. The error is
// a *request.Error when the request was refused, else ctx's or ErrStopped.
func (e *Engine) Submit(ctx context.Context, r *request.Request, opaque []byte) (*Stream, error) {
	sub := &submission{ctx: ctx, req: r, stream: newStream(e, r.ID), done: make(chan struct{})}
	if r.Kind != request.Full && e.transport == nil {
		return nil, request.Invalid("disaggregated_params", "this worker has no cache_transceiver_config, so it takes whole requests only")
	}
	if r.Kind == request.GenerationOnly {
		h, err := e.transport.DecodeHandle(opaque)
		if err != nil {
			return nil, request.Invalid("disaggregated_params.encoded_opaque_state", "%v", err)
		}
		sub.handle = h
	}
	if !e.in.put(func(in *inbox) { in.new = append(in.new, sub) }) {
		return nil, ErrStopped
	}
	select {
	case <-sub.done:
	case <-ctx.Done():
		e.Cancel(r.ID)
		return nil, context.Cause(ctx)
	case <-e.done:
		return nil, ErrStopped
	}
	if sub.refused != nil {
		return nil, sub.refused
	}
	return sub.stream, nil
}

// Cancel ends a request if it is alive; it never waits.
func (e *Engine) Cancel(id request.ID) {
	e.in.put(func(in *inbox) { in.cancels = append(in.cancels, id) })
}

// Abort ends whatever goes on under a disagg_request_id and says what it found.
func (e *Engine) Abort(ctx context.Context, id int64) (executor.AbortState, error) {
	a := abort{id: transfer.ID(id), reply: make(chan executor.AbortState, 1)}
	if !e.in.put(func(in *inbox) { in.aborts = append(in.aborts, a) }) {
		return "", ErrStopped
	}
	select {
	case s := <-a.reply:
		return s, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-e.done:
		return "", ErrStopped
	}
}

// TransferEvent takes a message of the transport: Attach, Done, Detach,
// KeepAlive or PullEvent. It never waits.
func (e *Engine) TransferEvent(ev any) {
	e.in.put(func(in *inbox) { in.events = append(in.events, ev) })
}

// Shutdown stops admission, lets running requests and hand-overs finish until
// ctx ends, cancels the rest and stops the engine. It waits for Run to return.
func (e *Engine) Shutdown(ctx context.Context) {
	e.once.Do(func() { close(e.drain) })
	select {
	case <-e.done:
		return
	case <-ctx.Done():
	}
	for id := range e.status.alive() {
		e.Cancel(id)
	}
	<-e.done
}

// Run drives the core until ctx ends or Shutdown has drained it. It returns an
// error only when the engine died: a panic or a fatal core error.
func (e *Engine) Run(ctx context.Context) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("engine goroutine panicked: %v", p)
			e.log.Error("the engine died", "iter", e.iter, "panic", p, "stack", string(debug.Stack()))
		}
		e.bury()
	}()
	for ctx.Err() == nil {
		if e.finished() {
			return nil
		}
		if worked := e.iterate(); !worked {
			e.wait(ctx)
		}
		if err := e.core.Fatal(); err != nil {
			return fmt.Errorf("engine core: %w", err)
		}
	}
	return nil
}

// iterate runs one iteration of the loop and reports whether a batch ran.
func (e *Engine) iterate() bool {
	e.read()
	b := e.core.Plan(e.Now())
	e.carry()
	if b != nil {
		res := e.step(b)
		e.in.takeCancels(&e.mail)
		e.cancel() // engine-core CA-1: before the results are applied
		e.core.Apply(e.Now(), res)
		e.carry()
	}
	e.iter++
	e.status.set(e.core.Stats(), e.Now())
	return b != nil
}

// read hands everything in the inbox to the core: cancels first.
func (e *Engine) read() {
	e.in.take(&e.mail)
	e.cancel()
	now := e.Now()
	for _, ev := range e.mail.events {
		switch m := ev.(type) {
		case transfer.Attach:
			e.core.Attach(now, m)
		case transfer.Done:
			e.core.Done(now, m)
		case transfer.Detach:
			e.core.Detach(now, m)
		case transfer.KeepAlive:
			e.core.KeepAlive(now, m)
		case transfer.PullEvent:
			e.core.PullEvent(now, m)
		default:
			panic(fmt.Sprintf("runner: unknown transfer event %T", ev))
		}
		e.carry()
	}
	for _, s := range e.mail.new {
		e.streams[s.req.ID] = s.stream
		e.status.add(s.req.ID)
		e.core.Submit(now, s.req, s.handle)
		if s.ctx.Err() != nil { // its cancel came with it and found nothing yet
			e.core.Cancel(now, s.req.ID)
		}
		e.carry()
		s.refused = s.stream.refused()
		close(s.done)
	}
	clear(e.mail.events)
	clear(e.mail.new)
}

func (e *Engine) cancel() {
	now := e.Now()
	for _, id := range e.mail.cancels {
		e.core.Cancel(now, id)
		e.carry()
	}
	for _, a := range e.mail.aborts {
		a.reply <- e.core.Abort(now, a.id)
		e.carry()
	}
}

// carry does what the core asked for since the last time.
func (e *Engine) carry() {
	fx := e.core.Effects()
	for i := range fx.Outputs {
		e.deliver(&fx.Outputs[i])
	}
	for _, id := range fx.Retired {
		e.samples.drop(id)
		e.status.remove(id)
		delete(e.streams, id)
	}
	if e.transport == nil {
		return
	}
	for _, id := range fx.StopPulls {
		e.transport.Stop(id)
	}
	for _, h := range fx.KeepAlives {
		e.transport.KeepAlive(h, 0)
	}
	for _, p := range fx.Pulls {
		e.transport.Start(p)
	}
	for _, id := range fx.Revoked {
		e.transport.Revoke(id)
	}
	for _, a := range fx.Accepts {
		e.transport.Accept(a)
	}
	for _, r := range fx.Rejects {
		e.transport.Reject(r)
	}
	for _, d := range fx.Dones {
		e.transport.DoneReply(d)
	}
}

func (e *Engine) deliver(o *executor.Output) {
	s, ok := e.streams[o.Request.ID]
	if !ok {
		return
	}
	out := Output{Output: *o}
	if o.Handle != nil {
		out.Opaque = e.transport.EncodeHandle(o.Handle)
	}
	s.push(out)
}

// idleTick bounds an idle wait, so that liveness shows even without work.
const idleTick = time.Second

// wait blocks until there is mail, a deadline passes or the engine drains.
func (e *Engine) wait(ctx context.Context) {
	d := idleTick
	if at, ok := e.core.NextDeadline(); ok {
		d = min(d, max(0, at-e.Now()))
	}
	t := time.NewTimer(d)
	defer t.Stop()
	drain := e.drain
	if e.status.draining() {
		drain = nil
	}
	select {
	case <-e.in.wake:
	case <-t.C:
	case <-ctx.Done():
	case <-drain:
		e.status.setDraining()
		e.core.Drain(e.Now())
	}
}

// finished reports whether a draining engine has nothing left to do.
func (e *Engine) finished() bool {
	select {
	case <-e.drain:
	default:
		return false
	}
	if !e.status.draining() {
		e.status.setDraining()
		e.core.Drain(e.Now())
		e.carry()
	}
	s := e.core.Stats()
	return s.Running+s.Waiting+s.Receiving+s.HandoffsOpen == 0 && len(e.streams) == 0
}

// bury ends every request that is still alive after the loop has ended.
func (e *Engine) bury() {
	left := e.in.close()
	for _, s := range left.new {
		e.streams[s.req.ID] = s.stream
		close(s.done)
	}
	dead := request.Errorf(request.EngineDead, "the engine stopped while the request was running; retry it")
	for id, s := range e.streams {
		s.push(Output{Output: executor.Output{Request: &request.Request{ID: id}, Finish: request.FinishError, Err: dead}})
	}
	e.status.setDead()
	close(e.done)
}
