package des

import (
	"fmt"
	"slices"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
	"tandem/serve/discovery"
	"tandem/serve/router"
)

// Sim is a run.
type Sim struct {
	cfg       Config
	now       time.Duration
	agenda    agenda
	ctx, gen  []*instance
	byID      map[string]*instance
	fronts    []*frontend
	clients   clients
	measuring bool
	res       Result

	peers      transfer.Peer
	pullers    map[transfer.Peer]*puller
	byTransfer map[transfer.ID]*puller
	took       map[transfer.ID]time.Duration // prefills whose blocks nobody has fetched
	ids        uint64
}

// frontend is one frontend's routers.
type frontend struct {
	ctx, gen router.Router
	ranks    router.Router // of a wrapper that names ranks, nil = none
}

// New makes the cluster of a valid Config.
func New(cfg Config) (*Sim, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Sim{
		cfg: cfg, byID: map[string]*instance{}, pullers: map[transfer.Peer]*puller{}, byTransfer: map[transfer.ID]*puller{},
		took: map[transfer.ID]time.Duration{},
	}
	for _, role := range []struct {
		g   *Group
		gen bool
		to  *[]*instance
	}{{&s.cfg.Ctx, false, &s.ctx}, {&s.cfg.Gen, true, &s.gen}} {
		for i := range role.g.Instances {
			in, err := newInstance(s, role.g, i, role.gen)
			if err != nil {
				return nil, err
			}
			s.byID[in.ID] = in
			*role.to = append(*role.to, in)
		}
	}
	for range cfg.Frontends {
		f := &frontend{}
		var err error
		if f.ctx, err = router.NewRouter(cfg.Ctx.Router); err != nil {
			return nil, err
		}
		if f.gen, err = router.NewRouter(cfg.Gen.Router); err != nil {
			return nil, err
		}
		if cfg.RankRouter.Type != "" {
			if f.ranks, err = router.NewRouter(cfg.RankRouter); err != nil {
				return nil, err
			}
		}
		s.fronts = append(s.fronts, f)
	}
	if err := s.clients.init(s); err != nil {
		return nil, err
	}
	s.faults()
	return s, nil
}

// Run simulates until the measured time is over, and in open loops until what
// was sent in it has ended. Watch, which may be nil, is called every so often
// of virtual time, with a figure of the present.
func (s *Sim) Run(every time.Duration, watch func(*Sim)) *Result {
	end := s.cfg.Warmup + s.cfg.Measure
	if s.cfg.Warmup == 0 {
		s.begin() // what comes at once is of the measured time
	} else {
		s.after(s.cfg.Warmup, s.begin)
	}
	if watch != nil {
		s.tick(every, watch)
	}
	s.clients.poll()
	for len(s.agenda.heap) > 0 && s.agenda.heap[0].at < end {
		s.next()
	}
	s.now = end
	s.close()
	for s.cfg.open() && s.clients.awaited > 0 && len(s.agenda.heap) > 0 && s.now < end+s.cfg.Measure {
		s.next()
	}
	s.res.lost(s)
	return &s.res
}

// Until is Run, which ends early with the error of stop. That is asked every second of virtual time; nil = never.
func (s *Sim) Until(stop func() error) (*Result, error) {
	if stop == nil {
		return s.Run(0, nil), nil
	}
	var err error
	res := s.Run(time.Second, func(s *Sim) {
		if err = stop(); err != nil {
			s.Stop()
		}
	})
	return res, err
}

// Stop ends a run early; what it has measured is not complete.
func (s *Sim) Stop() { s.agenda.heap = nil }

func (s *Sim) next() {
	e := s.agenda.take()
	s.now = e.at
	e.do()
}

func (s *Sim) after(wait time.Duration, do func()) { s.agenda.add(s.now+wait, do) }

func (s *Sim) tick(every time.Duration, watch func(*Sim)) {
	s.after(every, func() {
		s.tick(every, watch)
		watch(s)
	})
}

// begin starts the measured time.
func (s *Sim) begin() {
	s.measuring = true
	s.res.Start = s.now
	for _, in := range slices.Concat(s.ctx, s.gen) {
		for _, r := range in.ranks {
			r.mark()
		}
	}
}

// close ends the measured time.
func (s *Sim) close() {
	s.measuring = false
	s.res.close(s)
}

// live are the instances that a frontend may choose.
func live(all []*instance) []discovery.Instance {
	out := make([]discovery.Instance, 0, len(all))
	for _, in := range all {
		if !in.dead {
			out = append(out, in.Instance)
		}
	}
	return out
}

func (s *Sim) newID() request.ID {
	s.ids++
	return request.ID(s.ids)
}

// faults schedules what goes wrong.
func (s *Sim) faults() {
	for _, f := range s.cfg.Faults {
		all := s.ctx
		if f.Gen {
			all = s.gen
		}
		in := all[f.Instance]
		begin, end := s.fault(in, f)
		s.after(f.At, begin)
		if f.For > 0 {
			s.after(f.At+f.For, end)
		}
	}
}

func (s *Sim) fault(in *instance, f Fault) (begin, end func()) {
	switch f.Kind {
	case Kill:
		return func() { s.kill(in) }, func() {
			if err := in.start(); err != nil {
				panic(fmt.Sprintf("des: %s was made before: %v", in.ID, err))
			}
		}
	case SlowRank:
		return func() { in.ranks[f.Rank].slow = f.Factor }, func() { in.ranks[f.Rank].slow = 1 }
	case SlowLink:
		return func() { in.out.pace(s.cfg.Net.Bandwidth * f.Factor) }, func() { in.out.pace(s.cfg.Net.Bandwidth) }
	default:
		return func() { in.deaf = true }, func() { in.deaf = false }
	}
}

// kill ends a process: its legs fail, hand-overs break, and routers forget it.
func (s *Sim) kill(in *instance) {
	in.dead = true
	var broken []*puller
	for _, p := range s.pullers {
		if p.from == in || p.to != nil && p.to.in == in {
			broken = append(broken, p)
		}
	}
	slices.SortFunc(broken, func(a, b *puller) int { return int(a.peer) - int(b.peer) })
	for _, p := range broken {
		p.fail(transfer.RejectUnknown)
	}
	ids := make([]request.ID, 0, len(in.legs))
	for id := range in.legs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, f := range s.fronts {
		if in.Info.Role == discovery.Generation {
			f.gen.Forget(in.ID)
		} else {
			f.ctx.Forget(in.ID)
			in.forgetRanks(f)
		}
	}
	for _, id := range ids {
		in.refused(id, request.Errorf(request.EngineDead, "the worker is gone"))
	}
}
