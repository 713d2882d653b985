package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// Device runs batches. It is called by one goroutine at a time.
type Device interface {
	// Check reports what is wrong with a batch, without running it. In a group it
	// is asked before the peers are, who cannot go back.
	Check(b *tensor.Batch) error
	// Run computes a batch and returns the logits of its LogitRows, [rows*vocab],
	// valid until the next Run.
	Run(b *tensor.Batch) ([]float32, error)
	// CopyBlockPrefix copies the first tokens positions of one block to another.
	CopyBlockPrefix(from, to int32, tokens int) error
	// Progress is a count that moves while Run makes headway. It is read from
	// other goroutines.
	Progress() uint64
}

// Picker is a Device that can choose tokens, so that logits stay on it.
type Picker interface {
	Device
	// RunPick is Run for a batch whose logit row i is chosen from as picks[i] says.
	// logits has the rows of those that are the host's. Both are valid until the
	// next step.
	RunPick(b *tensor.Batch, picks []tensor.Pick) (picked []tensor.Picked, logits []float32, err error)
}

// Transport moves blocks between workers. Its methods return at once; what it
// has to say comes back through Engine.TransferEvent.
type Transport interface {
	Start(transfer.Pull)
	Stop(transfer.ID)
	KeepAlive(h transfer.Handle, limit time.Duration)
	Release(transfer.Handle)
	Accept(transfer.Accept)
	Progress(transfer.Progress)
	End(transfer.End)
	Reject(transfer.Reject)
	DoneReply(transfer.DoneReply)
	Revoke(transfer.ID)
	EncodeHandle(*transfer.Handle) []byte
	DecodeHandle([]byte) (*transfer.Handle, error)
}

// Config is what an engine needs beyond its devices.
type Config struct {
	Core   executor.Config
	Info   Info
	Logger *slog.Logger
	// Text makes a request's Text from Shown. Nil: requests bring their own.
	Text func(*request.Request) request.Text
	// Idle bounds a rest without work, after which liveness shows; 0 = a second.
	Idle time.Duration
	// Overlap gives the device of an engine with one rank a step while the results
	// of the one before are looked at. Groups of ranks run their steps in turn.
	Overlap bool
	Tiers   TierConfig
	// Stall is how long work may see no headway before that is logged and the engine
	// not ready, 0 = 10 s; Hang after how long Run gives up, 0 = never. Ranks of a
	// group that are missed end it by the time-out of their collectives instead.
	Stall, Hang time.Duration
}

// Info describes the engine to its peers; it never changes.
type Info struct {
	Role             executor.Role
	Model            string // served name
	Fingerprint      string
	Incarnation      string
	Namespace        string
	TransferEndpoint string // tcp://host:port, empty without transfer
	// GenFirst is the encoded handle for generation-first requests, nil if their
	// legs cannot find each other here.
	GenFirst     []byte
	Layout       transfer.Layout
	Vocab        int
	MaxBatch     int
	MaxNumTokens int
	MaxSeqLen    int
	Backend      string // for people: device, instruction set, threads

	Ranks         int    // attention-DP ranks that requests are placed on; 1 without attention DP
	TensorRanks   int    // ranks that share each request; 1 with attention DP
	Conversations bool   // placement keeps a conversation on its rank
	Router        string // effective router, empty with one rank
	Leader        bool   // this process hosts rank 0 and so takes requests
}

// Route says where a request was placed and why; see adprouter.Reason.
type Route struct {
	Rank   int
	Reason string
}

// Engine serves the requests of an instance: alone, or with the ranks of a group.
type Engine struct {
	cfg   Config
	log   *slog.Logger
	start time.Time

	in     *inbox
	nextID atomic.Uint64
	done   chan struct{}
	drain  chan struct{}
	once   sync.Once
	status status
	stuck  atomic.Bool // a rank never came back: what it uses must stay

	ranks  []*rank
	group  *group // of attention-data-parallel ranks
	tensor *tensorGroup
	mail   mail // of the goroutine that reads the inbox
}

// ErrStopped is returned to callers of an engine that has ended.
var ErrStopped = errors.New("the engine has stopped")

// New makes an engine of one rank. transport may be nil for a worker without
// transfer.
func New(cfg Config, device Device, transport Transport) (*Engine, error) {
	core, err := executor.New(cfg.Core)
	if err != nil {
		return nil, err
	}
	e := newEngine(cfg)
	r := newRank(0, core, device, transport, cfg.Info.Vocab, e.log)
	r.wake = e.in.wake
	if err := e.add(r, cfg.Tiers.Memory); err != nil {
		return nil, err
	}
	e.status.set(0, RankStats{Stats: core.Stats()}, e.Now())
	return e, nil
}

func newEngine(cfg Config) *Engine {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Idle <= 0 {
		cfg.Idle = time.Second
	}
	if cfg.Stall <= 0 {
		cfg.Stall = defaultStall
	}
	e := &Engine{
		cfg: cfg, log: cfg.Logger, start: time.Now(),
		in: newInbox(), done: make(chan struct{}), drain: make(chan struct{}),
	}
	e.status.init(max(cfg.Info.Ranks, 1))
	return e
}

// add takes a rank in, whose device has memory unless that is nil.
func (e *Engine) add(r *rank, memory transfer.Memory) (err error) {
	r.tiers, err = openTiers(&e.cfg, r, r.device, memory, func(done []executor.MoveDone) { e.TransferEvent(r.id, done) })
	if err != nil {
		return err
	}
	r.retired = e.status.remove
	r.clock = e.Now
	e.ranks = append(e.ranks, r)
	e.status.ranks[r.id].step = r.core.Recorder().Running
	return nil
}

