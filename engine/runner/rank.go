package runner

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// sink takes the outputs of one request.
type sink interface {
	push(Output)
	fail(*request.Error) // the last of those that had none
}

// rank drives one core and its device. Its goroutine owns all of it but events.
type rank struct {
	id        int
	core      *executor.Core
	device    Device
	transport Transport
	log       *slog.Logger
	effects   func() *executor.Effects // of core, or of the lockstep around it
	clock     func() time.Duration     // of the engine

	samples sampling
	batch   tensor.Batch
	ahead   *ahead     // nil = steps do not overlap
	gate    sync.Mutex // of sinks: a loop that hangs is buried, and may come back
	sinks   map[request.ID]sink
	buried  bool
	retired func(request.ID)

	events events
	taken  []any  // events in work
	tiers  *tiers // nil = none

	// What comes in while the device works: wake has a token, and attend gives it to
	// the core.
	wake   chan struct{}
	attend func()
	side   *side // nil = has not been needed

	look   look
	times  timings
	rested bool          // the loop has waited for work since the last step
	ended  time.Duration // when the device ended its last step
	bugs   uint64        // that the core has told of
	dumped time.Duration
}

func newRank(id int, core *executor.Core, device Device, transport Transport, vocab int, log *slog.Logger) *rank {
	r := &rank{
		id: id, core: core, device: device, transport: transport, log: log, effects: core.Effects,
		sinks: make(map[request.ID]sink),
	}
	r.samples.init(vocab)
	r.wake, r.attend = make(chan struct{}, 1), func() {}
	return r
}

// events are the transfer messages of one rank and the questions for its index, in order of arrival. Senders
// never wait.
type events struct {
	mu     sync.Mutex
	list   []any
	closed bool
}

func (q *events) put(ev any) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.list = append(q.list, ev)
	}
	return !q.closed
}

func (q *events) take(into []any) []any {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.list
	q.list = into[:0]
	return out
}

func (q *events) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list) == 0
}

func (q *events) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// hear gives the core what the transport has to say.
func (r *rank) hear(now time.Duration) {
	r.taken = r.events.take(r.taken)
	for _, ev := range r.taken {
		switch m := ev.(type) {
		case transfer.Attach:
			r.core.Attach(now, m)
		case transfer.Done:
			r.core.Done(now, m)
		case transfer.Detach:
			r.core.Detach(now, m)
		case transfer.Release:
			r.core.Release(now, m)
		case transfer.KeepAlive:
			r.core.KeepAlive(now, m)
		case transfer.PullEvent:
			r.core.PullEvent(now, m)
		case []executor.MoveDone:
			for _, d := range m {
				r.core.Moved(now, d)
			}
		case snapshotAsk:
			m.reply <- r.core.CacheSnapshot()
		case resetAsk:
			r.core.ResetCache()
			close(m.done)
		default:
			panic(fmt.Sprintf("runner: unknown transfer event %T", ev))
		}
		r.carry()
	}
	clear(r.taken)
}

// carry does what the core asked for since the last time.
func (r *rank) carry() {
	fx := r.effects()
	r.tiers.carry(fx.Moves)
	for i := range fx.Outputs {
		r.deliver(&fx.Outputs[i])
	}
	for _, id := range fx.Retired {
		r.samples.drop(id)
		r.retired(id)
		r.gate.Lock()
		delete(r.sinks, id)
		r.gate.Unlock()
	}
	if r.transport == nil {
		return
	}
	for _, id := range fx.StopPulls {
		r.transport.Stop(id)
	}
	for _, h := range fx.KeepAlives {
		r.transport.KeepAlive(h, 0)
	}
	for _, h := range fx.Releases {
		r.transport.Release(h)
	}
	for _, id := range fx.Revoked {
		r.transport.Revoke(id)
	}
	for _, p := range fx.Progress {
		r.transport.Progress(p)
	}
	for _, x := range fx.Ends {
		r.transport.End(x)
	}
	for _, a := range fx.Accepts {
		r.transport.Accept(a)
	}
	for _, m := range fx.Rejects {
		r.transport.Reject(m)
	}
	for _, d := range fx.Dones {
		r.transport.DoneReply(d)
	}
	for _, p := range fx.Pulls { // last: they may write blocks that a peer had until now
		r.transport.Start(p)
	}
}

