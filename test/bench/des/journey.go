package des

import (
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
	"tandem/serve/conversation"
	"tandem/serve/discovery"
	"tandem/serve/router"
)

// journey is one request at its frontend.
type journey struct {
	s       *Sim
	f       *frontend
	who     conversation.Resolved
	prompt  []int32
	seed    uint64 // of its output
	want    int    // output tokens
	rank    int    // that a wrapper names, -1 = none
	before  int    // prompt tokens of the turn before, whose blocks gen has
	exclude []string
	tries   int
	rec     Record
	got     []request.Token
	open    *leg
	over    bool
	done    func()
}

// leg is one of its parts at one instance.
type leg struct {
	j      *journey
	in     *instance
	req    *request.Request
	handle *transfer.Handle
	charge *router.Reservation
	gen    bool
}

// start sends the first leg.
func (j *journey) start() {
	j.rec.Send = j.s.now
	j.first()
}

// first places the ctx leg, or all of the request on a mixed worker.
func (j *journey) first() {
	s := j.s
	view, _ := s.cfg.Rules.Views(j.who)
	l := &leg{j: j}
	l.req = j.request(view)
	l.req.Kind, l.req.DPRank, l.req.DPRelax = request.Full, j.rank, true
	if s.cfg.Ctx.Core.Role == executor.Ctx {
		l.req.Kind = request.ContextOnly
	}
	j.send(l, j.f.ctx, s.ctx, view)
}

func (j *journey) request(view conversation.View) *request.Request {
	sp := request.DefaultSampling()
	sp.IgnoreEOS, sp.Seed, sp.Seeded = true, j.seed, true
	id := j.s.newID()
	if j.s.cfg.HideIDs {
		view = conversation.View{}
	}
	return &request.Request{
		ID: id, Prompt: j.prompt, MaxTokens: j.want, Sampling: sp, DPRank: -1,
		ConversationID: view.ConversationID, AffinityKey: view.AffinityKey, TransferID: int64(id),
	}
}

// send places a leg by a router and sends it there.
func (j *journey) send(l *leg, r router.Router, all []*instance, view conversation.View) {
	sel, err := r.Select(router.Request{
		RoutingID: view.RoutingID(), ConversationID: view.ConversationID, Tokens: j.prompt, MaxTokens: j.want,
		Generation: l.gen, Candidates: func() []discovery.Instance { return live(all) }, Exclude: j.exclude,
	})
	if err != nil {
		j.fail("no_servers")
		return
	}
	l.in, l.charge = j.s.byID[sel.Instance.ID], sel.Reservation
	if j.f.ranks != nil && !l.gen {
		l.nameRank()
	}
	if id := view.RoutingID(); j.s.cfg.ShareHomes && id != "" && sel.Outcome != router.Sticky && sel.Outcome != router.Overflow {
		j.settle(id, l)
	}
	j.open = l
	if l.gen {
		j.rec.Gen = l.in.index
	} else {
		j.rec.Ctx, j.rec.CtxWhy = l.in.index, string(sel.Outcome)
	}
	j.s.after(j.s.cfg.Net.Hop, func() {
		if l.in.dead {
			l.ended(executor.Output{Finish: request.FinishError, Err: request.Errorf(request.EngineDead, "the worker is gone")})
			return
		}
		l.in.legs[l.req.ID] = l // it is the worker's from now on
		l.in.tell(func() { l.in.submit(l) })
	})
}

// settle tells the other frontends of a conversation's new home.
func (j *journey) settle(id string, l *leg) {
	j.s.after(j.s.cfg.Net.Hop, func() {
		for _, f := range j.s.fronts {
			r := f.ctx
			if l.gen {
				r = f.gen
			}
			if k, ok := r.(router.Keeper); ok && f != j.f {
				k.Settle(id, l.in.ID)
			}
		}
	})
}

// placed notes the rank of a leg.
func (l *leg) placed(rank int, why string) {
	if l.gen {
		l.j.rec.GenRank, l.j.rec.GenWhy = rank, why
		return
	}
	l.j.rec.CtxRank, l.j.rec.RankWhy = rank, why
}

// output takes what a core says of a leg; the frontend hears it a hop later.
func (l *leg) output(o executor.Output) {
	o.Tokens = append([]request.Token(nil), o.Tokens...)
	l.j.s.after(l.j.s.cfg.Net.Hop, func() { l.heard(o) })
}

