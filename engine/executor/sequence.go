package executor

import (
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// hold is a set of reasons why a closed request's blocks may not return to the pool.
type hold uint8

const (
	holdStep  hold = 1 << HoldStep
	holdLease hold = 1 << HoldLease
	holdRecv  hold = 1 << HoldRecv

	holdOffload hold = 1 << HoldOffload
)

// sequence is the core's record of one request.
type sequence struct {
	scheduler.Seq
	req    *request.Request
	prompt int             // tokens
	cached int             // prompt tokens that the first prefill did not compute
	scores []request.Token // of the prompt's tokens after the first, as far as they are computed
	told   bool            // scores were
	root   blockhash.Hash

	ended     bool          // it ended well: all of it may be shared
	turn      bool          // the ledger follows it
	prefilled bool          // and was told of its prompt
	loadAt    int           // with holdOffload: leading blocks of Table that are here
	loadBegan time.Duration // and since when it waits

	tokens    []int32          // prompt, then output
	hashes    []blockhash.Hash // chain of the full blocks of tokens, as far as needed yet
	done      int              // leading tokens whose K and V are computed: Computed without steps that run
	row       int              // number of its row in the batch planned last that has one
	committed int              // leading blocks that are shared or in the index
	private   bool             // rests on unconfirmed K and V: nothing more is committed
	max       int              // output tokens allowed, clamped to the context length
	emitted   int              // output tokens that counted and were shown
	likely    int              // prompt tokens that the index had at arrival; counts until it is admitted
	admitted  bool             // its first admission was counted
	fresh     bool             // admitted in the step that runs
	from      request.State    // with fresh: state before the admission
	first     bool             // with fresh: it is its first
	lent      bool             // no request: blocks that another rank may pull
	tries     int              // failed steps since the last good one

	holds   hold
	held    [NumHolds]time.Duration // since when, of those that holds has
	entered time.Duration           // its state
	arrived time.Duration
	times   Times
	due     time.Duration // next local deadline, while heapAt >= 0
	heapAt  int

	fam    *family     // of several choices, else nil
	choice int         // which of them it is
	head   *sequence   // in Fork: who computes the prompt
	forks  []*sequence // those in Fork that wait for this one
	owed   bool        // ctx: another choice goes on elsewhere, so the blocks are leased
	source int32       // with part: block whose beginning is to be copied before the first row
	part   int         // tokens of it, 0 = no copy is due any more

	lease   lease
	pull    pull
	adopted *request.Request // req with the first tokens that came with a pull
	offer   []transfer.Token // that go out with one
}

// lease is the ctx side of a hand-over.
type lease struct {
	first    uint32 // epoch in the handle
	epoch    uint32 // of the puller attached last
	attached bool
	peer     transfer.Peer
	expires  time.Duration // before there is a lease: the wait for a puller

	// Of a puller that came before there is a lease.
	have []blockhash.Hash // what it has of the prompt
	beat time.Duration    // when it hears next that this loop lives
	gone bool             // it will not come back

	early, granted bool // it takes blocks before, and has been granted some
	skip, shown    int  // with granted: blocks that it has, and those behind them that it may read
}

// pull is the gen side of a hand-over.
type pull struct {
	handle    *transfer.Handle
	blocks    int           // ordered by the pull
	keepAlive time.Duration // when the next one is due, in GenInit
	have      int           // leading blocks found here
	verified  int           // blocks after those that came and were checked
	started   time.Duration
	seen      time.Duration // last sign of the peer
	answered  bool          // there was one
	stopped   bool          // the pull was told to stop
}

// output returns how many tokens were generated, here or by the ctx worker, or
// will be when the steps that run are over.
func (s *sequence) output() int { return s.Known - len(s.req.Prompt) }

// timesNow returns the request's times, with the blocks it has.
func (s *sequence) timesNow() Times {
	t := s.times
	t.Arrived, t.Blocks = s.arrived, len(s.Table)
	return t
}

func (s *sequence) usage() request.Usage {
	return request.Usage{PromptTokens: len(s.req.Prompt), CompletionTokens: s.emitted, CachedTokens: s.cached}
}

// chain extends the hash chain to n blocks and returns it.
func (s *sequence) chain(n, blockTokens int) []blockhash.Hash {
	for i := len(s.hashes); i < n; i++ {
		s.hashes = append(s.hashes, blockhash.Next(s.parent(i), s.tokens[i*blockTokens:(i+1)*blockTokens]))
	}
	return s.hashes[:n]
}

// parent returns the hash that block i follows.
func (s *sequence) parent(i int) blockhash.Hash {
	if i == 0 {
		return s.root
	}
	return s.hashes[i-1]
}

// reserve makes room for the whole life of a request, so that its decode steps
// do not allocate.
func (s *sequence) reserve() {
	n := len(s.req.Prompt) + s.max
	if s.req.Kind == request.ContextOnly {
		n = len(s.req.Prompt) + 1
	}
	if cap(s.tokens) < n {
		s.tokens = append(make([]int32, 0, n), s.tokens...)
	}
	if cap(s.Table) < s.Complete {
		s.Table = append(make([]int32, 0, s.Complete), s.Table...)
	}
	if cap(s.hashes) < s.Complete {
		s.hashes = append(make([]blockhash.Hash, 0, s.Complete), s.hashes...)
	}
}

// append adds an output token.
func (s *sequence) append(id int32) {
	s.tokens = append(s.tokens, id)
	s.Known = max(s.Known, len(s.tokens))
}
