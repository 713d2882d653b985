package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Net says how the fake network treats messages.
type Net struct {
	MaxDelay   time.Duration // each message takes 0..MaxDelay
	Lose       float64       // probability
	Repeat     float64
	BlockTime  time.Duration // to move one block
	Steady     bool          // messages arrive and blocks move while a step runs, not all at its end
	Deaf       bool          // keep-alives, data as one too, do not arrive
	ReadOn     bool          // the ctx worker goes on serving after the lease ended
	StopTime   time.Duration // from StopPull until the byte path is quiet
	AttachTime time.Duration // the byte path gives up on an answer after this
	Moves      int           // between tiers, in a tick at most; 0 = any number
	MoveFail   float64       // probability
	MoveTime   time.Duration // that a core is told one took
	Stuck      time.Duration // no move ends before this time
}

// Session is one client request that is split over both workers.
type Session struct {
	Prompt    []int32
	MaxTokens int
	N         int // choices, 0 = 1
	Salt      string
	Talk      string // its conversation
	Sampling  request.Sampling
	ID        request.ID
	Ctx, Gen  *Track
	NoGen     bool    // the frontend is gone: no gen leg follows
	Emitted   bool    // the frontend shows the first token itself
	GenFirst  bool    // both legs start together
	Alone     bool    // nobody ends the other leg when one fails
	Before    []int32 // what the client had when the gen leg broke that Gen goes on for
	cancelled bool
}

// Tokens returns what the client got of a choice over both legs.
func (s *Session) Tokens(choice int) []int32 {
	out := slices.Clone(s.Before)
	if s.Before == nil && s.Ctx != nil && (s.Gen == nil || s.Emitted) {
		out = append(out, s.Ctx.Choices()[choice].Tokens...)
	}
	if s.Gen != nil {
		out = append(out, s.Gen.Choices()[choice].Tokens...)
	}
	return out
}

// Cluster is one ctx and one gen worker, a network and a clock. Ctx and Gen may
// be the same mixed worker.
type Cluster struct {
	Now      time.Duration
	Ctx, Gen *Worker
	Net      Net
	Step     time.Duration // what a launched step takes
	Sessions []*Session
	Moved    int // blocks moved by pulls
	Early    int // pulls that began before the end of the prefill
	Shelved  int // between tiers

	rng     *rand.Rand
	open    []*Session // without a gen leg yet
	both    []*Session // generation-first, whose legs run
	events  events
	number  uint64
	serving map[transfer.ID]bool
	coming  map[transfer.ID]transfer.Peer // who reads a prompt that is still computed
	pulls   map[transfer.ID]*puller
	started []*puller // all pulls that may be under way
	peers   transfer.Peer
	err     error
}

type event struct {
	at time.Duration
	n  uint64
	do func()
	// early lets a rank of an Instance hear of it in its pass.
	early bool
}

// events is a heap by time, then order of sending.
type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}

func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// NewCluster makes a cluster whose network is driven by seed.
func NewCluster(ctx, gen *Worker, seed uint64) *Cluster {
	c := &Cluster{
		Ctx: ctx, Gen: gen, Step: 10 * time.Millisecond, rng: rand.New(rand.NewPCG(seed, 0)),
		serving: map[transfer.ID]bool{}, coming: map[transfer.ID]transfer.Peer{}, pulls: map[transfer.ID]*puller{},
		Net: Net{MaxDelay: time.Millisecond, BlockTime: time.Millisecond, AttachTime: 10 * time.Second},
	}
	ctx.OnEffects = c.effects
	gen.OnEffects = c.effects
	return c
}

// at schedules do.
func (c *Cluster) at(t time.Duration, do func()) {
	c.number++
	heap.Push(&c.events, event{at: t, n: c.number, do: do})
}

// send delivers a message: late, twice or not at all.
func (c *Cluster) send(do func()) {
	times := 1
	if c.rng.Float64() < c.Net.Lose {
		times = 0
	} else if c.rng.Float64() < c.Net.Repeat {
		times = 2
	}
	for range times {
		c.at(c.Now+time.Duration(c.rng.Int64N(int64(c.Net.MaxDelay)+1)), do)
	}
}

// Start submits a session's ctx leg.
func (c *Cluster) Start(s *Session) {
	c.Sessions = append(c.Sessions, s)
	if s.GenFirst {
		c.startBoth(s)
		return
	}
	c.open = append(c.open, s)
	s.Ctx = c.Ctx.Submit(c.Now, s.contextLeg(), nil)
}

func (s *Session) contextLeg() *request.Request {
	return &request.Request{
		ID: s.ID, Kind: request.ContextOnly, Prompt: s.Prompt, MaxTokens: s.MaxTokens, Choices: s.N, Sampling: s.Sampling,
		CacheSalt: s.Salt, ConversationID: s.Talk, TransferID: int64(s.ID) + 1, GenFirst: s.GenFirst,
	}
}

// Cancel ends both legs of a session, as a client's disconnect does.
func (c *Cluster) Cancel(s *Session) {
	s.cancelled = true
	for _, leg := range []struct {
		w *Worker
		t *Track
	}{{c.Ctx, s.Ctx}, {c.Gen, s.Gen}} {
		if leg.t != nil {
			leg.w.Core.Cancel(c.Now, leg.t.Req.ID)
			leg.w.flush()
		}
	}
}

