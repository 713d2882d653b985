package runner

import (
	"tandem/engine/executor"
	"tandem/engine/tensor"
)

// aside is the lane of a device that runs a step in the call: another goroutine
// makes that call, samples, and goes on with the next step, for which it knows the
// tokens. Beside it the loop applies results, shows texts and plans.
type aside struct {
	r     *rank
	steps chan *launched
	ended chan *launched
	gone  chan struct{}
	last  []executor.Sampled // of the step before, nil = it failed
}

func newAside(r *rank) *aside {
	a := &aside{r: r, steps: make(chan *launched, 2), ended: make(chan *launched, 2), gone: make(chan struct{})}
	go a.run()
	return a
}

func (a *aside) launch(l *launched) { a.steps <- l }

func (a *aside) wait(l *launched) ([]executor.Sampled, error) {
	if got := attending(a.r, a.ended); got != l {
		panic("runner: steps came back in another order")
	}
	return l.out, l.err
}

func (a *aside) close() {
	close(a.steps)
	<-a.gone
}

func (a *aside) run() {
	defer close(a.gone)
	for l := range a.steps {
		if p := try(func() { l.err = a.step(l) }); p != nil {
			l.err = p
		}
		a.last = nil
		if l.err == nil {
			a.last = l.out
		}
		a.ended <- l
	}
}

// step runs a step and samples.
func (a *aside) step(l *launched) (err error) {
	if l.before != nil && a.last == nil {
		return errOnNothing
	}
	if scored(l.batch.Rows) {
		return a.pieces(l)
	}
	for i, row := range l.batch.Rows {
		if row.Feed == 0 {
			continue
		}
		if one := &a.last[row.Feed-1]; one.Err == nil { // else the row is in vain
			l.tensor.Tokens[l.tensor.RowStart[i]] = one.Token.ID
		}
	}
	l.tensor.Feed = l.tensor.Feed[:0]
	if err := a.r.copies(l.batch); err != nil {
		return err
	}
	began := a.r.clock()
	if a.r.ended > 0 && !l.rested {
		a.r.times.gap.add(began - a.r.ended)
	}
	s := &a.r.samples
	ready := s.prepare(l.batch.Rows)
	picked, logits, err := a.compute(l)
	ready()
	a.r.ended = a.r.clock()
	l.ran = a.r.ended - began
	if err != nil {
		return err
	}
	if s.out = l.out; picked != nil {
		l.out = s.take(l.batch.Rows, picked, logits)
	} else {
		l.out = s.sample(l.batch.Rows, logits)
	}
	return nil
}

// compute runs a step. What the device could pick of it is picked, nil = nothing.
func (a *aside) compute(l *launched) (picked []tensor.Picked, logits []float32, err error) {
	if picker, ok := a.r.device.(Picker); ok {
		if picks, some := a.r.samples.picks(l.batch.Rows); some {
			return picker.RunPick(&l.tensor, picks)
		}
	}
	logits, err = a.r.device.Run(&l.tensor)
	return nil, logits, err
}

// pieces runs a step that scores prompts.
func (a *aside) pieces(l *launched) (err error) {
	if err := a.r.copies(l.batch); err != nil {
		return err
	}
	began := a.r.clock()
	l.out, err = a.r.samples.inPieces(knownTokens(l.batch.Rows, a.last), a.r.core.Config().MaxBatch, &l.tensor, a.r.device.Run)
	a.r.ended = a.r.clock()
	l.ran = a.r.ended - began
	return err
}
