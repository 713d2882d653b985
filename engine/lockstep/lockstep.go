package lockstep

import (
	"fmt"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Config of a rank. All but Rank must be equal on all ranks.
type Config struct {
	Rank   int
	Router adprouter.Config // its Ranks is the number of ranks
	// Balance holds prefill back; nil = never. Each rank needs its own.
	Balance *adprouter.Balance
	// CountInTransfer counts requests whose blocks wait for a puller as load; for
	// the KV-cache-aware router.
	CountInTransfer bool
	MaxQueued       int           // requests in the replicated queue
	QueueTimeout    time.Duration // of those, 0 = none
	// MaxBytes bounds the requests of one delivery, by their Bytes; the rest follows
	// in the next iterations. A larger one goes alone. 0 = no bound.
	MaxBytes int
}

// Rank is one rank of an instance. One goroutine owns it.
type Rank struct {
	cfg     Config
	core    *executor.Core
	router  *adprouter.Router
	queue   *adprouter.Queue
	balance *adprouter.Balance
	pad     adprouter.PadOptions

	// Replicated, looked up by id only.
	waiting  map[request.ID]*Arrival
	draining bool
	probing  bool // this iteration's payloads carry prefix matches

	// This rank's own.
	mine       map[request.ID]string      // placed here and not retired: conversation key
	moving     map[request.ID]*Taken      // placed here, their blocks are asked for
	movingWork int                        // prompt tokens that these will compute
	movingSeqs int                        // their choices
	lent       map[request.ID]transfer.ID // moved away from here
	out        Delivery                   // for the next gather
	sent       Delivery                   // for the gather of this iteration
	clock      queueClock                 // rank 0
	taken      []Taken                    // result of Route
	fates      Fates
	rows       []adprouter.Row       // scratch
	states     []adprouter.RankState // scratch
	lists      [][]adprouter.Match   // scratch
	plan       adprouter.Plan
	step       Step
	load       executor.Load
	stirs      bool // something was delivered or placed in this iteration
	done       bool // the last row said that nothing is left
	stats      Stats
}

// Stats counts what the rank took part in.
type Stats struct {
	Steps  uint64 // forwards
	Padded uint64 // forwards without an own row
	Held   uint64 // iterations in which prefill was held back
	Placed map[string]uint64
	Queued int // requests in the replicated queue
	Moves  adprouter.MoveCounts
	// Strict is how long the oldest request has waited that names a rank which is
	// full, 0 without any. Rank 0 knows.
	Strict time.Duration
}

const never = time.Duration(1<<63 - 1)

// New puts a rank around its core.
func New(cfg Config, core *executor.Core) (*Rank, error) {
	router, err := adprouter.New(cfg.Router)
	if err != nil {
		return nil, fmt.Errorf("lockstep: %w", err)
	}
	if cfg.Rank < 0 || cfg.Rank >= cfg.Router.Ranks {
		return nil, fmt.Errorf("lockstep: rank %d of %d", cfg.Rank, cfg.Router.Ranks)
	}
	l := &Rank{
		cfg: cfg, core: core, router: router, balance: cfg.Balance,
		queue:   adprouter.NewQueue(cfg.Router.Ranks, cfg.Router.Cap),
		waiting: map[request.ID]*Arrival{}, mine: map[request.ID]string{},
		moving: map[request.ID]*Taken{}, lent: map[request.ID]transfer.ID{},
		lists: make([][]adprouter.Match, cfg.Router.Ranks),
	}
	l.clock.due, l.clock.live = never, map[request.ID]time.Duration{}
	l.pad = adprouter.PadOptions{Mixed: core.Config().Role == executor.Mixed, Balance: cfg.Balance}
	l.step.RankRows = make([]int, cfg.Router.Ranks)
	l.stats.Placed = map[string]uint64{}
	return l, nil
}

// Core is the rank's own core. Requests are submitted to it when taken.
func (l *Rank) Core() *executor.Core { return l.core }

// Router is the replicated router.
func (l *Rank) Router() *adprouter.Router { return l.router }

// Stats returns the counters; Placed is shared, for the rank's goroutine only.
func (l *Rank) Stats(now time.Duration) Stats {
	l.stats.Queued, l.stats.Moves, l.stats.Strict = l.queue.Len(), l.router.Moves(), 0
	if since, ok := l.clock.live[l.queue.Aside().Oldest]; ok {
		l.stats.Strict = now - since
	}
	return l.stats
}

// Plan plans the core's step and begins the iteration. Without a batch it
// returns nil.
func (l *Rank) Plan(now time.Duration) *executor.Batch {
	l.stirs = false
	l.tick(now)
	if l.draining && l.queue.Len() == 0 && len(l.moving) == 0 {
		l.core.Drain(now) // all that was accepted has reached it
	}
	l.step.Batch = l.core.Plan(now)
	l.probe()
	return l.step.Batch
}

// Void takes a planned batch back that cannot run: err is charged to it as if
// the step had failed, and the rank goes into the exchange without rows.
func (l *Rank) Void(now time.Duration, err error) {
	l.core.Apply(now, executor.Result{Err: err})
	l.step.Batch = nil
	l.stirs = true // the next plan tries again
}

// Row is what this rank tells the others, and its part of the gather; call it
// once, after Plan. The delivery is the driver's until the next Row.
func (l *Rank) Row() (Row, *Delivery) {
	l.load = l.core.Load()
	row := l.rowOf(l.load)
	l.sent, l.out = l.out.split(l.cfg.MaxBytes)
	return row, &l.sent
}

// Decide derives from the rows of all ranks, in rank order, what all of them do.
// gather says that some rank has a payload. The result is valid until the next
// Decide. An error is a *DivergenceError.
func (l *Rank) Decide(rows []Row, gather bool) (*Step, error) {
	l.rows = l.rows[:0]
	stop := true
	for i := range rows {
		if rows[i].Digest != rows[0].Digest {
			return nil, &DivergenceError{Rank: i, Want: rows[0].Digest, Got: rows[i].Digest, Dump: l.Dump()}
		}
		l.rows = append(l.rows, rows[i].Row)
		stop = stop && rows[i].Flags&FlagDone != 0
	}
	adprouter.Decide(l.rows, l.pad, &l.plan)
	l.states = adprouter.States(l.rows, l.states)
	s := &l.step
	s.Forward, s.Pad, s.Held = l.plan.Runs(), l.plan.Pad[l.cfg.Rank], l.plan.Held
	s.Gather, s.Stop = gather, stop && !gather
	if s.Held {
		l.stats.Held++
		if s.Batch != nil && l.load.CtxRequests > 0 {
			s.Batch = l.core.Hold()
		}
	}
	for i := range rows {
		s.RankRows[i] = int(rows[i].GenTokens)
		if !s.Held {
			s.RankRows[i] += int(rows[i].CtxTokens)
		}
	}
	if s.Forward {
		l.stats.Steps++
		if s.Pad {
			l.stats.Padded++
		}
	}
	return s, nil
}

// Apply gives the core the outcome of its batch.
func (l *Rank) Apply(now time.Duration, r executor.Result) { l.core.Apply(now, r) }

// Effects is what the core wants done; it must be fetched through the rank,
// which follows its own requests by it.
func (l *Rank) Effects() *executor.Effects {
	fx := l.core.Effects()
	for _, b := range fx.Borrowed {
		if key, ok := l.mine[b.ID]; ok {
			l.out.Moved = append(l.out.Moved, Moved{Key: key, OK: b.OK, Request: b.ID, Pulled: b.Pulled})
		}
	}
	for _, id := range fx.Retired {
		delete(l.mine, id)
	}
	return fx
}

// Fates is what the driver has to answer for since the last call; it is valid
// until the next one.
func (l *Rank) Fates() Fates {
	f := l.fates
	l.fates = Fates{}
	return f
}

// Quiet reports that the iteration did nothing and the next one has nothing to
// do before an event or deadline: rank 0 may wait.
func (l *Rank) Quiet() bool {
	if l.step.Forward || l.stirs || !l.out.Empty() || l.unprobed() {
		return false
	}
	// That it has nothing left since the last row must be told.
	return !l.draining || l.done || !l.drained(l.core.Load())
}

// NextDeadline is when the rank needs an iteration without an event.
func (l *Rank) NextDeadline() (time.Duration, bool) {
	at, ok := l.core.NextDeadline()
	if l.clock.due != never && (!ok || l.clock.due < at) {
		return l.clock.due, true
	}
	return at, ok
}

// drained reports whether a draining rank has nothing left.
func (l *Rank) drained(load executor.Load) bool {
	return l.draining && l.queue.Len() == 0 && len(l.mine)+len(l.moving) == 0 &&
		load.Active+load.Retiring+load.Transfer == 0 && l.out.Empty()
}

// Check proves what the rank must keep true, for tests.
func (l *Rank) Check() error {
	if len(l.waiting) != l.queue.Len() {
		return fmt.Errorf("lockstep: %d arrivals wait, the queue has %d", len(l.waiting), l.queue.Len())
	}
	if err := l.router.Check(); err != nil {
		return err
	}
	return l.core.Check()
}
