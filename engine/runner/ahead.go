package runner

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tandem/engine/executor"
	"tandem/engine/tensor"
)

// Launcher is a device that runs a step while the host goes on. Steps, and copies
// of blocks between them, are done in the order in which they were asked for.
type Launcher interface {
	Picker
	// Launch queues a batch as RunPick would run it. Its rows may take tokens over
	// that the batch launched before picks, see tensor.Batch.Feed. At most two
	// batches are on their way at a time, the later only if the former gives the
	// host no logits.
	Launch(b *tensor.Batch, picks []tensor.Pick) error
	// Wait ends the step that was launched first and returns what RunPick would,
	// valid until the next Wait.
	Wait() (picked []tensor.Picked, logits []float32, err error)
}

// launched is a step on its way, from its plan until its results are applied.
type launched struct {
	batch  *executor.Batch
	before *launched // that was on its way already, nil = none
	tensor tensor.Batch
	logit  []int32 // of each row, its row of logits; -1 = none
	rules  []tensor.Pick
	ready  func() // waits for what grammars allow
	out    []executor.Sampled
	err    error
	failed bool
	// For the flight recorder.
	iter       uint64
	sched, ran time.Duration
	began      time.Duration // it was given to the device
	rested     bool          // the loop had nothing to do before it
	done       bool          // out and err are its results: it ran in the call
	// free tells that the device needs nobody to choose the tokens of this step, so
	// that another one may be launched on them.
	free bool
}

var errOnNothing = errors.New("the step before it failed")

// lane is how a step gets to the device and back.
type lane interface {
	// launch begins a step behind those before it and returns at once.
	launch(*launched)
	// wait returns what the oldest step sampled. It samples nothing if the step
	// before it failed.
	wait(*launched) ([]executor.Sampled, error)
	close()
}

// ahead launches a step before the results of the one before are applied.
type ahead struct {
	r      *rank
	lane   lane
	steps  [2]launched
	number int
	open   []*launched // steps on their way, the older one first
}

// overlap lets the steps of a rank overlap.
func (r *rank) overlap() {
	r.ahead = &ahead{r: r}
	if d, ok := r.device.(Launcher); ok {
		r.ahead.lane = &queued{r: r, device: d}
		return
	}
	r.ahead.lane = newAside(r)
}

// ready reports whether a step can be launched.
func (a *ahead) ready() bool { return len(a.open) == 0 || len(a.open) == 1 && a.open[0].free }

// launch gives the device a batch, behind the step that runs.
func (a *ahead) launch(b *executor.Batch, sched time.Duration) {
	a.number ^= 1
	l := &a.steps[a.number]
	l.iter, l.sched, l.ran, l.rested = b.Iter, sched, 0, a.r.rested
	a.r.rested = false
	l.batch, l.before, l.err, l.failed, l.done, l.free = b, nil, nil, false, false, true
	if len(a.open) > 0 {
		l.before = a.open[0]
	}
	l.tensor.Reset()
	l.logit = l.logit[:0]
	rows := int32(0)
	for i := range b.Rows {
		row := &b.Rows[i]
		l.feed(row)
		l.tensor.Add(row.Tokens, row.Pos, row.Pages, row.Sample)
		if !row.Sample {
			l.logit = append(l.logit, -1)
			continue
		}
		l.logit = append(l.logit, rows)
		rows++
	}
	a.lane.launch(l)
	a.open = append(a.open, l)
}

// feed notes where the tokens of the next row come from.
func (l *launched) feed(row *executor.Row) {
	if row.Feed == 0 && len(l.tensor.Feed) == 0 {
		return
	}
	for len(l.tensor.Feed) < l.tensor.Rows() {
		l.tensor.Feed = append(l.tensor.Feed, -1)
	}
	from := int32(-1)
	if row.Feed > 0 {
		from = l.before.logit[row.Feed-1]
	}
	for range row.Tokens {
		l.tensor.Feed = append(l.tensor.Feed, from)
	}
}

