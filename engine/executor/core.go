// Package executor is the pure core of one rank: it owns every request, its
// blocks and its deadlines. Inputs and the time go in; batches to run and
// effects to carry out come out. It has no goroutine, clock, device or socket,
// so the real driver, tests and the simulator run the same code.
package executor

import (
	"fmt"
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

var _ scheduler.Blocks = (*kvcache.Manager)(nil)

// Core is the engine of one rank. It is not safe for concurrent use: one
// goroutine owns it.
type Core struct {
	cfg Config
	kv  *kvcache.Manager
	sch *scheduler.Scheduler
	now time.Duration

	number  uint64      // arrivals so far
	slots   []*sequence // nil = free; index is Seq.Slot
	vacant  []int
	byID    map[request.ID]*sequence
	byCtx   map[transfer.ID]*sequence // ContextOnly, until retired
	byGen   map[transfer.ID]*sequence // GenerationOnly, until retired
	borrows map[transfer.ID]*sequence // with a loan whose outcome is open
	recent  recent
	due     deadlines
	alive   int // not closed
	parked  parking
	// awaiting counts the requests in CtxWaitPeer.
	awaiting int
	closing  int // closed, not retired

	flights flights
	resets  bool                      // the cache, when no step runs any more
	lasts   int                       // sequences whose last token is being sampled
	applied time.Duration             // when the last step was
	roots   map[string]blockhash.Hash // by salt
	match   []int32                   // scratch of Match and lookup
	hashes  []blockhash.Hash          // scratch of lookup

	epoch      uint32 // last lease epoch given out
	leaseRefs  []int32
	leased     int // blocks under at least one lease
	openLeases int
	lent       int // of openLeases: to other ranks
	recvOpen   int // pulls whose byte path is not quiet yet
	recvBlocks int // blocks that those may write

	loads  loads
	ledger *kvcache.Ledger // nil = conversations are not followed

	suspects  int // requests of a failed step that did not run since
	piece     scheduler.Limits
	errBudget float64
	budgetAt  time.Duration
	good      int // steps in a row that went well, modulo goodSteps
	stuck     int // iterations in a row that ER-5 complained about
	fatal     error
	draining  bool
	full      time.Duration // since when no block is free, -1 = some are
	gained    time.Duration // when a token or a block was won last

	stats   Stats
	record  *Recorder
	tally   Tally // since the step planned last
	effects [2]Effects
	arenas  [2][]request.Token
	side    int
}

// New makes a core, or says what is wrong with the configuration.
func New(cfg Config) (*Core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}
	cfg.MaxBatch = cfg.EffectiveBatch()
	cfg.Layout.BlockTokens = cfg.BlockTokens
	pool := kvcache.Config{Blocks: cfg.Blocks, BlockTokens: cfg.BlockTokens, Windows: cfg.Window > 0}
	if cfg.BlockReuse {
		pool.Partial, pool.Events, pool.Tiers = cfg.PartialReuse, cfg.EventBuffer, cfg.Tiers
	}
	kv, err := kvcache.New(pool)
	if err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}
	if cfg.Reuse != AllReusable {
		cfg.ShareInPass = false // what is computed for a request is its own until then
	}
	c := &Core{
		cfg: cfg, kv: kv, errBudget: errorPoints,
		byID: map[request.ID]*sequence{}, byCtx: map[transfer.ID]*sequence{}, byGen: map[transfer.ID]*sequence{},
		borrows:   map[transfer.ID]*sequence{},
		roots:     map[string]blockhash.Hash{},
		leaseRefs: make([]int32, cfg.Blocks),
		recent:    newRecent(cfg.Lease),
		record:    &Recorder{},
		full:      -1,
	}
	if cfg.BlockReuse && cfg.Reuse == PerConversation {
		blocks := cfg.Blocks + cfg.Tiers.HostBlocks + cfg.Tiers.DiskBlocks
		c.ledger = kvcache.NewLedger(cfg.MaxTurns, maxTalks, 4*blocks)
	}
	c.sch, err = scheduler.New(scheduler.Config{
		Policy: cfg.Policy, Chunking: cfg.Chunking, Queue: cfg.Queue, BlockTokens: cfg.BlockTokens,
		MaxBatch: cfg.MaxBatch, MaxNumTokens: cfg.MaxNumTokens, PrefillMixed: cfg.PrefillMixed, PrefillPerDecode: cfg.PrefillPerDecode,
		ChunkPrefill: cfg.ChunkPrefill, MaxRecv: cfg.MaxConcurrentRecv, MaxRecvBytes: cfg.MaxInflightBytes,
		BlockBytes: int64(cfg.Layout.BlockBytes()),
	}, kv, prefix{c})
	if err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}
	return c, nil
}

// Config returns the configuration in force, after adjustments.
func (c *Core) Config() Config { return c.cfg }

// Fatal returns why the core gave up, or nil. All requests are closed then and
// new ones are refused; the process should end.
func (c *Core) Fatal() error { return c.fatal }

// fx is the effects that are being collected.
func (c *Core) fx() *Effects { return &c.effects[c.side] }

