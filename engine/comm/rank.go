package comm

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Rank is one rank of a Group that lives in this process.
type Rank struct {
	hub  *hub
	id   int
	seat int

	round     uint64 // meetings the rank went to
	exchanges uint64
	gathers   uint64
	call      call // read by the last to arrive
	table     []Record
	parts     [][]byte
	scratch   []float32 // for sums

	_ [cacheLine]byte
	// Read by others at any time.
	busy     atomic.Bool // may touch memory of other ranks
	op       atomic.Uint32
	iter     atomic.Uint64
	at       atomic.Uint64 // meetings begun
	progress atomic.Uint64
	_        [cacheLine]byte
}

// ID is the rank.
func (r *Rank) ID() int { return r.id }

// Size is the number of ranks of the group.
func (r *Rank) Size() int { return r.hub.cfg.Size }

// Exchange gives every rank the records of all; see Comm.
func (r *Rank) Exchange(ctx context.Context, rec Record) ([]Record, error) {
	h := r.hub
	if h.bar.over() {
		return nil, h.cause()
	}
	last := r.iter.Load()
	r.iter.Store(rec.Iter)
	if r.exchanges > 0 && rec.Iter != last+1 {
		return nil, r.abort(OpExchange, diverged("iter", r.id, rec.Iter, last+1, rec.Iter))
	}
	if err := rec.check(r.id, rec.Iter); err != nil {
		return nil, r.abort(OpExchange, err)
	}
	table := h.table[r.exchanges&1]
	table[r.id] = rec
	r.call = call{op: OpExchange}
	if err := r.meet(ctx); err != nil {
		return nil, err
	}
	r.exchanges++
	copy(r.table, table)
	return r.table, nil
}

// Gather gives every rank the payloads of all; see Comm.
func (r *Rank) Gather(ctx context.Context, payload []byte) ([][]byte, error) {
	h := r.hub
	if h.bar.over() {
		return nil, h.cause()
	}
	if want := int(r.table[r.id].PayloadBytes); len(payload) != want {
		return nil, r.abort(OpGather, diverged("payload_bytes", r.id, r.iter.Load(), want, len(payload)))
	}
	none := true
	for i := range r.table {
		none = none && r.table[i].PayloadBytes == 0
	}
	if none {
		return nil, nil
	}
	parts := h.parts[r.gathers&1]
	parts[r.id] = append(parts[r.id][:0], payload...)
	r.call = call{op: OpGather}
	if err := r.meet(ctx); err != nil {
		return nil, err
	}
	r.gathers++
	copy(r.parts, parts)
	return r.parts, nil
}

// Barrier returns when every rank has called it.
func (r *Rank) Barrier(ctx context.Context) error {
	r.call = call{op: OpBarrier}
	return r.meet(ctx)
}

// Wake ends the idle wait of rank 0.
func (r *Rank) Wake() {
	if h := r.hub; h.span.First == 0 {
		h.wake()
	} else {
		h.up.wake()
	}
}

func (h *hub) wake() {
	select {
	case h.woken <- struct{}{}:
	default: // one is pending already
	}
}

// Woken receives after a Wake by any rank. For rank 0 alone.
func (r *Rank) Woken() <-chan struct{} { return r.hub.woken }

// Progress says that the rank is alive in a long forward.
func (r *Rank) Progress() { r.progress.Add(1) }

// Fail ends the group because of err.
func (r *Rank) Fail(err error) { _ = r.abort(Op(r.op.Load()), err) }

// Close leaves the group, which ends it for all.
func (r *Rank) Close() error {
	_ = r.abort(Op(r.op.Load()), ErrClosed)
	return nil
}

// abort ends the group and returns the error that ended it, which may be an
// earlier one.
func (r *Rank) abort(op Op, err error) error {
	r.hub.fail(peerError(Span{r.id, r.id}, r.iter.Load(), op, err))
	return r.hub.cause()
}

// enter begins a stretch in which the rank may touch memory of others.
func (r *Rank) enter() bool {
	r.busy.Store(true)
	if r.hub.bar.over() {
		r.busy.Store(false)
		return false
	}
	return true
}

// meet waits for all ranks of the group at the collective in r.call. After an
// error no rank reads or writes the caller's memory any more.
func (r *Rank) meet(ctx context.Context) error {
	h, n := r.hub, r.round
	if h.bar.over() {
		return h.cause()
	}
	r.round++
	r.op.Store(uint32(r.call.op))
	r.at.Store(r.round)
	late, ok := h.bar.arrive(), false
	if late {
		ok = r.lead(ctx, n)
	} else {
		ok = h.bar.wait(ctx, r.seat, n)
	}
	defer r.op.Store(uint32(OpNone))
	if ok {
		return nil
	}
	if ctx.Err() != nil {
		r.cancelled(ctx)
	}
	err := h.cause()
	if h.quiet(); !late {
		if done, _ := h.bar.passed(n); done {
			return nil // the last to arrive finished while the group ended
		}
	}
	return err
}

// cancelled ends the group because the rank leaves a collective early.
func (r *Rank) cancelled(ctx context.Context) {
	err := fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx))
	r.hub.fail(peerError(Span{r.id, r.id}, r.iter.Load(), Op(r.op.Load()), err))
}

// lead does the work of round n as the last to arrive.
func (r *Rank) lead(ctx context.Context, n uint64) bool {
	if !r.enter() {
		return false
	}
	if r.hub.up != nil && ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { r.cancelled(ctx) })
		defer stop()
	}
	err := r.hub.run()
	if err != nil {
		r.hub.fail(peerError(Span{r.id, r.id}, r.iter.Load(), r.call.op, err))
	}
	if err == nil {
		r.hub.bar.open(n)
	}
	r.busy.Store(false)
	return err == nil
}
