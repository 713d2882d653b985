package workload

import (
	"encoding/json"
	"time"
)

// NoArrival is the Arrival of a request that has no time of its own: it starts
// after those it waits for, or when the load model wants it.
const NoArrival time.Duration = -1

// MaxID is the largest segment id: every reader of JSON keeps it exact.
const MaxID = 1<<53 - 1

// Segment is a run of tokens. Its content is a function of the workload's seed,
// the id and the position within the segment, so equal ids mean equal tokens.
type Segment struct {
	ID     uint64 // 1 to MaxID
	Tokens int    // at least 1
}

// Request is one LLM request.
type Request struct {
	ID           string // unique in the workload
	Arrival      time.Duration
	Conversation string // turns of one conversation, in the order of the workload; empty: a single request
	Parent       string // conversation that this one is a sub-agent of
	Kind         string // root, subagent, aux, ...; empty = root

	// After are the requests, by index in the workload and all smaller than its own, that end before this one begins.
	// It starts Delay + ToolWait after the last of them.
	After           []int
	Delay, ToolWait time.Duration

	Input, Output int       // tokens; Input is the full prompt
	Prompt        []Segment // the beginning of the prompt; what is missing to Input belongs to this request alone
	Reply         uint64    // id of the segment that is this request's output in later prompts, 0 = none
	Final         bool      // last of its conversation

	// Early requests are left out when the workload is gone through for the first time, since their conversation is joined
	// midway; the first that is sent of it is Warm, and not measured then.
	Early, Warm bool
	Leave       time.Duration // the client goes away so long after it sent this request, 0 = it stays

	Model, LoRA string
	Priority    *float64
	Temperature *float64

	Messages, Tools json.RawMessage // verbatim content of a chat, where the source has it: it replaces the prompt

	Observed *Observed // how the recorded request went
}

// Observed is how a recorded request went.
type Observed struct {
	TTFTMs float64 `json:"ttft_ms,omitempty"`
	E2EMs  float64 `json:"e2el_ms,omitempty"`
	Cached int     `json:"cached,omitempty"`
	// Where it ran, as a frontend's capture tells.
	Path      string `json:"path,omitempty"`
	CtxServer string `json:"ctx_server,omitempty"`
	GenServer string `json:"gen_server,omitempty"`
	Outcome   string `json:"outcome,omitempty"`
}

// Tail is how many tokens of the prompt belong to no segment.
func (r *Request) Tail() int {
	n := r.Input
	for _, s := range r.Prompt {
		n -= s.Tokens
	}
	return n
}

// Workload is a list of requests and where they come from.
type Workload struct {
	Name      string // what generated it, or the format it was read from
	Source    string // file, or the generator's parameters
	Seed      uint64 // of the content of segments
	BlockSize int    // tokens of one hash id in the source, 0 = it has none
	Requests  []Request
	Texts     map[uint64]string // verbatim content of segments, where the source has it
}
