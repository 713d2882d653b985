package runner

import (
	"errors"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// read moves rank 0's inbox into the next delivery.
func (m *member) read() {
	e, g := m.g.e, m.g
	select {
	case <-e.drain:
		if !e.status.draining() {
			e.status.setDraining()
			m.lock.Drain()
		}
	default:
	}
	e.in.take(&e.mail)
	now := e.Now()
	for _, s := range e.mail.new {
		m.enter(now, s)
	}
	for _, id := range e.mail.cancels {
		m.lock.Cancel(id)
	}
	for _, a := range e.mail.aborts {
		g.abort(m.lock, a)
	}
	clear(e.mail.new)
}

// arrivalBytes is what an arrival has at most in a payload beside what is counted,
// and gatherBytes what the arrivals of one iteration may have: more would hold all
// ranks up, or be more than a group passes on.
const (
	arrivalBytes = 64
	gatherBytes  = 8 << 20
)

// enter judges a request and gives it its place in the queue.
func (m *member) enter(now time.Duration, s *submission) {
	g, r := m.g, s.req
	if s.refused = m.lock.Offer(r, s.handle); s.refused != nil {
		close(s.done)
		return
	}
	a := &lockstep.Arrival{
		Item: adprouter.NewItem(r, r.Answers()-1), Prompt: r.Prompt, Salt: r.CacheSalt, Deadline: r.Deadline, Handle: s.handle, HandOver: s.handle != nil,
	}
	a.Bytes = arrivalBytes + 4*len(r.Prompt) + len(r.CacheSalt) + len(a.Item.Key)
	if g.spans() {
		body, err := encodeBody(r, s.opaque, now)
		if err != nil {
			s.refused = request.Errorf(request.Internal, "the request cannot be sent to another rank: %v", err)
			close(s.done)
			return
		}
		a.Body = body
		a.Bytes += len(body)
	}
	g.mu.Lock()
	g.subs[r.ID] = s
	g.mu.Unlock()
	g.e.status.add(r.ID)
	m.lock.Enter(now, a)
}

// take hands over the submission of a request that was placed or has ended.
func (g *group) take(id request.ID) *submission {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.subs[id]
	delete(g.subs, id)
	return s
}

// accept submits a request to the core of the rank that it was given.
func (m *member) accept(t *lockstep.Taken) error {
	now, id := m.g.e.Now(), t.Item.ID
	route := &Route{Rank: m.id, Reason: t.Placed.Reason.String()}
	if s := m.g.take(id); s != nil {
		h := s.handle
		if h == nil {
			h = t.Lent
		}
		s.stream.setRoute(route)
		m.submit(now, s, h)
		close(s.done)
		return nil
	}
	if m.g.leads() {
		return nil // its submitter was told already that it ended
	}
	data, _ := t.Body.([]byte)
	r, opaque, err := decodeBody(data, t.Prompt, t.Heard)
	if err != nil {
		return err
	}
	m.g.e.setTexts(r)
	h := t.Lent
	if len(opaque) > 0 {
		if m.transport == nil {
			return errors.New("a handle, but this rank has no transport")
		}
		if h, err = handleOf(m.transport, r, opaque); err != nil {
			return err
		}
	}
	m.adopt(now, r, h, route)
	return nil
}

// adopt submits a request whose client is at another process, and tells that
// whether the core has taken it.
func (m *member) adopt(now time.Duration, r *request.Request, h *transfer.Handle, route *Route) {
	far := &remote{m: m, id: r.ID, ends: make(finals, r.Answers())}
	m.addSink(r.ID, far)
	m.core.Submit(now, r, h)
	m.carry()
	far.open(route)
}

// answer carries out what the lockstep has to say besides the core's effects.
func (m *member) answer() {
	f := m.lock.Fates()
	for _, r := range f.Ended {
		err := request.Errorf(r.Code, "%s", endText(r.Code))
		if s := m.g.take(r.ID); s != nil {
			s.refused = err
			m.g.e.status.remove(r.ID)
			close(s.done)
		} else if !m.g.leads() {
			m.post(post{Kind: postPlaced, ID: r.ID, Err: err})
		}
	}
	for _, a := range f.Aborts {
		m.post(post{Kind: postAbort, Transfer: a.ID, State: a.State})
	}
	for _, h := range f.KeepAlives {
		m.transport.KeepAlive(*h, 0)
	}
}

func endText(code request.Code) string {
	switch code {
	case request.QueueTimeout:
		return "no rank had room in time; try again later"
	case request.DeadlineExceeded:
		return "the request's deadline passed while it waited for a rank"
	case request.Cancelled:
		return "cancelled while it waited for a rank"
	}
	return "the request could not be placed"
}

// abort ends what waits in the queue under the id, and asks all ranks, of which
// one may run an earlier request with the id.
func (g *group) abort(l *lockstep.Rank, a abort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.aborts[a.id]
	if w == nil {
		w = &abortWait{left: g.cfg.Comm.Size, state: executor.AbortUnknown}
		g.aborts[a.id] = w
		l.Abort(a.id)
	}
	w.replies = append(w.replies, a.reply)
	for id, s := range g.subs { // what is cancelled twice, in any order, is cancelled
		if s.req.Kind != request.Full && transfer.ID(s.req.TransferID) == a.id {
			l.Cancel(id)
			w.note(executor.AbortAborted)
		}
	}
}

// rankOf orders abort states: what is still going on counts most.
var rankOf = map[executor.AbortState]int{
	executor.AbortUnknown: 0, executor.AbortDone: 1, executor.AbortAborted: 2, executor.AbortSettling: 3,
}

// note takes in that something was found in a state.
func (w *abortWait) note(state executor.AbortState) {
	if rankOf[state] > rankOf[w.state] {
		w.state = state
	}
}

func (g *group) aborted(id transfer.ID, state executor.AbortState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.aborts[id]
	if w == nil {
		return
	}
	w.note(state)
	if w.left--; w.left > 0 {
		return
	}
	delete(g.aborts, id)
	for _, reply := range w.replies {
		reply <- w.state
	}
}

// bury answers everybody who still waits for a place or a remote rank.
func (g *group) bury() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.subs {
		s.refused = errDead()
		close(s.done)
	}
	for _, s := range g.remote {
		s.stream.fail(errDead())
	}
	clear(g.subs)
	clear(g.remote)
}

