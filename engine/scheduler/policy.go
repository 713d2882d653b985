package scheduler

// Policy decides when a request may be admitted.
type Policy string

// The capacity policies. Under GuaranteedNoEvict a running request always gets
// its blocks; MaxUtilization admits more and pauses requests when blocks run
// out; StaticBatch admits only when nothing is left of the batch before.
const (
	GuaranteedNoEvict Policy = "GUARANTEED_NO_EVICT"
	MaxUtilization    Policy = "MAX_UTILIZATION"
	StaticBatch       Policy = "STATIC_BATCH"
)

// Pauses reports whether requests are admitted that may have to be paused.
func (p Policy) Pauses() bool { return p == MaxUtilization }

// Valid reports whether p is a known policy.
func (p Policy) Valid() bool {
	return p == GuaranteedNoEvict || p == MaxUtilization || p == StaticBatch
}

// Chunking decides how several prefills share a step's rows.
type Chunking string

// The chunk policies. FirstCome gives each prefill, in order, all it can take;
// EqualProgress deals blocks out in turns.
const (
	FirstCome     Chunking = "FIRST_COME_FIRST_SERVED"
	EqualProgress Chunking = "EQUAL_PROGRESS"
)

// Valid reports whether c is a known policy.
func (c Chunking) Valid() bool { return c == FirstCome || c == EqualProgress }

// Queue decides the order of waiting and running requests.
type Queue string

// The queue policies: arrival order, or higher priority first and then arrival order.
const (
	FCFS     Queue = "FCFS"
	Priority Queue = "PRIORITY"
)

// Valid reports whether q is a known policy.
func (q Queue) Valid() bool { return q == FCFS || q == Priority }
