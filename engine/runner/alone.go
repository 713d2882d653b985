package runner

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"tandem/engine/executor"
)

// runAlone drives the only rank that requests are placed on.
func (e *Engine) runAlone(ctx context.Context) (err error) {
	r := e.ranks[0]
	r.begin()
	r.attend = func() { e.attend(r) }
	defer func() { r.side.close() }()
	if e.cfg.Overlap {
		r.overlap()
		defer r.ahead.land() // nothing may run on a device that is closed
	}
	defer func() {
		if p := recover(); p != nil {
			err = r.died(p, debug.Stack())
		}
	}()
	for ctx.Err() == nil && !e.stuck.Load() {
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
	} else if b, sched := e.plan(r); b != nil {
		worked = true
		r.fill(b)
		began := r.starts()
		res, _ := r.forward(b)
		ran := r.stops(began)
		e.apply(r, res, b.Iter, sched, ran)
	}
	// Who gets an answer may look at once at what is left of the request.
	st := r.core.Stats()
	e.status.set(0, RankStats{Stats: st}, e.Now())
	r.carry()
	r.publish(e.Now())
	e.alarm(r, &st)
	return worked
}

// plan asks the core for a step and tells how long that took.
func (e *Engine) plan(r *rank) (*executor.Batch, time.Duration) {
	began := e.Now()
	b := r.core.Plan(began)
	took := e.Now() - began
	if b != nil {
		r.times.sched.add(took)
	}
	r.carry()
	if b != nil {
		if r.rested { // what begins now may hang: it has to be seen then
			r.look.wanted.Store(true)
		}
		r.publish(e.Now())
	}
	return b, took
}

// starts notes that the device begins a step, and stops that it is over. The time
// between two steps counts as a gap unless the loop had nothing to do.
func (r *rank) starts() time.Duration {
	now := r.clock()
	if r.ended > 0 && !r.rested {
		r.times.gap.add(now - r.ended)
	}
	r.rested = false
	return now
}

func (r *rank) stops(began time.Duration) time.Duration {
	r.ended = r.clock()
	return r.ended - began
}

// overlap gives the device a batch, if it can take one, before it looks at the
// results of the batch that the device had already.
func (e *Engine) overlap(r *rank, a *ahead) bool {
	running, launched := len(a.open) > 0, false
	if a.ready() {
		b, sched := e.plan(r)
		if launched = b != nil; launched {
			a.launch(b, sched)
		}
	}
	if running {
		l := a.open[0]
		res := a.wait()
		e.apply(r, res, l.iter, l.sched, l.ran)
	}
	return running || launched
}

// apply gives the core the results of its oldest batch. Cancels go before them
// (engine-core CA-1).
func (e *Engine) apply(r *rank, res executor.Result, iter uint64, sched, ran time.Duration) {
	e.in.takeCancels(&e.mail)
	e.cancel(r)
	began := e.Now()
	r.core.Apply(began, res)
	took := e.Now() - began
	r.times.apply.add(took)
	r.core.Recorder().Time(iter, sched, ran, took)
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

// attend is read while a step runs. It tells what is left, but not that the loop
// came around.
func (e *Engine) attend(r *rank) {
	e.read(r)
	e.status.refresh(0, r.core.Stats())
	r.publish(e.Now())
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
	r.rested = true
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
	return s.Running+s.Waiting+s.Receiving+s.HandoffsOpen == 0 && r.answered()
}
