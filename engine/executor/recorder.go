package executor

import (
	"sync"
	"time"

	"tandem/engine/request"
)

// The flight recorder keeps the last steps and the last events that were not
// routine, in memory that was taken at the start. Core writes it; everybody may
// read it at any time, also while the goroutine that owns the core hangs.

// Sizes of the record.
const (
	recordedSteps  = 256
	recordedEvents = 512
	recordedRows   = 8
)

// StepOutcome is what became of a step.
type StepOutcome string

// The outcomes.
const (
	StepRunning StepOutcome = "running"
	StepOK      StepOutcome = "ok"
	StepError   StepOutcome = "failed"
	StepVoid    StepOutcome = "void" // it ran on the results of one that failed
	StepHeld    StepOutcome = "held" // nothing of it was left to run
)

// StepRecord is one step as the flight recorder keeps it. Times are those of the
// driver's clock.
type StepRecord struct {
	Iter             uint64
	Planned, Applied time.Duration // Applied is 0 while it runs
	Outcome          StepOutcome

	CtxRequests, GenRequests int // rows
	CtxTokens, GenTokens     int
	CtxPrior                 int // sum over prefill rows of their tokens times the positions before them
	GenContext               int // sum of the context lengths of decode rows
	Copies                   int
	IDs                      [recordedRows]request.ID // of the first rows, 0 = none

	// Since the step before.
	Tally
	// When it was planned.
	Running, Waiting, Receiving, Leases int
	Free, Reusable                      int // blocks

	// What the driver measured, 0 = nothing: making the plan, running it on the
	// device, applying its results.
	Sched, Run, Apply time.Duration
}

// Tally counts what happened to requests.
type Tally struct {
	Arrived, Admitted, Paused, Finished, Failed, Cancelled int
}

// EventKind says what an EventRecord is about.
type EventKind string

// The kinds of events.
const (
	EventRefused      EventKind = "refused"       // a request at arrival
	EventFailed       EventKind = "failed"        // a request
	EventCancelled    EventKind = "cancelled"     // a request
	EventPaused       EventKind = "paused"        // a request, for want of blocks
	EventLeaseExpired EventKind = "lease_expired" // nobody fetched a prompt's blocks
	EventPullFailed   EventKind = "pull_failed"   // a fetch, and the prompt is computed here
	EventStepFailed   EventKind = "step_failed"   // a whole batch
	EventDeadlock     EventKind = "deadlock"      // ER-5: a bug
	EventIllegal      EventKind = "illegal_transition"
	EventDrain        EventKind = "drain"
	EventFatal        EventKind = "fatal" // the core gave up
)

// EventRecord is something that the flight recorder keeps beside the steps.
type EventRecord struct {
	At   time.Duration // on the driver's clock
	Iter uint64        // last step planned before
	Kind EventKind
	ID   request.ID   // 0 = no single request
	Code request.Code // of an error
	Text string       // why; never a prompt or an answer
}

// Recorder is the flight recorder of one core.
type Recorder struct {
	mu     sync.Mutex
	steps  [recordedSteps]StepRecord // of iteration i at i % recordedSteps
	last   uint64                    // newest iteration
	events [recordedEvents]EventRecord
	count  uint64 // events so far
}

// Steps appends the recorded steps to dst, the oldest first.
func (r *Recorder) Steps(dst []StepRecord) []StepRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := r.last - min(r.last, recordedSteps) + 1; i <= r.last; i++ {
		if s := &r.steps[i%recordedSteps]; s.Iter == i {
			dst = append(dst, *s)
		}
	}
	return dst
}

// Events appends the recorded events to dst, the oldest first.
func (r *Recorder) Events(dst []EventRecord) []EventRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := r.count - min(r.count, recordedEvents); i < r.count; i++ {
		dst = append(dst, r.events[i%recordedEvents])
	}
	return dst
}

// Running returns the oldest step that has no results yet, false if there is none.
func (r *Recorder) Running() (StepRecord, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range [2]uint64{r.last - 1, r.last} {
		if s := &r.steps[i%recordedSteps]; s.Iter == i && s.Outcome == StepRunning {
			return *s, true
		}
	}
	return StepRecord{}, false
}

// Time notes what the driver measured of a step. It does nothing when the step
// is not recorded any more.
func (r *Recorder) Time(iter uint64, sched, run, apply time.Duration) {
	r.change(iter, func(s *StepRecord) { s.Sched, s.Run, s.Apply = sched, run, apply })
}

func (r *Recorder) change(iter uint64, fn func(*StepRecord)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := &r.steps[iter%recordedSteps]; s.Iter == iter {
		fn(s)
	}
}

func (r *Recorder) begin(s *StepRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = s.Iter
	r.steps[s.Iter%recordedSteps] = *s
}

func (r *Recorder) note(e EventRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[r.count%recordedEvents] = e
	r.count++
}

// Recorder returns the core's flight recorder, which others may read.
func (c *Core) Recorder() *Recorder { return c.record }

// note records an event. err may be nil.
func (c *Core) note(kind EventKind, id request.ID, err *request.Error) {
	e := EventRecord{At: c.now, Iter: c.stats.Iter, Kind: kind, ID: id}
	if err != nil {
		e.Code, e.Text = err.Code, err.Message
	}
	c.record.note(e)
}

// recordStep records the step that was just planned.
func (c *Core) recordStep(f *flight) {
	s := StepRecord{
		Iter: f.batch.Iter, Planned: f.planned, Outcome: StepRunning, Copies: len(f.batch.Copies), Tally: c.tally,
		CtxRequests: f.share.ctxRequests, GenRequests: f.share.genRequests, CtxTokens: f.share.ctxTokens, GenTokens: f.share.genTokens,
		CtxPrior: f.share.ctxPrior, GenContext: f.share.genContext,
		Running: c.sch.Running(), Waiting: c.sch.Waiting() + c.awaiting, Receiving: c.recvOpen, Leases: c.openLeases,
		Reusable: c.kv.Reusable(),
	}
	s.Free = c.kv.Free() - s.Reusable
	for i := range f.batch.Rows[:min(len(f.batch.Rows), recordedRows)] {
		s.IDs[i] = f.batch.Rows[i].Request.ID
	}
	c.tally = Tally{}
	c.record.begin(&s)
}

// recordHeld records that a step lost its prefills.
func (c *Core) recordHeld(f *flight) {
	c.record.change(f.batch.Iter, func(s *StepRecord) {
		s.CtxRequests, s.CtxTokens, s.CtxPrior = 0, 0, 0
		if s.GenRequests = len(f.rows); s.GenRequests == 0 {
			s.Outcome, s.Applied = StepHeld, c.now
		}
	})
}

// recordEnd records what became of a step.
func (c *Core) recordEnd(f *flight, err error) {
	how := StepOK
	switch {
	case f.void:
		how = StepVoid
	case err != nil:
		how = StepError
		c.record.note(EventRecord{At: c.now, Iter: f.batch.Iter, Kind: EventStepFailed, Code: request.StepFailed, Text: err.Error()})
	}
	c.record.change(f.batch.Iter, func(s *StepRecord) { s.Outcome, s.Applied = how, c.now })
}

// recordClose counts how a request ended.
func (c *Core) recordClose(s *sequence, out *Output) {
	switch out.Finish {
	case request.FinishError:
		c.tally.Failed++
		c.note(EventFailed, s.req.ID, out.Err)
	case request.FinishCancelled:
		c.tally.Cancelled++
		c.note(EventCancelled, s.req.ID, out.Err)
	default:
		c.tally.Finished++
	}
}
