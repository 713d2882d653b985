package executor

import (
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// The contract between the core and its drivers. A driver owns a Core, calls it
// from one goroutine, and repeats:
//
//	submit, cancel, transfer inputs ...   (each only records and may emit effects)
//	b := core.Plan(now)                   deadlines, admission, scheduling
//	carry out core.Effects()              pulls, replies, outputs
//	if b != nil { run the batch, sample; core.Apply(now, results) }
//	carry out core.Effects()
//	if b == nil { wait for input or core.NextDeadline(now) }
//
// A driver whose device runs on its own may plan one batch more, and give it to
// the device, before it applies the results of the one that runs: rows then take
// tokens over that only the device knows (Row.Feed). Results are applied in the
// order of the plans. Only compute in that order may touch a block: what a paused
// request had, running rows of it still write, so a copy comes before the rows of
// its own batch and after those of the batch before. Pulls need no such care.
//
// now is the driver's monotonic clock as a duration since its start.

// Row is one sequence of a planned batch.
type Row struct {
	Request *request.Request
	Tokens  []int32 // tokens to compute, from position Pos on; borrowed until Apply
	Feed    int     // 1-based row of the batch before that samples the only one of Tokens, 0 = Tokens are known
	Pos     int
	Pages   []int32 // page table covering Pos+len(Tokens) positions; borrowed until Apply
	Sample  bool    // the row's last token yields the next output token
	Context bool    // the row prefills: Hold takes it out
	Index   int     // 0-based index of that output token
	// Forks are the further choices of a request whose first token the row yields:
	// each draws its own from the same logits.
	Forks []*request.Request
	// Score are the tokens whose log-probabilities are wanted: that of Score[i] by
	// the logits of position Pos+ScoreAt+i, with ScoreTop alternatives.
	Score             []int32
	ScoreAt, ScoreTop int
}

// Copy gives a block a beginning that exists already: the first Tokens positions
// of block From are copied to block To before the batch runs.
type Copy struct {
	From, To int32
	Tokens   int
}

// Batch is what one iteration runs. It is valid until its Apply.
type Batch struct {
	Iter   uint64
	Copies []Copy
	Rows   []Row
}

// Sampled is the outcome of one row with Sample set.
type Sampled struct {
	Token request.Token
	Err   *request.Error // bad logits: ends this request only
	Forks []Sampled      // of Row.Forks, in their order
	// Scores are those of Row.Score, also where Sample is false. The core keeps them.
	Scores []request.Token
}

// Result is what running a batch gave. Err set: the whole step failed and
// Sampled is ignored. Sampled has one entry per row (ignored where Sample is
// false).
type Result struct {
	Err     error
	Sampled []Sampled
}

// Output is one event of a request. Exactly one Output with Finish != "" ends
// each of its choices.
type Output struct {
	Request *request.Request
	Choice  int             // 0 to Request.Answers()-1
	First   int             // index of Tokens[0] among the choice's output tokens
	Tokens  []request.Token // tokens new with this event
	// Prompt has, in the first output of choice 0 with tokens, the prompt's tokens
	// after the first with their log-probabilities, if Request.Score wants them.
	Prompt []request.Token
	Text   string // text that may be shown now
	Finish request.Finish
	Err    *request.Error // with FinishError (and FinishCancelled when a deadline did it)
	Usage  request.Usage
	// Handle is in choice 0 of a ContextOnly request that goes on elsewhere: its
	// finish, or that of another choice, is FinishNotFinished.
	Handle *transfer.Handle
	Times  Times // of the final output
}

// Times are the turning points of one request on the driver's clock, 0 = it did
// not come to that. They are in this order, but for a request that is paused.
type Times struct {
	Arrived   time.Duration // the core got it
	PullBegan time.Duration // blocks were ordered from another worker
	PullEnded time.Duration // all of them are here, or the pull failed
	Scheduled time.Duration // it is part of a batch for the first time
	First     time.Duration // its first output token is known here
	Blocks    int           // its page table had
}

// Effects is what a core wants done since the last call of Effects.
type Effects struct {
	// Moves come before everything else here, in their order: see kvcache.Move.
	Moves     []Move
	Outputs   []Output
	Pulls     []transfer.Pull // start these
	StopPulls []transfer.ID   // stop these; each still reports a final PullEvent
	Accepts   []transfer.Accept
	Progress  []transfer.Progress // to pullers that wait for an Accept
	Ends      []transfer.End
	Rejects   []transfer.Reject
	Dones     []transfer.DoneReply
	Revoked   []transfer.ID // leases that ended: stop serving their bytes
	// KeepAlives asks for one KEEPALIVE to the ctx worker of each handle: its gen
	// request waits for blocks and has no pull yet.
	KeepAlives []transfer.Handle
	// Releases asks for a CANCEL to the ctx worker of each handle: nobody here will
	// come for its blocks any more.
	Releases []transfer.Handle
	// Borrowed tells, once for each request that came with another rank's blocks,
	// what became of the loan.
	Borrowed []Borrowed
	Retired  []request.ID // nothing of these is left; drop per-request state
}

// Borrowed is the outcome of a loan at the borrower.
type Borrowed struct {
	ID       request.ID
	Transfer transfer.ID // of the handle
	OK       bool        // the offered blocks are here; else the request prefills them, if it goes on
	// Pulled says that they came over the byte path, whose DONE has ended the
	// lender's lease. In every other case Abort ends it there at once.
	Pulled bool
}

// Load is what one rank tells the others about itself.
type Load struct {
	Active         int // requests routed here that are not closed: waiting, receiving, running
	Retiring       int // closed, but a step or a pull still holds their blocks
	Waiting        int // of Active: without blocks
	Transfer       int // leases, loans included
	PromptTokens   int // of Active: prompt lengths
	UncachedTokens int // of Active: prompt tokens that the index did not have at admission
	QueuedPrefill  int // of Active: prompt tokens that are still to be computed here
	FreeBlocks     int // blocks that could be handed out

	// Of the batch that is planned; 0 without one.
	CtxRequests int
	GenRequests int
	CtxTokens   int
	GenTokens   int
}

// Stats is a snapshot of the core for health, metrics and leak tests. Each
// block counts once, under the first state that applies in this order:
// receiving, leased, active, reusable, free.
type Stats struct {
	Iter            uint64
	BlocksTotal     int
	BlocksFree      int
	BlocksActive    int
	BlocksReusable  int
	BlocksLeased    int
	BlocksReceiving int
	HandoffsOpen    int
	Receiving       int
	Running         int
	Waiting         int
	Prefilling      int // of Running
	Decoding        int // of Running
	PausedNow       int // of Waiting: had begun before
	Holds           int
	LastStep        time.Duration // from the plan to the results of the last step
	BlocksFenced    int           // of BlocksActive: of ended requests that a step may still write
	// HoldAges are the ages of the oldest hold of each kind, 0 = none.
	HoldAges [NumHolds]time.Duration
	// PoolFull is how long no block was free and neither a token nor a block was
	// won, 0 = there is room or headway.
	PoolFull    time.Duration
	ErrorBudget float64 // points that are left; at 0 the core gives up

	PrefixHitTokens   uint64
	PrefixQueryTokens uint64
	EvictedBlocks     uint64
	WindowFreed       uint64 // blocks given back by running requests whose window had passed them
	PendingShare      uint64 // tokens shared with requests that had still to compute them
	LeasesExpired     uint64
	StalePulls        uint64
	Recomputed        uint64 // failed pulls finished by local prefill
	Paused            uint64
	IllegalTransition uint64
	PrefillTokens     uint64
	DecodeTokens      uint64
	StepErrors        uint64
	Deadlocks         uint64 // nothing could be scheduled: bugs
	UnknownCancels    uint64
	UnknownMessages   uint64 // late or foreign messages of transfers and moves

	Loading           int    // of Running: wait for content from a lower tier
	HostBlocks        int    // blocks whose content is in the host's tier
	HostTotal         int    // blocks that fit there
	DiskBlocks        int    // files
	OffloadBytes      uint64 // device to host
	OnboardBytes      uint64 // host to device
	SpillBytes        uint64 // host to disk
	LoadBytes         uint64 // disk to device
	HostHitTokens     uint64 // of prompts, brought back from the host
	DiskHitTokens     uint64 // and from the disk
	HostEvicted       uint64 // blocks that left the host for want of room and are in no file
	DiskEvicted       uint64 // files erased for want of room
	TierFailed        uint64 // moves between tiers
	BadFiles          uint64 // of TierFailed: files that did not hold what they should
	DiskRests         uint64 // times at which the disk was left alone after a failure
	ConvOverlap       uint64 // requests of a conversation that had another one under way
	DeadTails         uint64 // blocks that a later turn did not take up again and that go first now
	RecomputedCheaper uint64 // times at which content was not brought, since computing it looks cheaper

	Lent         uint64 // prefixes lent to other ranks
	Borrowed     uint64 // requests that pulled another rank's blocks
	BorrowFailed uint64 // loans that a request came with and did not use
}

// AbortState answers an abort by disagg_request_id.
type AbortState string

// The abort states of /disagg/abort.
const (
	AbortAborted  AbortState = "aborted"  // was alive, no transfer running
	AbortSettling AbortState = "settling" // a transfer still runs
	AbortDone     AbortState = "done"     // had already ended
	AbortUnknown  AbortState = "unknown"  // never seen; refused for one lease from now on
)

// Driver-facing methods of Core (the types above are their vocabulary):
//
//	New(Config) (*Core, error)
//	Submit(now, *request.Request, *transfer.Handle)  handle: of the ctx leg, or of a loan
//	Precheck(*request.Request, *transfer.Handle)     *request.Error; nil = Submit would take it
//	Cancel(now, request.ID)                          ends all choices; unknown ids are a counted no-op
//	Abort(now, transfer.ID) AbortState
//	Attach/Done/Detach/KeepAlive(now, message)       from pullers
//	PullEvent(now, transfer.PullEvent)               from our own pulls
//	Restore([]kvcache.File)                          what the disk tier has at the start
//	Moved(now, MoveDone)                             of Effects.Moves
//	Plan(now) *Batch                                 nil = nothing can be run now
//	Hold() *Batch                                    the planned batch without its prefills; nil = nothing runs
//	Load() Load                                      what the other ranks must know
//	Cached([]int32, salt) int                        tokens of a prompt that are here
//	Lend(now, transfer.ID, []int32, salt)            (*transfer.Handle, bool); blocks for another rank
//	Apply(now, Result)
//	Effects() *Effects                               valid until the next call on the core
//	NextDeadline() (time.Duration, bool)             engine-clock time of the next local deadline
//	Drain(now)                                       stop admitting; leases that nobody reads end soon
//	Fatal() error                                    why the core gave up; all requests are closed then
//	Stats() Stats
//	Requests([]RequestReport) []RequestReport        what is here, for people
//	Recorder() *Recorder                             the last steps and events; readable from other goroutines
//	Check() error                                    invariants, for tests and debug builds