func (l *leg) heard(o executor.Output) {
	j := l.j
	if j.over || j.open != l {
		return
	}
	for _, t := range o.Tokens {
		j.token(t)
	}
	if o.Finish != request.Running {
		l.ended(o)
	}
}

// token is one that the client sees.
func (j *journey) token(t request.Token) {
	j.got = append(j.got, t)
	now := j.s.now
	switch len(j.got) {
	case 1:
		j.rec.First = now
	case 2:
		j.rec.Second = now
	}
	j.rec.Last = now
}

// ended goes on after the end of a leg.
func (l *leg) ended(o executor.Output) {
	j := l.j
	if j.over || j.open != l {
		return
	}
	j.open = nil
	if o.Err != nil || o.Finish == request.FinishCancelled {
		l.charge.Release(false)
		j.again(l, o.Err)
		return
	}
	l.charge.Release(true)
	if !l.gen {
		j.rec.Cached = o.Usage.CachedTokens
		j.rec.stages(o.Times)
	} else {
		j.rec.Room, j.rec.Pulled = o.Times.PullBegan-j.rec.Handed, o.Times.PullEnded-o.Times.PullBegan
	}
	if o.Handle == nil {
		j.finish("")
		return
	}
	j.rec.Handed = j.s.now
	j.s.took[o.Handle.ID] = o.Times.First - o.Times.Scheduled
	if len(j.s.gen) == 0 {
		j.ideal(o.Handle)
		return
	}
	j.second(o.Handle)
}

// again tries a leg on another instance, or gives up.
func (j *journey) again(l *leg, err *request.Error) {
	code := "cancelled"
	if err != nil {
		code = string(err.Code)
	}
	retry := err != nil && (err.Code == request.EngineDead || err.Code == request.Capacity)
	if !retry || j.tries >= j.s.cfg.Retries || len(j.got) > 0 && !l.gen {
		j.fail(code)
		return
	}
	j.tries++
	j.exclude = append(j.exclude, l.in.ID)
	j.got = j.got[:0]
	j.first()
}

// second sends the gen leg.
func (j *journey) second(h *transfer.Handle) {
	_, view := j.s.cfg.Rules.Views(j.who)
	l := &leg{j: j, gen: true, handle: h}
	l.req = j.request(view)
	l.req.Kind, l.req.TransferID, l.req.FirstEmitted = request.GenerationOnly, int64(h.ID), true
	l.req.FirstTokens = append(l.req.FirstTokens, j.got...)
	j.send(l, j.f.gen, j.s.gen, view)
}

// ideal lets a gen worker decode that has room for all, and what it decoded
// before.
func (j *journey) ideal(h *transfer.Handle) {
	s := j.s
	p := &puller{done: func(ok bool) {
		if j.over {
			return
		}
		if !ok {
			j.fail("transfer_failed")
			return
		}
		j.rec.Pulled = s.now - j.rec.Handed
		s.after(s.cfg.Ideal.Step, func() { j.decode() })
	}}
	p.order.Handle = *h
	have := min(j.before/s.cfg.Ctx.Core.BlockTokens, len(h.Hashes))
	s.attach(p, h.Hashes[:have])
}

// decode makes all tokens but the first in even steps.
func (j *journey) decode() {
	step, from := j.s.cfg.Ideal.Step, len(j.got)
	if j.over {
		return
	}
	j.rec.Second = j.s.now
	j.s.after(time.Duration(j.want-from-1)*step, func() {
		if j.over {
			return
		}
		for i := from; i < j.want; i++ {
			j.got = append(j.got, request.Token{ID: token(j.seed, i)})
		}
		j.rec.Last = j.s.now
		j.finish("")
	})
}

// cancel is the client going away.
func (j *journey) cancel() {
	if l := j.open; l != nil && !j.over {
		l.in.cancel(l.req.ID)
		l.charge.Release(false)
	}
	j.fail("cancelled")
}

func (j *journey) fail(code string) { j.finish(code) }

func (j *journey) finish(code string) {
	if j.over {
		return
	}
	j.over = true
	j.rec.End, j.rec.Error = j.s.now, code
	j.rec.In, j.rec.Out = len(j.prompt), len(j.got)
	j.s.res.add(j.s, &j.rec)
	j.done()
}
