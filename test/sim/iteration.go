package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"

	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
)

// Step runs one iteration, and before it what is due. It reports whether the
// instance goes on.
func (in *Instance) Step() (bool, error) {
	in.deliver()
	in.Log.Iterations++
	in.changed = in.changed || in.mail
	in.mail = false
	in.plan()
	err := in.exchange()
	if err == nil && !in.stopped {
		in.forward()
		in.route()
		err = in.check()
	}
	return !in.stopped, err
}

// deliver runs the events that are due.
func (in *Instance) deliver() {
	for len(in.events) > 0 && in.events[0].at <= in.Now {
		in.changed = true
		heap.Pop(&in.events).(event).do()
	}
}

// plan lets every rank plan, and some take their batch back.
func (in *Instance) plan() {
	for i, m := range in.Ranks {
		b := m.Lock.Plan(in.Now)
		m.flush()
		if b == nil {
			continue
		}
		if err := m.checkBatch(b); err != nil {
			in.fail("rank %d: %w", i, err)
		}
		if in.VoidStep != nil && in.VoidStep(i) {
			m.Lock.Void(in.Now, errors.New("refused by the device"))
			m.flush()
			in.changed = true
		}
	}
}

// exchange shows all rows to all ranks, which must decide alike.
func (in *Instance) exchange() error {
	rows, gather := make([]lockstep.Row, len(in.Ranks)), false
	for i, m := range in.Ranks {
		row, out := m.Lock.Row()
		m.row, m.out = row, *out
		if !out.Empty() {
			m.row.PayloadBytes = 1
			gather = true
		}
		rows[i] = m.row
	}
	in.checkRows(rows)
	var errs []error
	for i, m := range in.Ranks {
		step, err := m.Lock.Decide(slices.Clone(rows), gather)
		if err != nil {
			errs = append(errs, fmt.Errorf("rank %d at iteration %d: %w", i, in.Log.Iterations, err))
			continue
		}
		m.step = step
	}
	if len(errs) > 0 {
		if len(errs) < len(in.Ranks) {
			in.fail("only %d ranks saw a divergence", len(errs))
		}
		return errors.Join(errs...)
	}
	in.checkSteps()
	in.stopped = in.Ranks[0].step.Stop
	return in.err
}

// hear runs the events that are due and that ranks hear of in their passes.
func (in *Instance) hear() {
	var rest []event
	for len(in.events) > 0 && in.events[0].at <= in.Now {
		e := heap.Pop(&in.events).(event)
		if !e.early {
			rest = append(rest, e)
			continue
		}
		in.Log.Heard++
		e.do()
	}
	for _, e := range rest {
		heap.Push(&in.events, e)
	}
}

// forward runs every rank's batch. What ranks hear meanwhile comes before the pass of
// some, and after that of others.
func (in *Instance) forward() {
	const pause, pass = 100 * time.Microsecond, 10 * time.Millisecond
	in.Now += pause
	if !in.Ranks[0].step.Forward {
		return
	}
	in.Now += pass
	in.Log.Forwards++
	in.changed = true
	results := make([]executor.Result, len(in.Ranks))
	run := func(parity int) {
		for i, m := range in.Ranks {
			if i%2 == parity && m.step.Batch != nil {
				results[i] = m.run(m.step.Batch)
			}
		}
	}
	first := int(in.Log.Forwards % 2)
	run(first)
	in.hear()
	run(1 - first)
	for i, m := range in.Ranks {
		if m.step.Batch == nil {
			continue
		}
		res := results[i]
		if in.FailStep != nil {
			if err := in.FailStep(i); err != nil {
				res = executor.Result{Err: err}
			}
		}
		if in.BadToken != nil && res.Err == nil && in.BadToken(i) {
			res.Sampled[0].Err = request.Errorf(request.BadLogits, "not a number")
		}
		m.Lock.Apply(in.Now, res)
		m.flush()
	}
}

// route delivers payloads, and hands each rank what came to it.
func (in *Instance) route() {
	var all []lockstep.Delivery
	if in.Ranks[0].step.Gather {
		in.Log.Gathers++
		in.changed = true
		for _, m := range in.Ranks {
			all = append(all, m.out)
			in.paths.lent(m.out.Lent)
		}
		in.entering = 0
	}
	for i, m := range in.Ranks {
		mine := received(i, all)
		if in.Tamper != nil {
			in.Tamper(i, mine)
		}
		for _, t := range m.Lock.Route(in.Now, mine) {
			in.accept(m, &t)
		}
		m.flush()
		in.answer(i, m.Lock.Fates())
		if err := m.Core.Fatal(); err != nil {
			in.fail("rank %d: %w", i, err)
		}
	}
}