// genID keeps ids of both legs apart, for one worker may have both.
func genID(id request.ID) request.ID { return id + 1<<32 }

// follow submits the gen legs of sessions whose ctx leg was answered.
func (c *Cluster) follow() {
	keep := c.open[:0]
	for _, s := range c.open {
		switch {
		case s.cancelled || s.Ctx.Finish != request.Running && s.Ctx.Handle == nil:
		case s.NoGen || s.Ctx.Handle == nil:
			keep = append(keep, s)
		default:
			c.startGen(s)
		}
	}
	c.open = keep
}

func (c *Cluster) startGen(s *Session) {
	r := *s.Ctx.Req
	r.ID, r.Kind, r.FirstEmitted = genID(s.ID), request.GenerationOnly, s.Emitted
	for _, c := range s.Ctx.Choices() {
		for _, t := range c.Tokens {
			r.FirstTokens = append(r.FirstTokens, request.Token{ID: t})
		}
	}
	s.Gen = c.Gen.Submit(c.Now, &r, s.Ctx.Handle)
}

// Tick delivers what is due and runs one iteration of each worker; if nothing
// ran, the clock moves to the next event or deadline. It reports false when
// nothing will ever happen again.
func (c *Cluster) Tick() (bool, error) {
	c.deliver()
	c.follow()
	c.supervise()
	busy := false
	workers := c.workers()
	for _, w := range workers {
		ran, err := w.Step(c.Now)
		if err != nil {
			return false, err
		}
		busy = busy || ran || c.tiers(w)
	}
	c.follow()
	if c.err != nil {
		return false, c.err
	}
	if busy {
		c.Now += c.Step
		return true, nil
	}
	next, ok := c.next(workers)
	c.Now = max(c.Now, next)
	return ok, nil
}

// tiers lets moves between a worker's tiers end.
func (c *Cluster) tiers(w *Worker) bool {
	if c.Now < c.Net.Stuck {
		return false
	}
	n := len(w.shelf.queue)
	if c.Net.Moves > 0 {
		n = min(n, 1+c.rng.IntN(c.Net.Moves))
	}
	return c.pump(w, n)
}

// Settle ticks until nothing happens any more.
func (c *Cluster) Settle(limit int) error {
	for range limit {
		more, err := c.Tick()
		if err != nil || !more {
			return err
		}
	}
	return fmt.Errorf("sim: still busy after %d ticks", limit)
}

func (c *Cluster) next(workers []*Worker) (at time.Duration, ok bool) {
	if len(c.events) > 0 {
		at, ok = c.events[0].at, true
	}
	for _, w := range workers {
		if d, has := w.Core.NextDeadline(); has && (!ok || d < at) {
			at, ok = d, true
		}
	}
	return at, ok
}

// deliver runs all events that are due, in order of time and sending.
func (c *Cluster) deliver() {
	now := c.Now
	for len(c.events) > 0 && c.events[0].at <= now {
		e := heap.Pop(&c.events).(event)
		if c.Net.Steady {
			c.Now = e.at
		}
		e.do()
	}
	c.Now = now
}

// effects carries out what a core wants of its byte paths.
func (c *Cluster) effects(e *executor.Effects) {
	for _, id := range e.Revoked {
		delete(c.serving, id)
	}
	for _, a := range e.Accepts {
		c.serving[a.ID] = true
		if a.Coming > 0 {
			c.coming[a.ID] = a.Peer
		}
		c.send(func() { c.pulls[a.ID].accepted(a) })
	}
	for _, r := range e.Rejects {
		c.parted(r.ID, r.Peer)
		c.send(func() { c.pulls[r.ID].end(r.Peer, r.Reason) })
	}
	for _, p := range e.Progress {
		if p.Whole {
			delete(c.coming, p.ID)
		}
		c.send(func() { c.pulls[p.ID].alive(p) })
	}
	for _, x := range e.Ends {
		c.parted(x.ID, x.Peer)
		c.send(func() { c.pulls[x.ID].ended(x) })
	}
	for _, d := range e.Dones {
		c.send(func() { c.pulls[d.ID].reply(d) })
	}
	for _, h := range e.KeepAlives {
		c.keepAlive(h.ID, h.Epoch)
	}
	for _, h := range e.Releases {
		c.send(func() {
			c.Ctx.Core.Release(c.Now, transfer.Release{ID: h.ID, Epoch: h.Epoch})
			c.Ctx.flush()
		})
	}
	for _, p := range e.Pulls {
		c.startPull(p)
	}
	for _, id := range e.StopPulls {
		c.pulls[id].stop()
	}
}

// parted ends the serving of blocks that a puller was to read before their lease.
func (c *Cluster) parted(id transfer.ID, peer transfer.Peer) {
	if c.coming[id] == peer {
		delete(c.coming, id)
		delete(c.serving, id)
	}
}

func (c *Cluster) keepAlive(id transfer.ID, epoch uint32) {
	if c.Net.Deaf {
		return
	}
	c.send(func() {
		c.Ctx.Core.KeepAlive(c.Now, transfer.KeepAlive{ID: id, Epoch: epoch})
		c.Ctx.flush()
	})
}
