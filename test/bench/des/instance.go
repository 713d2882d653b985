package des

import (
	"fmt"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/serve/discovery"
)

// instance is one worker of one or several ranks. Its loop is that of
// production's driver: what came since the last iteration, plans, exchange,
// forward of all ranks, routing.
type instance struct {
	sim   *Sim
	g     *Group
	index int // in its role
	listed
	ranks []*rank
	out   *link

	mail    []func() // for the next iteration
	running bool     // an iteration is under way
	passing bool     // its devices compute
	alarm   uint64   // of the sleep that ends by itself; others are void
	dead    bool
	deaf    bool // ends of hand-overs get lost
	legs    map[request.ID]*leg
	life    uint64 // starts of the process
	feed    feed
	fed     time.Duration // when frontends were told last
	flat    []lockstep.Delivery
	rows    []lockstep.Row
}

// listed is what frontends know of an instance.
type listed struct{ discovery.Instance }

// rank is one rank of an instance: a core, and the lockstep around it.
type rank struct {
	in    *instance
	id    int
	core  *executor.Core
	lock  *lockstep.Rank // nil: the instance has one rank, which runs alone
	step  *lockstep.Step
	draws []executor.Sampled
	slow  float64 // factor on its time
	link  *link   // to other ranks
	host  *link   // to and from its host
	Rank  RankStats
	seen  executor.Stats // when measuring began
}

func newInstance(s *Sim, g *Group, index int, gen bool) (*instance, error) {
	role, kind := discovery.Context, "ctx"
	if gen {
		role, kind = discovery.Generation, "gen"
	}
	in := &instance{sim: s, g: g, index: index}
	in.ID = fmt.Sprintf("%s-%d:8000", kind, index)
	in.URL = "http://" + in.ID
	in.Info = &discovery.ServerInfo{
		Role: role, TokensPerBlock: g.Core.BlockTokens, Namespace: g.Core.Namespace, MaxBatchSize: g.Core.MaxBatch,
		MaxNumTokens: g.Core.MaxNumTokens, MaxSeqLen: g.Core.MaxSeqLen, ADPSize: g.Ranks, KVEvents: g.Core.EventBuffer > 0,
	}
	in.out = &link{sim: s, band: s.cfg.Net.Bandwidth, most: s.cfg.Net.MaxSends}
	return in, in.start()
}

// start makes an empty process.
func (in *instance) start() error {
	in.life++
	info := *in.Info
	info.Incarnation = fmt.Sprintf("%s/%d", in.ID, in.life)
	in.Info = &info
	in.legs, in.mail, in.dead, in.running, in.passing = map[request.ID]*leg{}, nil, false, false, false
	in.ranks, in.feed = in.ranks[:0:0], feed{next: make([]uint64, in.g.Ranks), begun: make([]bool, in.g.Ranks)}
	router, _ := in.g.ADP.Router(in.g.Ranks, in.g.limit(), in.g.Core.BlockReuse)
	for i := range in.g.Ranks {
		cfg := in.g.Core
		cfg.Rank, cfg.Endpoint, cfg.Incarnation = i, in.ID, info.Incarnation
		core, err := executor.New(cfg)
		if err != nil {
			return err
		}
		r := &rank{in: in, id: i, core: core, slow: 1, Rank: RankStats{Placed: map[string]uint64{}}}
		r.link = &link{sim: in.sim, band: in.sim.cfg.Net.RankBand}
		r.host = &link{sim: in.sim, band: in.sim.cfg.Net.HostBand, most: 1}
		if in.g.Ranks > 1 || in.g.Lockstep {
			if r.lock, err = lockstep.New(lockstep.Config{
				Rank: i, Router: router, Balance: in.g.ADP.NewBalance(cfg.MaxBatch),
				CountInTransfer: in.g.ADP.CountInTransfer, MaxQueued: cfg.MaxQueued, QueueTimeout: cfg.QueueTimeout,
			}, core); err != nil {
				return err
			}
		}
		in.ranks = append(in.ranks, r)
	}
	return nil
}

// tell gives the instance something to hear at its next iteration, which is now
// unless one runs.
func (in *instance) tell(do func()) {
	if in.dead {
		return
	}
	in.mail = append(in.mail, do)
	if !in.running {
		in.alarm++
		in.running = true
		in.sim.after(0, in.lively(in.iterate))
	}
}

// transfer gives the instance a message of a hand-over to hear. Each rank hears those while its
// devices compute, as production's do: only what is new to the instance waits for the next iteration.
func (in *instance) transfer(do func()) {
	if in.passing && !in.dead {
		do()
		return
	}
	in.tell(do)
}

// lively wraps what must not happen to a process that has ended meanwhile.
func (in *instance) lively(do func()) func() {
	life := in.life
	return func() {
		if in.life == life && !in.dead {
			do()
		}
	}
}

// again begins the next iteration after a while.
func (in *instance) again(wait time.Duration) {
	in.running = true
	in.sim.after(wait, in.lively(in.iterate))
}