// retired forgets a request; the leader hears of those of other processes.
func (g *group) retired(id request.ID) {
	if g.leads() {
		g.e.status.remove(id)
		return
	}
	g.members[0].post(post{Kind: postRetired, ID: id})
}

// reportEvery bounds how often ranks of other processes send their figures.
const reportEvery = 200 * time.Millisecond

// report publishes the rank's figures, and sets an alarm for its next deadline if
// the instance is at rest.
func (m *member) report(ran bool) {
	now := m.g.e.Now()
	ls, load := m.lock.Stats(now), m.core.Load()
	st := RankStats{
		Stats: m.core.Stats(), Steps: ls.Steps, Padded: ls.Padded, Held: ls.Held, Placed: ls.Placed,
		Active: load.Active, QueuedWork: uint64(load.QueuedPrefill),
	}
	if m.id == 0 {
		m.g.e.status.setQueue(ls)
	}
	m.g.e.status.set(m.id, st, now)
	m.g.e.alarm(m.rank, &st.Stats)
	if !m.g.leads() && now-m.posted >= reportEvery || !m.g.leads() && !ran {
		m.posted = now
		m.post(post{Kind: postStats, Rank: m.id, Stats: &st})
	}
	if ran || m.id == 0 {
		return
	}
	if at, ok := m.lock.NextDeadline(); ok {
		if m.alarm == nil {
			m.alarm = time.AfterFunc(max(0, at-now), m.comm.Wake)
		} else {
			m.alarm.Reset(max(0, at-now))
		}
	}
	// It has something for the next gather, or an event came after it had listened
	// and the wake for that is spent already.
	if !m.lock.Quiet() || !m.events.empty() {
		m.comm.Wake()
	}
}
