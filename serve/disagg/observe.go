package disagg

import (
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// The roles of legs as they appear in metrics and snapshots.
const (
	RoleContext    = string(discovery.Context)
	RoleGeneration = string(discovery.Generation)
)

// Tokens are the counts a client was told; all 0 when the answer had none.
type Tokens struct{ Prompt, Cached, Completion int }

func tokensOf(u *openai.Usage) Tokens {
	if u == nil {
		return Tokens{}
	}
	return Tokens{Prompt: u.PromptTokens, Cached: u.Cached(), Completion: u.CompletionTokens}
}

// Event names something that is counted. Labels are from closed sets.
type Event string

// The events and their labels.
const (
	EventValidation   Event = "validation_exceptions"          // none
	EventRetry        Event = "retry_requests"                 // role
	EventAbort        Event = "aborts_sent_total"              // role, reason
	EventDisconnect   Event = "client_disconnects_total"       // phase
	EventGenSkipped   Event = "gen_skipped_total"              // finish reason
	EventBypass       Event = "bypass_total"                   // none
	EventIDRejected   Event = "conversation_id_rejected_total" // none
	EventHandoffLapse Event = "handoff_expired_total"          // none
	EventAffinity     Event = "affinity_applied_total"         // leg
	EventForcedRank   Event = "forced_rank_total"              // leg, row
	EventResume       Event = "streams_resumed_total"          // outcome: resumed, failed
	EventUnauthorized Event = "unauthorized_requests_total"    // none
	EventKey          Event = "api_key_requests_total"         // name of the key
	EventHedge        Event = "hedged_requests_total"          // none
	EventNoPlace      Event = "queue_refused_total"            // reason: full, displaced, timeout
	EventNoRetry      Event = "retries_refused_total"          // none
	EventHome         Event = "conversation_lookups_total"     // outcome: found, absent, failed
	EventRankInvalid  Event = "dp_rank_invalid_total"          // none
)

// LegEnd reports one finished attempt of a leg.
type LegEnd struct {
	Role  string // RoleContext or RoleGeneration
	OK    bool
	First time.Duration // to the first token: the reply of ctx, the first event of a gen stream; 0 = unknown
	Total time.Duration
	// Tokens that the leg produced; 0 = unknown.
	Tokens int
}

// Observer is told what happens to requests. Its methods are called from many goroutines and must not block.
type Observer interface {
	// RequestBegan counts an arrival.
	RequestBegan(stream bool)
	// RequestRouted tells how long a request waited for its first worker.
	RequestRouted(wait time.Duration)
	// RequestEnded tells the status of the answer; and the tokens the client was told of.
	RequestEnded(status int, tokens Tokens)
	// LegEnded reports one attempt.
	LegEnded(LegEnd)
	// Happened counts an event.
	Happened(e Event, labels ...string)
}

// deaf is the Observer of a server without one.
type deaf struct{}

func (deaf) RequestBegan(bool)           {}
func (deaf) RequestRouted(time.Duration) {}
func (deaf) RequestEnded(int, Tokens)    {}
func (deaf) LegEnded(LegEnd)             {}
func (deaf) Happened(Event, ...string)   {}
