package scheduler

import (
	"fmt"

	"tandem/engine/request"
)

// Blocks is the room that the scheduler hands out.
type Blocks interface {
	Total() int
	Free() int // blocks that Take could return
	// Take appends n blocks to table, or changes nothing and reports false.
	Take(table []int32, n int) ([]int32, bool)
	Release(table []int32)
}

// Match is K and V that exist already for the beginning of a request.
type Match struct {
	Blocks       []int32 // whole blocks to share; valid until the next Match. Below 0: to be brought to a new block
	Unreferenced int     // how many of them are free, so that sharing takes room
	Fetch        int     // how many of them are to be brought
	Wait         bool    // some of them cannot be read yet
	From         int32   // block whose beginning can be copied after them
	Tokens       int     // length of that beginning, 0 = none
	FromFree     bool    // From is free: the copy takes room for this step
}

// Prefix finds and takes reusable K and V; the executor implements it.
type Prefix interface {
	// Match looks at all known tokens but the last, or for GenInit at the Offered
	// ones, of which it finds whole blocks only. It changes nothing.
	Match(s *Seq) Match
	// Use takes references on m.Blocks, appends them to s.Table and protects
	// m.From, if m.Tokens > 0, until the step is over. It takes m.Fetch new blocks
	// and orders what is to be brought to them.
	Use(s *Seq, m Match)
	// Expect announces that the step will compute n tokens of s.
	Expect(s *Seq, n int)
}

// Config holds the rules and budgets.
type Config struct {
	Policy       Policy
	Chunking     Chunking
	Queue        Queue
	BlockTokens  int
	MaxBatch     int // requests a step
	MaxNumTokens int // rows a step
	PrefillMixed int // prefill rows in a step that decodes, 0 = no extra limit
	// PrefillPerDecode bounds them to so many for each row that decodes, but never below
	// two blocks, if prompts may be divided; 0 = no such limit.
	PrefillPerDecode int
	ChunkPrefill     bool
	MaxRecv          int   // pulls at a time
	MaxRecvBytes     int64 // bytes of all pulls, if there is more than one
	BlockBytes       int64
}

// Limits are what differs from step to step.
type Limits struct {
	MaxTokens int  // rows of this step, at most Config.MaxNumTokens
	MaxBatch  int  // requests of this step, at most Config.MaxBatch
	Hold      bool // admit nothing to prefill
	Pending   bool // blocks will come back without this step: a lease, a receive or a step is open
	Soon      bool // blocks will come back when the running step is over: rather wait than pause
	Suspects  bool // run nothing but suspects
}

// Row lets a request catch up by Tokens tokens from Seq.Computed on. The last
// Grown blocks of a running request's table were taken for this row.
type Row struct {
	Seq    *Seq
	Tokens int
	Grown  int
}

// Admission is a request that got blocks: Shared blocks found, the rest new.
// The first Copied tokens of the first new block come from block From.
type Admission struct {
	Seq    *Seq
	Shared int
	From   int32
	Copied int
	Wait   bool // of a pull: some of the Shared blocks cannot be read yet
}

// Plan is one step. Its slices are valid until the next Schedule.
type Plan struct {
	Rows     []Row // decodes first
	Admitted []Admission
	Receive  []Admission // may pull now, or with Wait when what was found is here
	Loading  []Admission // got blocks, and wait for the content of some: see Received
	Found    []*Seq      // have here what they wanted to borrow, moved to the waiting queue
	Paused   []*Seq      // blocks are gone, back in the waiting queue
	Starved  []*Seq      // alone and still without room: cannot ever go on
}

// Scheduler holds the queues of one rank. It is not safe for concurrent use.
type Scheduler struct {
	cfg     Config
	blocks  Blocks
	prefix  Prefix
	waiting queue
	genInit queue
	running queue // has blocks and may be given rows
	recv    queue // has blocks that a pull writes
	loading queue // has blocks whose content is on its way from a lower tier

	recvBytes int64
	step      uint64
	plan      Plan

	// of the step being planned
	lim      Limits
	tokens   int // rows left
	prefill  int // prefill rows left
	reserved int // blocks promised to running and receiving requests
	earlier  bool
	paused   bool
	full     bool // a prefill got nothing: none behind it may
	barred   *Seq // a borrower without room: nothing younger goes before it
	deals    []deal
}

