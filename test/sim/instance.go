package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// InstanceConfig is an instance of attention-data-parallel ranks.
type InstanceConfig struct {
	Core       executor.Config // of every rank; Rank is set
	Step       lockstep.Config // of every rank; Rank and Balance are set
	NewBalance func() *adprouter.Balance
}

// Instance is all ranks of one instance, driven in lockstep by one goroutine over
// an exchange in memory, as the real driver does it in several. Every iteration
// proves what ranks must agree on and what each must keep.
type Instance struct {
	Now   time.Duration
	Ranks []*Member
	Log   Log

	// Fault hooks; all may be nil. FailStep fails a rank's batch, VoidStep takes
	// it back before the exchange, Tamper changes what one rank receives.
	FailStep func(rank int) error
	VoidStep func(rank int) bool
	BadToken func(rank int) bool
	Tamper   func(to int, d []lockstep.Delivery)
	// CheckEvery proves the cores' invariants in every n-th iteration, 0 = in all.
	CheckEvery uint64

	cfg    InstanceConfig
	tracks map[request.ID]*Track // without a final event, or not retired
	live   int                   // choices of those without a final event
	aborts map[transfer.ID]int   // answers that are due
	mail   bool                  // rank 0 has something for the next delivery

	entering int      // requests of the next delivery
	cancels  []*Track // must end in this iteration
	changes  int      // iterations in which something happened
	events   events
	number   uint64
	idle     int // iterations in a row that changed nothing
	changed  bool
	stopped  bool
	paths    *paths
	err      error
}

// Member is one rank of an Instance.
type Member struct {
	*Worker
	Lock *lockstep.Rank

	row  lockstep.Row
	out  lockstep.Delivery
	step *lockstep.Step
	rows int // tokens of its batch
}

// Log counts what happened, so that tests can tell that something did.
type Log struct {
	Iterations, Forwards, Padded, Held, Gathers uint64
	Entered, Refused, Finished, Cancelled       uint64
	Failed                                      map[request.Code]uint64
	FullPads                                    uint64 // forwards in which a rank without a free block padded
	Full                                        uint64 // iterations with such a rank
	Moved, Pulls                                uint64
	Loans, Borrowed                             uint64 // loans that were pulled, and that came
	Aborts, Idles                               uint64
	Released                                    uint64 // leases elsewhere that were given up
	Heard                                       uint64 // messages of hand-overs heard in passes
	Met, Early                                  uint64 // generation-first: pullers that were claimed, pulls that came
}

func (l *Log) failed(code request.Code) {
	if l.Failed == nil {
		l.Failed = map[request.Code]uint64{}
	}
	l.Failed[code]++
}

// body is what the driver sends along with a request.
type body struct {
	req    *request.Request
	handle *transfer.Handle
	track  *Track

	entered time.Duration
}

// NewInstance makes an instance whose byte paths are driven by seed.
func NewInstance(cfg InstanceConfig, seed uint64) (*Instance, error) {
	in := &Instance{cfg: cfg, tracks: map[request.ID]*Track{}, aborts: map[transfer.ID]int{}}
	in.paths = newPaths(in, rand.New(rand.NewPCG(seed, 7)))
	for i := range cfg.Step.Router.Ranks {
		core, step := cfg.Core, cfg.Step
		core.Rank, step.Rank = i, i
		w, err := NewWorker(core)
		if err != nil {
			return nil, err
		}
		if cfg.NewBalance != nil {
			step.Balance = cfg.NewBalance()
		}
		l, err := lockstep.New(step, w.Core)
		if err != nil {
			return nil, err
		}
		w.fetch = l.Effects
		w.OnEffects = func(e *executor.Effects) { in.effects(i, e) }
		in.Ranks = append(in.Ranks, &Member{Worker: w, Lock: l})
	}
	return in, nil
}

// Live is how many choices of requests have no final event yet.
func (in *Instance) Live() int { return in.live }

// fail keeps the first thing that must not be.
func (in *Instance) fail(format string, args ...any) {
	if in.err == nil {
		in.err = fmt.Errorf("sim: iteration %d: "+format, append([]any{in.Log.Iterations}, args...)...)
	}
}

// schedule lets an event happen at its time.
func (in *Instance) schedule(e event) {
	in.number++
	e.n = in.number
	heap.Push(&in.events, e)
}

// Submit offers a request to rank 0. h is its hand-over, or nil.
func (in *Instance) Submit(r *request.Request, h *transfer.Handle) *Track {
	t := newTrack(r)
	lead := in.Ranks[0]
	if err := lead.Lock.Offer(r, h); err != nil {
		for _, c := range t.Choices() {
			c.Finish, c.Err, c.Retired = request.FinishError, err, true
		}
		in.Log.Refused++
		in.Log.failed(err.Code)
		if n := lead.Lock.Stats(in.Now).Queued + in.entering; err.Code == request.QueueFull && n < in.cfg.Step.MaxQueued {
			in.fail("the queue is full with %d requests", n)
		}
		return t
	}
	in.entering++
	in.tracks[r.ID] = t
	in.live += r.Answers()
	in.mail = true
	in.Log.Entered++
	if h != nil {
		in.paths.keptAlive(h)
	}
	if r.GenFirst && r.Kind == request.ContextOnly {
		in.paths.comes(r)
	}
	lead.Lock.Enter(in.Now, &lockstep.Arrival{
		Item: adprouter.NewItem(r, r.Answers()-1), Prompt: r.Prompt, Salt: r.CacheSalt, Deadline: r.Deadline, Handle: h, HandOver: h != nil,
		Body: body{req: r, handle: h, track: t, entered: in.Now},
	})
	return t
}

// Cancel ends a request as a client's disconnect does.
func (in *Instance) Cancel(id request.ID) {
	in.mail = true
	if t := in.tracks[id]; t != nil {
		in.cancelled(t)
	}
	in.Ranks[0].Lock.Cancel(id)
}

// Abort ends what goes on under an id of a hand-over. A request that no rank has
// is cancelled instead.
func (in *Instance) Abort(id transfer.ID) {
	in.mail = true
	for _, t := range in.tracks { // any order: at most one has the id
		if transfer.ID(t.Req.TransferID) != id {
			continue
		}
		in.cancelled(t)
		if !slices.ContainsFunc(in.Ranks, func(m *Member) bool { return m.Tracks[t.Req.ID] != nil }) {
			in.Ranks[0].Lock.Cancel(t.Req.ID)
			return
		}
	}
	in.aborts[id] += len(in.Ranks)
	in.Ranks[0].Lock.Abort(id)
}

// cancelled notes that a request must end in the iteration that comes.
func (in *Instance) cancelled(t *Track) {
	for _, c := range t.Choices() {
		c.Cancel = true
		in.cancels = append(in.cancels, c)
	}
}

// Drain begins an orderly end.
func (in *Instance) Drain() {
	in.mail = true
	in.Ranks[0].Lock.Drain()
}