func (r *rank) addSink(id request.ID, s sink) {
	r.gate.Lock()
	defer r.gate.Unlock()
	if r.buried { // meanwhile: nobody would end it
		s.fail(errDead())
		return
	}
	r.sinks[id] = s
}

// answered reports whether nobody waits for an output.
func (r *rank) answered() bool {
	r.gate.Lock()
	defer r.gate.Unlock()
	return len(r.sinks) == 0
}

func (r *rank) deliver(o *executor.Output) {
	r.gate.Lock()
	s, ok := r.sinks[o.Request.ID]
	r.gate.Unlock()
	if !ok {
		return
	}
	out := Output{Output: *o}
	if o.Handle != nil {
		out.Opaque = r.transport.EncodeHandle(o.Handle)
	}
	s.push(out)
}

// fill makes the device's batch out of the core's, nil = no row.
func (r *rank) fill(b *executor.Batch) *tensor.Batch {
	r.batch.Reset()
	if b != nil {
		for i := range b.Rows {
			row := &b.Rows[i]
			r.batch.Add(row.Tokens, row.Pos, row.Pages, row.Sample)
		}
	}
	return &r.batch
}

// forward runs the filled batch on the device, and samples the rows of b, which
// may be nil. ran is false if the pass itself failed. It attends to peers meanwhile.
func (r *rank) forward(b *executor.Batch) (res executor.Result, ran bool) {
	r.during(func() { res, ran = r.forwardNow(b) })
	return res, ran
}

// forwardNow is forward on the goroutine that the device works on. An error of the
// copies does not keep the rank from the pass, which its peers have begun.
func (r *rank) forwardNow(b *executor.Batch) (res executor.Result, ran bool) {
	var copied error
	if b != nil {
		copied = r.copies(b)
	}
	var rows []executor.Row
	if b != nil {
		rows = b.Rows
	}
	sampled, err := r.compute(rows, copied == nil)
	ran = err == nil
	if err = errors.Join(copied, err); err != nil {
		r.log.Error("a step failed", "rank", r.id, "rows", r.batch.Rows(), "error", err)
		return executor.Result{Err: fmt.Errorf("a step with %d rows: %w", r.batch.Rows(), err)}, ran
	}
	return executor.Result{Sampled: sampled}, ran
}

// compute runs the filled batch, and if wanted picks the tokens of its rows: on the
// device where that can.
func (r *rank) compute(rows []executor.Row, wanted bool) ([]executor.Sampled, error) {
	if scored(rows) {
		if !wanted {
			return nil, nil
		}
		return r.samples.inPieces(rows, r.core.Config().MaxBatch, &r.batch, r.device.Run)
	}
	if picker, ok := r.device.(Picker); ok {
		if picks, some := r.samples.picks(rows); some {
			ready := r.samples.prepare(rows)
			picked, logits, err := picker.RunPick(&r.batch, picks)
			ready()
			if err != nil || !wanted {
				return nil, err
			}
			return r.samples.take(rows, picked, logits), nil
		}
	}
	ready := r.samples.prepare(rows)
	logits, err := r.device.Run(&r.batch)
	ready()
	if err != nil || !wanted {
		return nil, err
	}
	return r.samples.sample(rows, logits), nil
}

// bury ends every request that is still alive after the loop has ended.
func (r *rank) bury() {
	r.events.close()
	r.gate.Lock()
	defer r.gate.Unlock()
	r.buried = true
	for _, s := range r.sinks {
		s.fail(errDead())
	}
	clear(r.sinks)
}

func errDead() *request.Error {
	return request.Errorf(request.EngineDead, "the engine stopped while the request was running; retry it")
}
