package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// GroupConfig makes an engine of attention-data-parallel ranks.
type GroupConfig struct {
	Config
	// Ranks are those of this process; Comm.Size is the number of all.
	Ranks comm.Span
	// Addr is where the ranks of several processes meet: the process of rank 0
	// listens there. Empty: all ranks are here.
	Addr string
	Comm comm.Config
	// Step says how requests are placed; Rank is filled in here. NewBalance makes
	// each rank's balancer, nil = none.
	Step       lockstep.Config
	NewBalance func() *adprouter.Balance
}

// Member is what one rank of this process runs on.
type Member struct {
	Device Device
	// Transport may be nil for workers without transfer.
	Transport Transport
}

// group is the part of an instance's ranks that lives in this process.
type group struct {
	e       *Engine
	cfg     GroupConfig
	comm    *comm.Group
	members []*member

	mu     sync.Mutex
	subs   map[request.ID]*submission // accepted and not placed yet; the leader's process
	remote map[request.ID]*submission // placed in another process
	aborts map[transfer.ID]*abortWait
}

// abortWait collects the ranks' answers to an abort.
type abortWait struct {
	replies []chan executor.AbortState
	left    int
	state   executor.AbortState
}

// member is one rank of a group.
type member struct {
	*rank
	g    *group
	lock *lockstep.Rank
	comm comm.Comm
	iter uint64

	own     []int // rows of this rank alone, by rank
	rows    []lockstep.Row
	payload []byte
	alarm   *time.Timer // wakes the instance for this rank's deadline
	posted  time.Duration
	table   []comm.Record // of the last exchange, for reports
}

// NewGroup makes an engine of the ranks of this process. It needs Connect before
// Run.
func NewGroup(cfg GroupConfig, members []Member) (*Engine, error) {
	if len(members) != cfg.Ranks.Len() {
		return nil, fmt.Errorf("runner: %d members for %v", len(members), cfg.Ranks)
	}
	e := newEngine(cfg.Config)
	g := &group{
		e: e, cfg: cfg, subs: map[request.ID]*submission{}, remote: map[request.ID]*submission{},
		aborts: map[transfer.ID]*abortWait{},
	}
	for i, m := range members {
		id := cfg.Ranks.First + i
		coreCfg := cfg.Core
		coreCfg.Rank = id
		core, err := executor.New(coreCfg)
		if err != nil {
			return nil, err
		}
		step := cfg.Step
		step.Rank = id
		if step.MaxBytes = gatherBytes; cfg.Comm.MaxPayload > 0 {
			step.MaxBytes = min(gatherBytes, int(cfg.Comm.MaxPayload/2))
		}
		if cfg.NewBalance != nil {
			step.Balance = cfg.NewBalance()
		}
		lock, err := lockstep.New(step, core)
		if err != nil {
			return nil, err
		}
		r := newRank(id, core, m.Device, m.Transport, cfg.Info.Vocab, e.log)
		r.effects = lock.Effects
		if err := e.add(r, nil); err != nil {
			e.bury(err)
			return nil, err
		}
		r.retired = g.retired
		g.members = append(g.members, &member{rank: r, g: g, lock: lock})
		e.status.set(id, RankStats{Stats: core.Stats()}, e.Now())
	}
	e.group = g
	return e, nil
}

// Connect brings the ranks of all processes together. It returns when all have
// come, or with an error that names those that did not.
func (e *Engine) Connect(ctx context.Context) error {
	g := e.group
	if g == nil {
		return nil
	}
	c := g.cfg.Comm
	c.OnStall = func(s comm.Stall) {
		e.log.Warn("ranks keep the others waiting", "missing", s.Missing, "collective", s.Op.String(), "iter", s.Iter, "waited", s.Waited.Round(time.Millisecond))
	}
	c.Work = func() (n uint64) {
		for _, m := range g.members {
			n += m.device.Progress()
		}
		return n
	}
	c.OnPost = g.posted
	group, err := connect(ctx, g.cfg.Addr, g.cfg.Ranks, c, e.log)
	if err != nil {
		return err
	}
	g.comm = group
	for _, m := range g.members {
		m.comm = group.Rank(m.id)
	}
	return nil
}

