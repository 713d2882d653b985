package des

import (
	"time"

	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/transfer"
	"tandem/test/bench/profile"
)

// forward is the time of a pass of all ranks: that of the slowest.
func (in *instance) forward() time.Duration {
	most := 0.0
	for _, r := range in.ranks {
		t := r.seconds(r.step.Batch)
		if in.sim.measuring && r.step.Batch != nil {
			r.Rank.Busy += t
		}
		most = max(most, t)
	}
	wait := seconds(most) + in.g.Collective
	if in.sim.measuring {
		for _, r := range in.ranks {
			r.Rank.Passing += wait.Seconds()
		}
	}
	return wait
}

// alone is the iteration of a worker of one rank.
func (in *instance) alone() {
	r := in.ranks[0]
	b := r.core.Plan(in.sim.now)
	r.carry()
	if in.sim.measuring {
		load := r.core.Load()
		r.observe(&lockstep.Row{Waiting: uint32(load.Waiting), FreeBlocks: uint32(load.FreeBlocks)})
	}
	if b == nil {
		if len(in.mail) > 0 {
			in.again(idlePause)
			return
		}
		in.sleep()
		return
	}
	t := r.seconds(b)
	if in.sim.measuring {
		r.Rank.Busy += t
		r.Rank.Passing += t
		r.Rank.Forwards++
	}
	in.passing = true
	in.sim.after(seconds(t), in.lively(func() {
		in.passing = false
		r.core.Apply(in.sim.now, r.results(b))
		r.carry()
		in.again(0)
	}))
}

// seconds is the time of a batch by the profile; without rows the rank pads,
// with one row.
func (r *rank) seconds(b *executor.Batch) float64 {
	p := profile.Point{GenRequests: 1}
	if b != nil {
		p.GenRequests = 0
		for i := range b.Rows {
			row := &b.Rows[i]
			n := len(row.Tokens)
			if row.Context {
				p.CtxTokens += n
				p.CtxPrior += n * row.Pos
				continue
			}
			p.GenRequests++
			p.GenContext += row.Pos + n
		}
	}
	t := r.in.g.Cost.Seconds(p)
	if r.in.sim.now < r.in.sim.cfg.Heat {
		t = float64(t / heated)
	}
	if pace := r.in.g.Pace; pace != nil && b != nil {
		t = float64(t * pace(r.in.index, p))
	}
	return float64(t * r.slow)
}

// heated is how many times as fast devices are during Config.Heat.
const heated = 100

// results are the tokens of a batch: a pure function of the request and index.
func (r *rank) results(b *executor.Batch) executor.Result {
	r.draws = r.draws[:0]
	for i := range b.Rows {
		row := &b.Rows[i]
		var s executor.Sampled
		if row.Sample {
			s.Token.ID = token(row.Request.Sampling.Seed, row.Index)
		}
		r.draws = append(r.draws, s)
	}
	return executor.Result{Sampled: r.draws}
}

// accept submits what the router gave to this rank.
func (r *rank) accept(t *lockstep.Taken) {
	l := t.Body.(*leg)
	h := l.handle
	if h == nil {
		h = t.Lent
	}
	l.placed(r.id, t.Placed.Reason.String())
	r.core.Submit(r.in.sim.now, l.req, h)
	r.carry()
}

// carry does what the core asks for.
func (r *rank) carry() {
	var fx *executor.Effects
	if r.lock != nil {
		fx = r.lock.Effects()
	} else {
		fx = r.core.Effects()
	}
	s, in := r.in.sim, r.in
	r.copies(fx.Moves)
	for i := range fx.Outputs {
		o := &fx.Outputs[i]
		if l := in.legs[o.Request.ID]; l != nil {
			if o.Finish != request.Running {
				delete(in.legs, o.Request.ID)
			}
			l.output(*o)
		}
	}
	for i := range fx.Pulls {
		s.pull(r, &fx.Pulls[i])
	}
	for _, id := range fx.StopPulls {
		s.stopPull(id)
	}
	for _, h := range fx.KeepAlives {
		s.keepAlive(h.ID, h.Epoch, h.Endpoint, h.Rank)
	}
	for i := range fx.Releases {
		s.release(&fx.Releases[i])
	}
	for i := range fx.Accepts {
		s.accepted(r, &fx.Accepts[i])
	}
	for _, m := range fx.Rejects {
		s.toPuller(m.Peer, func(p *puller) { p.fail(m.Reason) })
	}
	for _, m := range fx.Dones {
		s.toPuller(m.Peer, func(p *puller) { p.confirmed(m.OK) })
	}
	for _, m := range fx.Ends {
		s.toPuller(m.Peer, func(p *puller) { p.fail("ended") })
	}
	for _, m := range fx.Progress {
		s.toPuller(m.Peer, func(p *puller) { p.report(transfer.PullEvent{}) })
	}
}