// wait returns the results of the oldest step.
func (a *ahead) wait() executor.Result {
	l := a.open[0]
	a.open = append(a.open[:0], a.open[1:]...)
	sampled, err := a.lane.wait(l)
	if p := new(panicked); errors.As(err, &p) {
		p.again()
	}
	if l.failed, l.before = err != nil, nil; err == nil {
		return executor.Result{Sampled: sampled}
	}
	if !errors.Is(err, errOnNothing) {
		a.r.log.Error("a step failed", "rank", a.r.id, "rows", l.tensor.Rows(), "error", err)
	}
	return executor.Result{Err: fmt.Errorf("a step with %d rows: %w", l.tensor.Rows(), err)}
}

// land waits until nothing runs any more and throws the results away.
func (a *ahead) land() {
	defer a.lane.close()
	a.r.attend = func() {}           // the core may be what has panicked
	defer func() { _ = recover() }() // a device that panicked may do so again
	for _, l := range a.open {
		_, _ = a.lane.wait(l)
	}
	a.open = nil
}

// copies carries out the copies of a batch.
func (r *rank) copies(b *executor.Batch) error {
	for _, c := range b.Copies {
		if err := r.device.CopyBlockPrefix(c.From, c.To, c.Tokens); err != nil {
			return fmt.Errorf("reuse part of block %d: %w", c.From, err)
		}
	}
	return nil
}

// queued is the lane of a device that queues steps itself.
type queued struct {
	r      *rank
	device Launcher
}

func (q *queued) launch(l *launched) {
	if l.before != nil && l.before.err != nil {
		l.err = errOnNothing
		return
	}
	if scored(l.batch.Rows) {
		q.pieces(l)
		return
	}
	if l.err = q.r.copies(l.batch); l.err != nil {
		return
	}
	s := &q.r.samples
	s.rules = l.rules
	l.rules, _ = s.picks(l.batch.Rows)
	for i := range l.rules {
		l.free = l.free && !l.rules[i].Host
	}
	if l.began = q.r.clock(); l.before == nil && q.r.ended > 0 && !l.rested {
		q.r.times.gap.add(l.began - q.r.ended)
	}
	if l.err = q.device.Launch(&l.tensor, l.rules); l.err == nil {
		l.ready = s.prepare(l.batch.Rows)
	}
}

// pieces runs a step that scores prompts, after what runs has ended.
func (q *queued) pieces(l *launched) {
	var last []executor.Sampled
	if b := l.before; b != nil {
		if !b.done {
			out, err := q.wait(b)
			b.out, b.err, b.done = slices.Clone(out), err, true
		}
		if b.err != nil {
			l.err = errOnNothing
			return
		}
		last = b.out
	}
	l.free, l.done = false, true
	if l.err = q.r.copies(l.batch); l.err != nil {
		return
	}
	began := q.r.clock()
	l.out, l.err = q.r.samples.inPieces(knownTokens(l.batch.Rows, last), q.r.core.Config().MaxBatch, &l.tensor, func(b *tensor.Batch) ([]float32, error) {
		if err := q.device.Launch(b, hostRules(b)); err != nil {
			return nil, err
		}
		_, logits, err := q.device.Wait()
		return logits, err
	})
	q.r.ended = q.r.clock()
	l.ran = q.r.ended - began
}

func (q *queued) wait(l *launched) ([]executor.Sampled, error) {
	if l.done {
		return l.out, l.err
	}
	if l.err != nil {
		return nil, l.err
	}
	var picked []tensor.Picked
	var logits []float32
	var err error
	q.r.during(func() { picked, logits, err = q.device.Wait() })
	l.ready()
	now := q.r.clock()
	l.ran, q.r.ended = now-max(l.began, q.r.ended), now
	switch {
	case err != nil:
		return nil, err
	case l.before != nil && l.before.failed:
		return nil, errOnNothing
	}
	s := &q.r.samples
	s.rules = l.rules
	return s.take(l.batch.Rows, picked, logits), nil
}

func (q *queued) close() {}