// leads reports whether this process has rank 0.
func (g *group) leads() bool { return g.cfg.Ranks.First == 0 }

// spans reports whether other processes have ranks.
func (g *group) spans() bool { return g.cfg.Ranks.Len() < g.cfg.Comm.Size }

func (g *group) wake() {
	if g.comm != nil {
		g.members[0].comm.Wake()
	}
}

// run drives all ranks of this process and returns the first error of the group.
func (g *group) run(ctx context.Context) error {
	if g.comm == nil {
		return errors.New("runner: Run before Connect")
	}
	errs := make(chan error, len(g.members))
	for _, m := range g.members {
		go func() { errs <- m.run(ctx) }()
	}
	first, all := g.await(errs)
	if first != nil && errors.Is(first, comm.ErrTimeout) || !all {
		g.e.log.Error("a rank is stuck", "error", first)
		g.e.dump("a rank is stuck", true)
	}
	if g.e.stuck.Store(!all); !all {
		return first // its goroutine may touch anything: the process has to end
	}
	_ = g.comm.Close()
	if ctx.Err() != nil {
		return nil
	}
	return first
}

// partingTime is how long the ranks have to come back once one has failed.
const partingTime = 5 * time.Second

// await returns the first error of the ranks, and whether all of them came back: a
// rank that is stuck in its device never does.
func (g *group) await(errs <-chan error) (first error, all bool) {
	var limit <-chan time.Time
	for range g.members {
		select {
		case err := <-errs:
			if err != nil && first == nil {
				first, limit = err, time.After(partingTime)
			}
		case <-limit:
			return first, false
		}
	}
	return first, true
}

// run drives one rank to the end of the instance.
func (m *member) run(ctx context.Context) (err error) {
	m.begin()
	m.attend = func() { m.hear(m.g.e.Now()) }
	defer func() { m.side.close() }()
	defer func() {
		if p := recover(); p != nil {
			err = m.died(p, debug.Stack())
		}
		if m.alarm != nil {
			m.alarm.Stop()
		}
		if err != nil {
			m.comm.Fail(err) // the peers hear of it at once
		}
	}()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		stop, err := m.iterate(ctx)
		switch {
		case err != nil:
			return err
		case stop:
			// Nobody closes the group before all have seen the last table.
			return m.comm.Barrier(ctx)
		}
		if err := m.core.Fatal(); err != nil {
			return fmt.Errorf("rank %d: engine core: %w", m.id, err)
		}
		if m.id == 0 && m.lock.Quiet() {
			m.wait(ctx)
		}
	}
}

// iterate is one iteration; see package lockstep. stop is the orderly end.
func (m *member) iterate(ctx context.Context) (stop bool, err error) {
	e := m.g.e
	m.iter++
	if m.id == 0 {
		m.read()
	}
	m.hear(e.Now())
	began := e.Now()
	b := m.lock.Plan(began)
	sched := e.Now() - began
	m.times.sched.add(sched)
	m.carry()
	m.publish(e.Now())
	if b != nil {
		if err := m.device.Check(m.ownRows(m.fill(b))); err != nil {
			m.log.Error("a planned batch cannot run", "rank", m.id, "error", err)
			m.lock.Void(e.Now(), err)
			m.carry()
		}
	}
	step, err := m.exchange(ctx)
	if err != nil || step.Stop {
		return step != nil && step.Stop, err
	}
	if step.Forward {
		if err := m.pass(step, sched); err != nil {
			return false, err
		}
	}
	deliveries, err := m.gather(ctx, step)
	if err != nil {
		return false, err
	}
	for _, t := range m.lock.Route(e.Now(), deliveries) {
		if err := m.accept(&t); err != nil {
			return false, err
		}
	}
	m.carry()
	m.answer()
	m.report(step.Forward)
	return false, nil
}

