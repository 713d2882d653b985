package adprouter

import (
	"fmt"
	"strings"

	"tandem/engine/request"
)

// HeadTokens is how many leading tokens of a prompt the KV router compares.
const HeadTokens = 64

// Item is what routing sees of a request. It is built from broadcast data, so
// that it is equal on all ranks.
type Item struct {
	ID     request.ID
	Key    string  // of the conversation, "" = none
	Guest  bool    // Key is that of another conversation, whose cache it may share in part
	Rank   int     // asked for by the client, -1 = none
	Relax  bool    // Rank is a hint and no order
	Weight int     // slots it will take: 1 + child sequences; below 1 acts as 1
	Tokens int     // of the prompt
	Head   []int32 // the first HeadTokens tokens of the prompt, or all of a shorter one
	Match  []int32 // [rank] cached tokens of the prompt; absent = 0. Only the KV router needs it
}

// NewItem returns the routing view of a request with the given number of child
// sequences. It shares the prompt's memory.
func NewItem(r *request.Request, children int) Item {
	return Item{
		ID: r.ID, Key: Key(r), Guest: guest(r), Rank: r.DPRank, Relax: r.DPRelax, Weight: 1 + max(children, 0),
		Tokens: len(r.Prompt), Head: r.Prompt[:min(len(r.Prompt), HeadTokens)],
	}
}

// Key returns what a request sticks to: its affinity key, else the id of its
// conversation. A blank one counts as none.
func Key(r *request.Request) string {
	for _, k := range [...]string{r.AffinityKey, r.ConversationID} {
		if strings.TrimSpace(k) != "" {
			return k
		}
	}
	return ""
}

// guest reports whether a request sticks to another conversation than its own.
func guest(r *request.Request) bool {
	return strings.TrimSpace(r.AffinityKey) != "" && r.AffinityKey != r.ConversationID
}

// CheckRank refuses a rank that an instance of the given size does not have;
// -1 from a client is refused too. Call it before a request is queued.
func CheckRank(rank, ranks int) *request.Error {
	if rank >= 0 && rank < ranks {
		return nil
	}
	return request.Invalid("attention_dp_rank", "%d is no rank of this instance; it has the ranks 0 to %d", rank, ranks-1)
}

// CheckWeight refuses more sequences than one rank can hold: no rank would ever
// have room, and the request would block the head of the queue. Call it before a
// request is queued.
func CheckWeight(weight, limit int) *request.Error {
	if weight <= limit {
		return nil
	}
	return &request.Error{
		Code: request.CapacityNever, Param: "n",
		Message: fmt.Sprintf("%d choices of one request do not fit a worker, which runs %d sequences at once: ask for fewer", weight, limit),
	}
}

// strict reports whether the request may run on its rank only.
func (it *Item) strict() bool { return it.Rank >= 0 && !it.Relax }

func (it *Item) weight() int { return max(it.Weight, 1) }

func (it *Item) match(rank int) int64 {
	if rank < len(it.Match) {
		return int64(it.Match[rank])
	}
	return 0
}

// uncached returns the prompt tokens that a rank would have to compute.
func (it *Item) uncached(rank int) int64 { return max(int64(it.Tokens)-it.match(rank), 0) }

// RankState is the load of one rank as gathered; its rank is its position.
type RankState struct {
	Active        int   // requests it holds, as the exchange counts them
	Tokens        int64 // as the router in force counts them
	QueuedPrefill int64 // prompt tokens it still has to compute
	Decoding      int   // requests of its last batch that decode
}

// Reason says why a request went to its rank.
type Reason uint8

// The reasons, and how many there are.
const (
	Sticky   Reason = iota // home of its conversation
	Overflow               // home was full; the conversation stays bound to it
	First                  // first turn of a conversation
	NoKey                  // no conversation
	Explicit               // the client named the rank
	Balanced               // least load
	Cache                  // longest cached prefix, after weighing load
	Warmup                 // first request of a cold rank
	Moved                  // home is much busier; its blocks come along

	NumReasons = int(iota)
)

var reasonNames = [NumReasons]string{"sticky", "overflow", "new", "no_key", "explicit", "balanced", "cache", "warmup", "moved"}

// String returns the reason as receipts and metrics write it.
func (r Reason) String() string {
	if int(r) < NumReasons {
		return reasonNames[r]
	}
	return "invalid"
}
