package executor

import (
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
// now is the driver's monotonic clock as a duration since its start.

// Row is one sequence of a planned batch.
type Row struct {
	Request *request.Request
	Tokens  []int32 // tokens to compute, from position Pos on; borrowed until Apply
	Pos     int
	Pages   []int32 // page table covering Pos+len(Tokens) positions; borrowed until Apply
	Sample  bool    // the row's last token yields the next output token
	Index   int     // 0-based index of that output token
}

// Copy is a partial-block reuse: the first Tokens positions of block From are
// copied to block To before the batch runs.
type Copy struct {
	From, To int32
	Tokens   int
}

// Batch is what one iteration runs. It is valid until the next Plan.
type Batch struct {
	Iter   uint64
	Copies []Copy
	Rows   []Row
}

// Sampled is the outcome of one row with Sample set.
type Sampled struct {
	Token request.Token
	Err   *request.Error // bad logits: ends this request only
}

// Result is what running a batch gave. Err set: the whole step failed and
// Sampled is ignored. Sampled has one entry per row (ignored where Sample is
// false).
type Result struct {
	Err     error
	Sampled []Sampled
}

// Output is one event of a request. Exactly one Output with Finish != "" ends it.
type Output struct {
	Request *request.Request
	First   int             // index of Tokens[0] among the request's output tokens
	Tokens  []request.Token // tokens new with this event
	Text    string          // text that may be shown now
	Finish  request.Finish
	Err     *request.Error // with FinishError (and FinishCancelled when a deadline did it)
	Usage   request.Usage
	Handle  *transfer.Handle // ContextOnly with FinishNotFinished
}

// Effects is what a core wants done since the last call of Effects.
type Effects struct {
	Outputs   []Output
	Pulls     []transfer.Pull // start these
	StopPulls []transfer.ID   // stop these; each still reports a final PullEvent
	Accepts   []transfer.Accept
	Rejects   []transfer.Reject
	Dones     []transfer.DoneReply
	Revoked   []transfer.ID // leases that ended: stop serving their bytes
	// KeepAlives asks for one KEEPALIVE to the ctx worker of each handle: its gen
	// request waits for blocks and has no pull yet.
	KeepAlives []transfer.Handle
	Retired    []request.ID // nothing of these is left; drop per-request state
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
	Holds           int

	PrefixHitTokens   uint64
	PrefixQueryTokens uint64
	EvictedBlocks     uint64
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
	UnknownMessages   uint64 // late or foreign transfer messages
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
//	Submit(now, *request.Request, *transfer.Handle)  handle only for GenerationOnly
//	Cancel(now, request.ID)                          unknown ids are a counted no-op
//	Abort(now, transfer.ID) AbortState
//	Attach/Done/Detach/KeepAlive(now, message)       from pullers
//	PullEvent(now, transfer.PullEvent)               from our own pulls
//	Plan(now) *Batch                                 nil = nothing runs
//	Apply(now, Result)
//	Effects() *Effects                               valid until the next call on the core
//	NextDeadline() (time.Duration, bool)             engine-clock time of the next local deadline
//	Drain(now)                                       stop admitting; revoke when idle
//	Fatal() error                                    why the core gave up; all requests are closed then
//	Stats() Stats
//	Check() error                                    invariants, for tests and debug builds