// ownRows lets a batch be checked before the rows of the others are known.
func (m *member) ownRows(b *tensor.Batch) *tensor.Batch {
	if m.own == nil {
		m.own = make([]int, m.g.cfg.Comm.Size)
	}
	m.own[m.id] = b.Rows()
	b.RankRows = m.own
	return b
}

// exchange tells the others what the rank has and decides what all do.
func (m *member) exchange(ctx context.Context) (*lockstep.Step, error) {
	row, out := m.lock.Row()
	var err error
	if m.payload, err = encodeDelivery(m.payload[:0], out, m.encodeHandle); err != nil {
		return nil, err
	}
	began := m.g.e.Now()
	if m.table, err = m.comm.Exchange(ctx, record(m.iter, m.id, &row, len(m.payload))); err != nil {
		return nil, err
	}
	m.times.exchange.add(m.g.e.Now() - began)
	m.rows = m.rows[:0]
	gather := false
	for i := range m.table {
		m.rows = append(m.rows, rowOf(&m.table[i]))
		gather = gather || m.table[i].PayloadBytes > 0
	}
	step, err := m.lock.Decide(m.rows, gather)
	var diverged *lockstep.DivergenceError
	if errors.As(err, &diverged) {
		m.log.Error("the ranks' routing states differ", "rank", m.id, "iter", m.iter, "error", err, "state", diverged.Dump)
		return nil, fmt.Errorf("%w: iteration %d: %w", comm.ErrDivergence, m.iter, err)
	}
	return step, err
}

// pass runs the forward, with or without own rows. Check has judged the batch, so
// a pass that fails has left the peers in the middle of it: that ends the group.
// sched is how long it took to plan.
func (m *member) pass(step *lockstep.Step, sched time.Duration) error {
	m.fill(step.Batch).RankRows = step.RankRows
	started := m.clock()
	res, ran := m.forward(step.Batch)
	if !ran {
		return fmt.Errorf("rank %d: %w", m.id, res.Err)
	}
	if step.Batch != nil {
		iter, began := step.Batch.Iter, m.clock()
		m.lock.Apply(began, res)
		m.carry()
		took := m.clock() - began
		m.times.apply.add(took)
		m.core.Recorder().Time(iter, sched, began-started, took)
	}
	return nil
}

// gather fetches everybody's delivery, if anybody has one.
func (m *member) gather(ctx context.Context, step *lockstep.Step) ([]lockstep.Delivery, error) {
	if !step.Gather {
		return nil, nil
	}
	parts, err := m.comm.Gather(ctx, m.payload)
	if err != nil {
		return nil, err
	}
	out := make([]lockstep.Delivery, len(parts))
	for i, part := range parts {
		if out[i], err = decodeDelivery(part, m.decodeHandle); err != nil {
			return nil, fmt.Errorf("rank %d at iteration %d: %w", i, m.iter, err)
		}
	}
	return out, nil
}

func (m *member) encodeHandle(h *transfer.Handle) []byte {
	if m.transport == nil {
		return nil // nobody can fetch anything
	}
	return m.transport.EncodeHandle(h)
}

func (m *member) decodeHandle(b []byte) (*transfer.Handle, error) {
	if m.transport == nil {
		return nil, errors.New("a handle, but this rank has no transport")
	}
	return m.transport.DecodeHandle(b)
}

// wait lets rank 0 rest until there is mail, a wake of any rank or a deadline.
func (m *member) wait(ctx context.Context) {
	e := m.g.e
	d := e.cfg.Idle
	if at, ok := m.lock.NextDeadline(); ok {
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
	case <-m.comm.Woken():
	case <-t.C:
	case <-ctx.Done():
	case <-drain:
	case <-m.g.comm.Done():
	}
}