// Now returns the engine clock, to make deadlines with.
func (e *Engine) Now() time.Duration { return time.Since(e.start) }

// NewID returns a request id that this engine has not used.
func (e *Engine) NewID() request.ID { return request.ID(e.nextID.Add(1)) }

// Info describes the engine.
func (e *Engine) Info() Info { return e.cfg.Info }

// Submit hands a request to the engine and returns once it has a place: in the
// queue of the only rank, or on the rank that it was given. opaque is the encoded
// handle of a GenerationOnly request. The error is a *request.Error when the
// request was refused, else ctx's or ErrStopped.
func (e *Engine) Submit(ctx context.Context, r *request.Request, opaque []byte) (*Stream, error) {
	sub := &submission{ctx: ctx, req: r, stream: newStream(e, r), opaque: opaque, done: make(chan struct{})}
	if !e.cfg.Info.Leader && (e.group != nil || e.tensor != nil) {
		return nil, fmt.Errorf("runner: requests go to the process of rank 0: %w", ErrStopped)
	}
	if r.Guide != nil && e.group != nil && e.group.spans() {
		return nil, errGuideFar
	}
	if r.Score != nil && e.group != nil {
		return nil, errScoresInGroup
	}
	transport := e.ranks[0].transport
	if r.Kind != request.Full && transport == nil {
		return nil, request.Invalid("disaggregated_params", "this worker has no cache_transceiver_config, so it takes whole requests only")
	}
	if r.Kind == request.GenerationOnly {
		h, err := handleOf(transport, r, opaque)
		if err != nil {
			return nil, request.Invalid("disaggregated_params.encoded_opaque_state", "%v", err)
		}
		sub.handle = h
	} else if r.GenFirst && e.group != nil && e.group.spans() {
		return nil, request.Invalid("disaggregated_params.schedule_style", "the ranks of this worker are in several processes: it takes generation_first requests as a generation worker only")
	}
	if r.Text == nil {
		e.setTexts(r)
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

// handleOf decodes the handle of a GenerationOnly request. One for generation-first
// requests is the same for all of them; the transfer's id is the request's.
func handleOf(t interface {
	DecodeHandle([]byte) (*transfer.Handle, error)
}, r *request.Request, opaque []byte,
) (*transfer.Handle, error) {
	h, err := t.DecodeHandle(opaque)
	if err == nil && h.GenFirst {
		h.ID = transfer.ID(r.TransferID)
	}
	return h, err
}

// setTexts makes the texts of a request's choices, if there is a rule for them.
func (e *Engine) setTexts(r *request.Request) {
	if r.Shown == nil || e.cfg.Text == nil {
		return
	}
	r.Text, r.ForkTexts = e.cfg.Text(r), nil
	for range r.Answers() - 1 {
		r.ForkTexts = append(r.ForkTexts, e.cfg.Text(r))
	}
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

// TransferEvent takes a message of the transport of a rank of this process:
// Attach, Done, Detach, KeepAlive or PullEvent. It never waits.
func (e *Engine) TransferEvent(rank int, ev any) {
	for _, r := range e.ranks {
		if r.id != rank || !r.events.put(ev) {
			continue
		}
		nudge(r.wake)
		e.rouse()
	}
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

// Run drives the ranks until ctx ends or Shutdown has drained them. It returns
// an error only when the engine died: a panic, a fatal core error or, in a group,
// a peer that was lost.
//
// An engine of one rank that hangs is left behind: its goroutine, and the device
// that it waits for, must not be touched any more, so the process has to end.
func (e *Engine) Run(ctx context.Context) (err error) {
	defer func() {
		if err != nil && !e.stuck.Load() {
			e.dump(err.Error(), false)
		}
		e.bury(err)
	}()
	watch, stop := context.WithCancel(ctx)
	hung, ended, gone := make(chan error, 1), make(chan error, 1), make(chan struct{})
	go func() { defer close(gone); e.watch(watch, hung) }()
	defer func() { stop(); <-gone }()
	go func() { ended <- e.loops(ctx) }()
	for {
		select {
		case err = <-ended:
			return err
		case err = <-hung:
			e.dump(err.Error(), true)
			if e.group == nil && e.tensor == nil {
				e.stuck.Store(true)
				return err
			}
		}
	}
}

// loops runs the ranks of this process to their end.
func (e *Engine) loops(ctx context.Context) error {
	switch {
	case e.group != nil:
		return e.group.run(ctx)
	case e.tensor != nil:
		return e.runTensor(ctx)
	}
	return e.runAlone(ctx)
}

// bury ends every request that is still alive after the loops have ended.
func (e *Engine) bury(err error) {
	for _, s := range e.in.close().new {
		s.refused = errDead()
		close(s.done)
	}
	if e.group != nil {
		e.group.bury()
	}
	for _, r := range e.ranks {
		r.bury()
		if !e.stuck.Load() { // else its device, and what copies to it, hang with it
			r.tiers.close(r.core, err == nil)
		}
	}
	why := "the engine has stopped"
	if err != nil {
		why = err.Error()
	}
	e.status.setDead(why)
	close(e.done)
}

// died turns a panic of a rank's goroutine into an error.
func (r *rank) died(p any, stack []byte) error {
	r.log.Error("a rank died", "rank", r.id, "panic", p, "stack", string(stack))
	return fmt.Errorf("rank %d: its goroutine panicked: %v", r.id, p)
}
