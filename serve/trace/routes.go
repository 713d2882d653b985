package trace

import "time"

// Chosen is a decision of a router in a trace: all that it went by, and what came out. Ids are salted as those of requests are.
// Releases tell when what it charged was given back, so that a router that is asked the same in the same order decides the same.
type Chosen struct {
	Kind        string  `json:"kind"` // RouteKind
	TimestampMs float64 `json:"timestamp_ms"`
	Number      uint64  `json:"n"` // of the decisions of this frontend
	Router      string  `json:"router"`
	Generation  bool    `json:"generation,omitempty"` // a gen leg

	RoutingID    string   `json:"routing_id,omitempty"`
	Conversation string   `json:"conversation_id,omitempty"`
	Tokens       int      `json:"tokens,omitempty"` // of the prompt, where the router had ids
	BlockSize    int      `json:"block_size,omitempty"`
	HashIDs      []int64  `json:"hash_ids,omitempty"`    // of Tokens
	Text         int      `json:"code_points,omitempty"` // of the text, where it went by that
	TextBytes    int      `json:"bytes,omitempty"`
	TextIDs      []int64  `json:"text_ids,omitempty"` // of its blocks of TextBlock code points
	Salt         string   `json:"cache_salt,omitempty"`
	MaxTokens    int      `json:"max_tokens,omitempty"`
	Candidates   []string `json:"candidates"`
	Capacity     []int    `json:"capacity"` // of the candidates: requests that run at once, 0 = not told
	Exclude      []string `json:"exclude,omitempty"`

	Server  string `json:"server,omitempty"` // empty = there was none
	Outcome string `json:"outcome,omitempty"`
}

// Released is the end of a decision's charge.
type Released struct {
	Kind        string  `json:"kind"` // ReleaseKind
	TimestampMs float64 `json:"timestamp_ms"`
	Number      uint64  `json:"n"` // of the decision
	Success     bool    `json:"success"`
}

// The kinds of lines that are no requests.
const (
	RouteKind   = "route"
	ReleaseKind = "release"
)

// TextBlock is the code points of a block of Chosen.TextIDs. Routers that go by texts compare blocks of multiples of it, unless
// they are configured otherwise.
const TextBlock = 64

// Routes tells whether decisions of routers are captured.
func (c *Capture) Routes() bool { return c != nil && c.o.Routes }

// Choose notes a decision, and Release the end of one. The order of calls is that of the trace; they never wait, as Add does not.
func (c *Capture) Choose(r *Chosen, at time.Time) {
	r.Kind, r.TimestampMs = RouteKind, c.millis(at)
	c.put(r)
}

// Release notes the end of what a decision charged.
func (c *Capture) Release(number uint64, success bool, at time.Time) {
	c.put(Released{ReleaseKind, c.millis(at), number, success})
}
