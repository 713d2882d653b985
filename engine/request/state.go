package request

// State is where a request is in its life (engine-core §2).
type State uint8

// The states. Closed is about the client, Retired about memory: a closed
// request may keep blocks until its last hold is dropped.
const (
	New         State = iota // before arrival was judged
	Waiting                  // in the waiting queue, no blocks
	CtxWaitPeer              // prompt known, peer not attached yet
	Prefill                  // has blocks, some known tokens are not computed
	GenInit                  // has the ctx answer, needs blocks
	GenRecv                  // blocks are being written by a pull
	GenReady                 // K and V of the prompt are here, first decode step is due
	Decode                   // one token a step
	Last                     // the step in flight reaches the length limit
	Paused                   // preempted: tokens kept, blocks given back
	Fork                     // a choice that waits for the prefill it shares with others
	CtxSend                  // prefill answered, blocks under a lease
	Closed                   // the client has its final answer
	Retired                  // no memory left, forgotten
	numStates
)

var stateNames = [numStates]string{
	"NEW", "WAITING", "CTX_WAIT_PEER", "PREFILL", "GEN_INIT", "GEN_RECV", "GEN_READY",
	"DECODE", "LAST", "PAUSED", "FORK", "CTX_SEND", "CLOSED", "RETIRED",
}

// String returns the state's name as the documents write it.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return "INVALID"
}

func set(states ...State) (m uint16) {
	for _, s := range states {
		m |= 1 << s
	}
	return m
}

// next[from] is the set of states that may follow from. Whatever is not here
// is a bug of the caller.
var next = [numStates]uint16{
	// Blocks lent to another rank are under a lease without having run.
	New:         set(Waiting, CtxWaitPeer, GenInit, Fork, CtxSend, Closed),
	Waiting:     set(Prefill, Closed),
	CtxWaitPeer: set(Waiting, Closed),
	// A failed step sends what it admitted back to the queue as Paused, a held
	// one as it came.
	Prefill: set(Prefill, CtxSend, Decode, Last, Waiting, Paused, Closed),
	// A request that need not borrow, or has borrowed, prefills as any other.
	GenInit:  set(GenRecv, Waiting, Closed),
	GenRecv:  set(GenReady, Prefill, Waiting, Closed),
	GenReady: set(Decode, Paused, Closed),
	Decode:   set(Decode, Last, Paused, Closed),
	Last:     set(Closed),
	Paused:   set(Prefill, Closed),
	// Without room for blocks of its own it goes on as one that was paused; when
	// the choice that was to prefill has ended it does that itself.
	Fork:    set(Decode, GenReady, Paused, Waiting, Closed),
	CtxSend: set(Closed),
	Closed:  set(Retired),
}

// CanBecome reports whether a request in state s may enter state to.
func (s State) CanBecome(to State) bool {
	return s < numStates && to < numStates && next[s]&(1<<to) != 0
}

// Schedulable reports whether a step may compute tokens of a request in state s.
func (s State) Schedulable() bool {
	return s == Prefill || s == GenReady || s == Decode
}

// Alive reports whether the client still waits for the final answer.
func (s State) Alive() bool { return s > New && s < CtxSend }