// New makes an empty scheduler.
func New(cfg Config, b Blocks, p Prefix) (*Scheduler, error) {
	if !cfg.Policy.Valid() || !cfg.Chunking.Valid() || !cfg.Queue.Valid() {
		return nil, fmt.Errorf("scheduler: unknown policy %q, %q or %q", cfg.Policy, cfg.Chunking, cfg.Queue)
	}
	less := byArrival
	if cfg.Queue == Priority {
		less = byPriority
	}
	return &Scheduler{
		cfg: cfg, blocks: b, prefix: p,
		waiting: queue{less: less}, running: queue{less: less},
		genInit: queue{less: byArrival}, recv: queue{less: byArrival}, loading: queue{less: byArrival},
	}, nil
}

// Waiting returns how many requests wait for prefill or for blocks to pull into.
func (s *Scheduler) Waiting() int { return len(s.waiting.list) + len(s.genInit.list) }

// Running returns how many requests may be given rows.
func (s *Scheduler) Running() int { return len(s.running.list) }

// Receiving returns how many requests have a pull.
func (s *Scheduler) Receiving() int { return len(s.recv.list) }

// Loading returns how many requests wait for content from lower tiers.
func (s *Scheduler) Loading() int { return len(s.loading.list) }

// Head returns the request that is first in line: the oldest running one, else
// the first waiting one, else nil.
func (s *Scheduler) Head() *Seq {
	for _, q := range []*queue{&s.running, &s.waiting, &s.genInit} {
		if len(q.list) > 0 {
			return q.list[0]
		}
	}
	return nil
}

// Enqueue puts a request into the waiting queue.
func (s *Scheduler) Enqueue(q *Seq) { s.put(q, inWaiting) }

// EnqueueGen puts a request into the queue for pulls.
func (s *Scheduler) EnqueueGen(q *Seq) { s.put(q, inGenInit) }

// Received makes a request schedulable whose pull ended, well or badly, or for
// which all content has come from lower tiers.
func (s *Scheduler) Received(q *Seq) {
	s.Remove(q)
	s.put(q, inRunning)
}

// Requeue takes a running request's blocks and puts it back into the waiting
// queue, as a pause does.
func (s *Scheduler) Requeue(q *Seq) {
	s.Remove(q)
	s.blocks.Release(q.Table)
	q.Table, q.Computed = q.Table[:0], 0
	s.put(q, inWaiting)
}

// RequeueGen takes the blocks of a request that was to pull and puts it back into
// its place in the queue for pulls.
func (s *Scheduler) RequeueGen(q *Seq) {
	s.Remove(q)
	s.blocks.Release(q.Table)
	q.Table, q.Computed = q.Table[:0], 0
	s.put(q, inGenInit)
}

// Shrink takes the last n blocks of a running request away: those of a Row
// that does not run.
func (s *Scheduler) Shrink(q *Seq, n int) {
	keep := len(q.Table) - n
	s.blocks.Release(q.Table[keep:])
	q.Table = q.Table[:keep]
}

// Spare returns how many free blocks nothing that runs or receives may still
// ask for, as far as the policy promises them.
func (s *Scheduler) Spare() int {
	if s.cfg.Policy == MaxUtilization {
		return s.blocks.Free() - s.headroom()
	}
	return s.blocks.Free() - s.promised()
}

// headroom is what MaxUtilization leaves free for running requests to grow.
func (s *Scheduler) headroom() int { return max(1, s.blocks.Total()/100) }

// Remove takes a request out of its queue, if it is in one. Its blocks stay.
func (s *Scheduler) Remove(q *Seq) {
	if l := s.queueOf(q.where); l != nil {
		l.remove(q)
	}
	if q.where == inReceiving {
		s.recvBytes -= q.bytes
	}
	q.where = nowhere
}

func (s *Scheduler) put(q *Seq, where place) {
	q.where = where
	s.queueOf(where).insert(q)
	if where == inReceiving {
		s.recvBytes += q.bytes
	}
}

func (s *Scheduler) queueOf(p place) *queue {
	switch p {
	case inWaiting:
		return &s.waiting
	case inGenInit:
		return &s.genInit
	case inReceiving:
		return &s.recv
	case inLoading:
		return &s.loading
	case inRunning:
		return &s.running
	}
	return nil
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.cfg.BlockTokens - 1) / s.cfg.BlockTokens
}

// decoding reports whether q needs exactly its newest token computed.
func decoding(q *Seq) bool {
	return (q.State == request.Decode || q.State == request.GenReady || q.Ahead) && q.Known == q.Computed+1
}
