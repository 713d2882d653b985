package runner

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"tandem/engine/executor"
)

// runAlone drives the only rank that requests are placed on.
func (e *Engine) runAlone(ctx context.Context) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := e.ranks[0]
	if e.cfg.Overlap {
		r.overlap()
		defer r.ahead.land() // nothing may run on a device that is closed
	}
	defer func() {
		if p := recover(); p != nil {
			err = r.died(p, debug.Stack())
		}
	}()
	for ctx.Err() == nil {
		if e.finished(r) {
			return nil
		}
		if worked := e.iterate(r); !worked {
			e.wait(ctx, r)
		}
		if err := r.core.Fatal(); err != nil {
			return fmt.Errorf("engine core: %w", err)
		}
		if err := fatalOf(r.device); err != nil {
			return err
		}
	}
	return nil
}

// mortal is a device that can break for good, as one with peers does.
type mortal interface{ Fatal() error }

func fatalOf(d Device) error {
	if m, ok := d.(mortal); ok {
		return m.Fatal()
	}
	return nil
}

// iterate runs one iteration of the loop and reports whether a batch ran.
func (e *Engine) iterate(r *rank) (worked bool) {
	e.read(r)
	if r.ahead != nil {
		worked = e.overlap(r, r.ahead)
	} else if b := r.core.Plan(e.Now()); b != nil {
		worked = true
		r.carry()
		r.fill(b)
		res, _ := r.forward(b)
		e.apply(r, res)
	}
	// Who gets an answer may look at once at what is left of the request.
	e.status.set(0, RankStats{Stats: r.core.Stats()}, e.Now())
	r.carry()
	return worked
}

// overlap gives the device a batch, if it can take one, before it looks at the
// results of the batch that the device had already.
func (e *Engine) overlap(r *rank, a *ahead) bool {
	running, launched := len(a.open) > 0, false
	if a.ready() {
		b := r.core.Plan(e.Now())
		r.carry()
		if launched = b != nil; launched {
			a.launch(b)
		}
	}
	if running {
		e.apply(r, a.wait())
	}
	return running || launched
}

// apply gives the core the results of its oldest batch. Cancels go before them
// (engine-core CA-1).
func (e *Engine) apply(r *rank, res executor.Result) {
	e.in.takeCancels(&e.mail)
	e.cancel(r)
	r.core.Apply(e.Now(), res)
}

// read hands everything in the inbox to the core: cancels first.
func (e *Engine) read(r *rank) {
	e.in.take(&e.mail)
	e.cancel(r)
	now := e.Now()
	r.hear(now)
	for _, s := range e.mail.new {
		e.status.add(s.req.ID)
		r.submit(now, s, s.handle)
		close(s.done)
	}
	clear(e.mail.new)
}

func (e *Engine) cancel(r *rank) {
	now := e.Now()
	for _, id := range e.mail.cancels {
		r.core.Cancel(now, id)
		r.carry()
	}
	for _, a := range e.mail.aborts {
		a.reply <- r.core.Abort(now, a.id)
		r.carry()
	}
}

// wait blocks until there is mail, a deadline passes or the engine drains.
func (e *Engine) wait(ctx context.Context, r *rank) {
	d := e.cfg.Idle
	if at, ok := r.core.NextDeadline(); ok {
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
		r.core.Drain(e.Now())
	}
	if k, ok := r.device.(interface{ KeepAlive() }); ok {
		k.KeepAlive() // peers must not take an idle engine for a lost one
	}
}

// finished reports whether a draining engine has nothing left to do.
func (e *Engine) finished(r *rank) bool {
	select {
	case <-e.drain:
	default:
		return false
	}
	if !e.status.draining() {
		e.status.setDraining()
		r.core.Drain(e.Now())
		r.carry()
	}
	s := r.core.Stats()
	return s.Running+s.Waiting+s.Receiving+s.HandoffsOpen == 0 && len(r.sinks) == 0
}
