package executor

import (
	"time"

	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// HoldKind names a reason why a request's blocks may not return to the pool.
type HoldKind uint8

// The kinds of hold.
const (
	HoldStep    HoldKind = iota // a batch that runs has a row of it
	HoldLease                   // its blocks are offered to a puller
	HoldRecv                    // a pull may still write its blocks
	HoldOffload                 // content of its blocks is on its way from a lower tier
	NumHolds
)

// String returns the name of the kind in metrics and reports.
func (k HoldKind) String() string {
	return [...]string{"step", "lease", "recv", "offload", "unknown"}[min(k, NumHolds)]
}

// RequestReport is what one sequence looks like to people who search for what is
// stuck. It has no text and no token.
type RequestReport struct {
	ID       request.ID
	Choice   int
	Kind     request.Kind
	State    request.State
	Transfer transfer.ID // 0 = no hand-over
	Number   uint64      // of arrival
	Lent     bool        // no request: blocks that another rank may pull

	Prompt, Output, MaxTokens int // tokens
	Computed, Cached          int // tokens with K and V, and of the prompt those that were found
	Blocks                    int // that it has
	Committed                 int // of them shared or in the index
	Pauses                    int
	Failures                  int // failed steps in a row
	Priority                  float64

	Arrived time.Duration           // on the driver's clock
	Entered time.Duration           // its state
	Held    [NumHolds]time.Duration // since when, 0 = not
	Due     time.Duration           // its next local deadline, 0 = none
	// Attached: a puller reads the leased blocks. Answered: the peer of the pull
	// gave a sign. Peer is the endpoint of the worker that blocks are pulled from.
	Attached, Answered bool
	Peer               string
}

// Requests appends a report of everything that is here to dst, in no order.
func (c *Core) Requests(dst []RequestReport) []RequestReport {
	for _, s := range c.slots {
		if s != nil {
			dst = append(dst, c.report(s))
		}
	}
	return dst
}

func (c *Core) report(s *sequence) RequestReport {
	passed := s.passed()
	r := RequestReport{
		ID: s.req.ID, Choice: s.choice, Kind: s.req.Kind, State: s.State, Transfer: transfer.ID(s.req.TransferID),
		Number: s.Number, Lent: s.lent, Prompt: s.prompt, Output: s.output(), MaxTokens: s.max, Computed: s.done, Cached: s.cached,
		Blocks: len(s.Table) - passed, Committed: max(0, min(s.committed, len(s.Table))-passed), Pauses: s.Pauses, Failures: s.tries, Priority: s.Priority,
		Arrived: s.arrived, Entered: s.entered, Attached: s.lease.attached, Answered: s.pull.answered,
	}
	for k := range NumHolds {
		if s.holds&(1<<k) != 0 {
			r.Held[k] = max(s.held[k], 1) // 0 is for none
		}
	}
	if s.heapAt >= 0 {
		r.Due = s.due
	}
	if s.pull.handle != nil && (s.State == request.GenInit || s.holds&holdRecv != 0) {
		r.Peer = s.pull.handle.Endpoint
	}
	return r
}

// hold notes a reason to keep the blocks of s.
func (c *Core) hold(s *sequence, h HoldKind) {
	if s.holds&(1<<h) == 0 {
		s.holds |= 1 << h
		s.held[h] = c.now
	}
}

// holdAges sets the age of the oldest hold of each kind.
func (c *Core) holdAges(s *sequence, ages *[NumHolds]time.Duration) {
	if s.holds == 0 {
		return
	}
	for k := range NumHolds {
		if s.holds&(1<<k) != 0 {
			ages[k] = max(ages[k], c.now-s.held[k])
		}
	}
}

// Buckets are the reusable blocks by retention priority; those of lower ones are
// given up first.
type Buckets [kvcache.Priorities]int

// Buckets tells which cached blocks will be given up first.
func (c *Core) Buckets() (b Buckets) {
	c.kv.Buckets((*[kvcache.Priorities]int)(&b))
	return b
}