// received is what reaches one rank of all deliveries: copies, and of arrivals
// only what travels.
func received(to int, all []lockstep.Delivery) []lockstep.Delivery {
	mine := slices.Clone(all)
	for i := range mine {
		mine[i].New = slices.Clone(mine[i].New)
		for j, a := range mine[i].New {
			if to == 0 {
				break
			}
			far := *a
			far.Prompt, far.Deadline, far.Handle = slices.Clone(a.Prompt), 0, nil
			mine[i].New[j] = &far
		}
	}
	return mine
}

// accept submits a request that came to a rank.
func (in *Instance) accept(m *Member, t *lockstep.Taken) {
	in.changed = true
	b := t.Body.(body)
	if t.Placed.From >= 0 {
		in.Log.Moved++
	}
	if b.track.Finish != request.Running {
		in.fail("request %d is placed after its end", t.Item.ID)
	}
	h := b.handle
	if h == nil {
		h = t.Lent
	}
	if d := in.cfg.Step.QueueTimeout; d > 0 && in.Now > b.entered+d+slack {
		in.fail("request %d came at %v and is placed at %v", b.req.ID, b.entered, in.Now)
	}
	m.Tracks[b.req.ID] = b.track
	m.Core.Submit(in.Now, b.req, h)
	m.flush()
}

// answer takes what the lockstep itself has to say.
func (in *Instance) answer(rank int, f lockstep.Fates) {
	for _, r := range f.Ended {
		t := in.tracks[r.ID]
		if t == nil || t.Finish != request.Running {
			in.fail("rank %d ends request %d (%s), which has ended", rank, r.ID, r.Code)
			continue
		}
		for _, c := range t.Choices() {
			c.Finish, c.Retired, c.Cancel = request.FinishError, true, t.Cancel
			if r.Code == request.Cancelled {
				c.Finish = request.FinishCancelled
			}
			c.Err = request.Errorf(r.Code, "in the queue")
			in.ended(c)
		}
		delete(in.tracks, r.ID)
	}
	for _, h := range f.KeepAlives {
		in.paths.keptAlive(h)
	}
	for _, a := range f.Aborts {
		in.changed = true
		in.Log.Aborts++
		if in.aborts[a.ID]--; in.aborts[a.ID] < 0 {
			in.fail("rank %d answers an abort of %d that nobody asked for", rank, a.ID)
		} else if in.aborts[a.ID] == 0 {
			delete(in.aborts, a.ID)
		}
	}
}

// ended counts a final event.
func (in *Instance) ended(t *Track) {
	in.live--
	in.changed = true
	if d := t.Req.Deadline; d > 0 && in.Now > d+slack {
		in.fail("request %d ends at %v, its deadline was %v", t.Req.ID, in.Now, d)
	}
	switch {
	case t.Finish == request.FinishCancelled:
		in.Log.Cancelled++
		if !t.Cancel && t.Err == nil {
			in.fail("request %d was cancelled by nobody", t.Req.ID)
		}
	case t.Err != nil:
		in.Log.failed(t.Err.Code)
		if t.Err.Code == request.EngineDead || t.Err.Code == request.Internal || t.Err.Code == request.CapacityNever {
			in.fail("request %d was accepted, then refused: %v", t.Req.ID, t.Err)
		}
	default:
		in.Log.Finished++
	}
}

// effects carries out what the core of a rank wants.
func (in *Instance) effects(rank int, e *executor.Effects) {
	for _, o := range e.Outputs {
		if o.Finish == request.Running {
			continue
		}
		in.ended(in.Ranks[rank].Tracks[o.Request.ID].Choices()[o.Choice])
		if o.Handle != nil && !o.Request.GenFirst { // else its puller is known
			in.paths.offered(rank, o.Handle)
		}
	}
	in.paths.effects(rank, e)
	for _, id := range e.Retired {
		m := in.Ranks[rank]
		if t := m.Tracks[id]; t != nil && in.paths.verify(t) {
			delete(m.Tracks, id)
			delete(in.tracks, id)
		}
	}
}
