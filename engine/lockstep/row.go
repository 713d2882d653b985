package lockstep

import (
	"fmt"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
)

// Row is what one rank tells the others in an iteration.
type Row struct {
	adprouter.Row
	Waiting    uint32 // part of Active
	Transfer   uint32 // leases open
	FreeBlocks uint32
	CtxTokens  uint32 // of the planned batch
	GenTokens  uint32
	Digest     uint64 // of the replicated state
}

// FlagDone is set in Row.Flags by a rank that drains and has nothing left.
const FlagDone uint32 = 1

// Step is what the instance does in this iteration.
type Step struct {
	Forward  bool
	Pad      bool            // a forward in which this rank has no row
	Batch    *executor.Batch // own rows, nil without
	RankRows []int           // rows of each rank in the forward
	Gather   bool            // a gather of payloads follows
	Held     bool            // prefill is held back
	Stop     bool            // all ranks are drained: the instance ends here
}

// DivergenceError says that ranks whose state must be equal differ.
type DivergenceError struct {
	Rank      int // the lowest that differs from rank 0
	Want, Got uint64
	Dump      string // this rank's state
}

// Error names the rank and both digests.
func (e *DivergenceError) Error() string {
	return fmt.Sprintf("routing state diverged: rank 0 has digest %016x, rank %d %016x", e.Want, e.Rank, e.Got)
}

// rowOf translates what the core says.
func (l *Rank) rowOf(load executor.Load) Row {
	r := Row{
		Waiting: uint32(load.Waiting), Transfer: uint32(load.Transfer), FreeBlocks: uint32(load.FreeBlocks),
		CtxTokens: uint32(load.CtxTokens), GenTokens: uint32(load.GenTokens), Digest: l.digest(),
	}
	switch {
	case load.CtxRequests > 0:
		r.Intent = adprouter.Context
	case load.GenRequests > 0:
		r.Intent = adprouter.Generation
	}
	r.CtxRequests, r.GenRequests = uint16(load.CtxRequests), uint16(load.GenRequests)
	r.Active = uint32(load.Active + l.movingSeqs)
	r.Retiring = uint32(load.Retiring)
	r.QueuedPrefill = uint64(load.QueuedPrefill + l.movingWork)
	r.ActiveTokens = uint64(load.PromptTokens)
	if l.router.Config().Kind == adprouter.KVCacheAware {
		r.ActiveTokens = uint64(load.UncachedTokens)
		if l.cfg.CountInTransfer {
			r.Active += uint32(load.Transfer)
		}
	}
	if l.done = l.drained(load); l.done {
		r.Flags |= FlagDone
	}
	return r
}

// digest covers all that is replicated.
func (l *Rank) digest() uint64 {
	d := l.router.Digest()*31 + l.queue.Digest()
	if l.balance != nil {
		d = d*31 + l.balance.Digest()
	}
	if l.draining {
		d++
	}
	return d
}

// Dump describes the replicated state, for the report of a divergence.
func (l *Rank) Dump() string {
	text := l.router.Dump()
	text += fmt.Sprintf("queue of %d, digest %016x\n", l.queue.Len(), l.queue.Digest())
	for i := range min(l.queue.Len(), 64) {
		text += fmt.Sprintf("  request %d\n", l.queue.At(i).ID)
	}
	if l.balance != nil {
		waiting, batching := l.balance.Counters()
		text += fmt.Sprintf("balance: waiting %d, batching %d\n", waiting, batching)
	}
	return text
}