// Effects returns what is to be done since the last call. It is valid until the
// call after the next one of Effects; its slices must not be kept.
func (c *Core) Effects() *Effects {
	c.verify()
	c.watchRoom()
	out := c.fx()
	out.Moves = c.kv.TakeMoves(out.Moves)
	c.side ^= 1
	e := c.fx()
	clear(e.Outputs)
	*e = Effects{
		Moves:   e.Moves[:0],
		Outputs: e.Outputs[:0], Pulls: e.Pulls[:0], StopPulls: e.StopPulls[:0], Accepts: e.Accepts[:0],
		Progress: e.Progress[:0], Ends: e.Ends[:0],
		Rejects: e.Rejects[:0], Dones: e.Dones[:0], Revoked: e.Revoked[:0], KeepAlives: e.KeepAlives[:0],
		Releases: e.Releases[:0],
		Borrowed: e.Borrowed[:0], Retired: e.Retired[:0],
	}
	c.arenas[c.side] = c.arenas[c.side][:0]
	return out
}

// emit adds an output of s; out.Tokens, if any, were made by keep.
func (c *Core) emit(s *sequence, out Output) {
	out.Request, out.Choice = s.req, s.choice
	if s.fam != nil {
		out.Request = s.fam.req
	}
	out.Usage = s.usage()
	s.showScores(&out)
	if out.Finish != request.Running {
		out.Times = s.timesNow()
	}
	c.fx().Outputs = append(c.fx().Outputs, out)
}

// keep returns a one-token slice that lives as long as the effects.
func (c *Core) keep(t request.Token) []request.Token {
	a := append(c.arenas[c.side], t)
	c.arenas[c.side] = a
	return a[len(a)-1 : len(a) : len(a)]
}

// enter moves s to a new state. A transition that the table does not know is a
// bug: it ends that request and is counted.
func (c *Core) enter(s *sequence, to request.State) bool {
	if !s.State.CanBecome(to) {
		c.stats.IllegalTransition++
		from := s.State
		c.record.note(EventRecord{At: c.now, Iter: c.stats.Iter, Kind: EventIllegal, ID: s.req.ID, Text: from.String() + " to " + to.String()})
		if from.CanBecome(request.Closed) {
			c.fail(s, request.Errorf(request.Internal, "illegal transition from %v to %v", from, to))
		}
		return false
	}
	s.State, s.entered = to, c.now
	c.retime(s)
	return true
}

// fail ends a request with an error.
func (c *Core) fail(s *sequence, err *request.Error) {
	c.finish(s, Output{Finish: request.FinishError, Err: err})
}

// finish gives the client its final event and retires the request as soon as
// nothing holds its blocks.
func (c *Core) finish(s *sequence, out Output) {
	answered := s.State == request.CtxSend
	receiving := s.State == request.GenRecv
	if !s.State.CanBecome(request.Closed) {
		c.stats.IllegalTransition++
		return
	}
	c.sch.Remove(&s.Seq)
	c.stopLoading(s)
	c.endTurn(s, &out)
	c.part(s, &out)
	if s.State == request.CtxWaitPeer {
		c.awaiting--
	}
	s.State, s.entered = request.Closed, c.now
	c.due.remove(s)
	c.trust(s)
	if !answered {
		c.recordClose(s, &out)
		out.First = s.emitted - len(out.Tokens)
		c.emit(s, out)
	}
	if receiving && !s.pull.stopped {
		s.pull.stopped = true
		c.fx().StopPulls = append(c.fx().StopPulls, s.pull.handle.ID)
	}
	if s.holds&holdRecv == 0 {
		c.settleLoan(s, false, false)
	}
	c.alive--
	c.closing++
	c.follow(s)
	c.leave(s, &out)
	c.retire(s)
}

// retire forgets a closed sequence that nothing holds, and frees its blocks.
// With the last choice of a request it forgets that.
func (c *Core) retire(s *sequence) {
	if s.State != request.Closed || s.holds != 0 {
		return
	}
	c.copied(s)
	if len(s.Table) > 0 {
		c.gained = c.now
	}
	c.retain(s)
	c.kv.Release(s.Table)
	s.Table = nil
	s.State = request.Retired
	c.closing--
	c.slots[s.Slot] = nil
	c.vacant = append(c.vacant, s.Slot)
	if f := s.fam; f != nil {
		if f.left--; f.left > 0 {
			return
		}
		s = f.members[0]
	}
	id := transfer.ID(s.req.TransferID)
	switch s.req.Kind {
	case request.ContextOnly:
		delete(c.byCtx, id)
		c.recent.add(id, false, c.now)
	case request.GenerationOnly:
		delete(c.byGen, id)
		c.recent.add(id, false, c.now)
	}
	if s.lent {
		c.lent--
		return
	}
	delete(c.byID, s.req.ID)
	c.fx().Retired = append(c.fx().Retired, s.req.ID)
}

// drop ends a hold and retires the request if that was the last one.
func (c *Core) drop(s *sequence, h hold) {
	s.holds &^= h
	c.retire(s)
}

// root returns the start of the chain for a salt, cached while few salts are in use.
func (c *Core) root(salt string) blockhash.Hash {
	if r, ok := c.roots[salt]; ok {
		return r
	}
	if len(c.roots) >= 1024 {
		clear(c.roots)
	}
	h := blockhash.Root(c.cfg.Namespace, "", salt)
	c.roots[salt] = h
	return h
}

func (c *Core) blocksFor(tokens int) int {
	return (tokens + c.cfg.BlockTokens - 1) / c.cfg.BlockTokens
}