// sleep waits for mail or a deadline of a rank.
func (in *instance) sleep() {
	in.running = false
	var at time.Duration
	some := false
	for _, r := range in.ranks {
		due, ok := r.core.NextDeadline()
		if r.lock != nil {
			due, ok = r.lock.NextDeadline()
		}
		if ok && (!some || due < at) {
			at, some = due, true
		}
	}
	if !some {
		return
	}
	in.alarm++
	alarm := in.alarm
	in.sim.after(max(at-in.sim.now, 0), in.lively(func() {
		if in.alarm == alarm && !in.running {
			in.running = true
			in.iterate()
		}
	}))
}

// idlePause is what an iteration without a forward takes.
const idlePause = 100 * time.Microsecond

// iterate runs one iteration.
func (in *instance) iterate() {
	in.tellFrontends()
	for len(in.mail) > 0 {
		mail := in.mail
		in.mail = nil
		for _, do := range mail {
			do()
		}
	}
	if in.ranks[0].lock == nil {
		in.alone()
		return
	}
	for _, r := range in.ranks {
		r.lock.Plan(in.sim.now)
		r.carry()
	}
	in.exchange()
	if !in.ranks[0].step.Forward {
		in.route()
		in.rest(idlePause)
		return
	}
	in.pass(in.forward())
}

// pass ends the forward of all ranks after its time.
func (in *instance) pass(wait time.Duration) {
	in.passing = true
	in.sim.after(wait, in.lively(func() {
		in.passing = false
		for _, r := range in.ranks {
			if b := r.step.Batch; b != nil {
				r.lock.Apply(in.sim.now, r.results(b))
				r.carry()
			}
		}
		in.route()
		in.rest(0)
	}))
}

// rest goes on after a pause, or sleeps when no rank has anything to do.
func (in *instance) rest(pause time.Duration) {
	for _, r := range in.ranks {
		if !r.lock.Quiet() {
			in.again(pause)
			return
		}
	}
	if len(in.mail) > 0 {
		in.again(pause)
		return
	}
	in.sleep()
}

// exchange shows all rows to all ranks.
func (in *instance) exchange() {
	in.rows, in.flat = in.rows[:0], in.flat[:0]
	gather := false
	for _, r := range in.ranks {
		row, out := r.lock.Row()
		if !out.Empty() {
			row.PayloadBytes, gather = 1, true
		}
		in.rows, in.flat = append(in.rows, row), append(in.flat, *out)
	}
	for i, r := range in.ranks {
		step, err := r.lock.Decide(in.rows, gather)
		if err != nil {
			panic(fmt.Sprintf("des: %s rank %d: %v", in.ID, i, err))
		}
		r.step = step
	}
	if in.sim.measuring {
		for i, r := range in.ranks {
			r.observe(&in.rows[i])
		}
	}
}

// route delivers what was gathered, and hands each rank what came to it.
func (in *instance) route() {
	var all []lockstep.Delivery
	if in.ranks[0].step.Gather {
		all = in.flat
	}
	for _, r := range in.ranks {
		for _, t := range r.lock.Route(in.sim.now, all) {
			r.accept(&t)
		}
		r.carry()
		fates := r.lock.Fates()
		for _, e := range fates.Ended {
			in.refused(e.ID, request.Errorf(e.Code, "in the queue"))
		}
		for _, h := range fates.KeepAlives {
			in.sim.keepAlive(h.ID, h.Epoch, h.Endpoint, h.Rank)
		}
		if err := r.core.Fatal(); err != nil {
			panic(fmt.Sprintf("des: %s rank %d: %v", in.ID, r.id, err))
		}
	}
}

// submit offers a leg to the instance.
func (in *instance) submit(l *leg) {
	r := l.req
	lead := in.ranks[0]
	if lead.lock == nil {
		l.placed(0, "alone")
		lead.core.Submit(in.sim.now, r, l.handle)
		lead.carry()
		return
	}
	if err := lead.lock.Offer(r, l.handle); err != nil {
		in.refused(r.ID, err)
		return
	}
	lead.lock.Enter(in.sim.now, &lockstep.Arrival{
		Item: adprouter.NewItem(r, r.Answers()-1), Prompt: r.Prompt, Salt: r.CacheSalt, Deadline: r.Deadline,
		Handle: l.handle, HandOver: l.handle != nil, Body: l,
	})
}

// refused ends a leg that reached no core.
func (in *instance) refused(id request.ID, err *request.Error) {
	if l := in.legs[id]; l != nil {
		delete(in.legs, id)
		l.ended(executor.Output{Request: l.req, Finish: request.FinishError, Err: err})
	}
}

// cancel ends a leg as a disconnect does.
func (in *instance) cancel(id request.ID) {
	in.tell(func() {
		if r := in.ranks[0]; r.lock != nil {
			r.lock.Cancel(id)
		} else {
			r.core.Cancel(in.sim.now, id)
			r.carry()
		}
	})
}
