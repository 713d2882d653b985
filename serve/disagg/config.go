package disagg

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"tandem/serve/conversation"
	"tandem/serve/trace"
)

// Config is what the frontend needs besides workers and routers. All durations are above 0.
type Config struct {
	RequestTimeout   time.Duration // whole non-streamed request; time to the first event of a stream
	StreamIdle       time.Duration // gap between two events or comments of a worker's stream
	ConnectTimeout   time.Duration // TCP to a worker
	HandoffLease     time.Duration // how long a ctx worker keeps unclaimed blocks
	AdmissionTimeout time.Duration // choosing a gen worker until it accepted; below HandoffLease
	AbortGrace       time.Duration // deadline of one abort message
	ClientWrite      time.Duration // one event to the client
	MaxRetries       int           // further attempts of a leg after the first, 0..10
	RetryBudget      float64       // part of all legs that may be attempts beyond the first, 0 = no bound
	NoRetry          bool          // forces MaxRetries and the attempts for transient races to 0
	MaxInflight      int           // requests at once, 0 = unlimited
	GenerationFirst  bool          // the gen leg goes out first, and both run together
	HedgeAfter       time.Duration // without a ctx answer: a second attempt elsewhere; 0 = off
	MaxQueued        int           // requests that wait for a place among MaxInflight
	QueueTimeout     time.Duration // how long they wait
	MaxBodyMemory    int64         // bytes of request bodies held at once, 0 = unlimited
	RetryPause       time.Duration // before a retry, give or take a fifth
	RacePause        time.Duration // before a retry of a transient race

	StripMessageHistory bool               // gen leg gets only the last chat message
	PromptIDsAsBytes    bool               // ask ctx for prompt_token_ids_b64
	EarlyFirstToken     bool               // emit the first delta from the ctx reply
	Resume              bool               // go on with a broken stream at another gen worker
	AllowChatTemplate   bool               // chats may bring their own template, which the workers render
	ExposeRouting       bool               // routing headers and worker addresses to the client
	EngineConvAffinity  bool               // leave conversations to workers that place them on ranks themselves
	RankHints           bool               // with EngineConvAffinity: send the router's rank as a hint
	Conversations       conversation.Rules // whose conversation a request is, and whose sub-agent
	Conditional         bool               // requests of which a gen worker has nearly all run there alone
	MaxLocalPrefill     int                // prompt tokens that it may then have to compute
	APIKeys             []APIKey           // of clients, empty = everybody
	IsolateCaches       bool               // no key's prompts find blocks of another's
	WorkerTLS           *tls.Config        // for workers at https:// addresses, nil = the defaults
	AuthKey             []byte             // signs protected fields, empty = unsigned
	ReturnPerf          bool               // tell clients where the time of their request went
	PerfRecords         int                // requests that /perf_metrics keeps, 0 = none
	RequestLog          trace.RequestLog   // a line for each request
	NodeID              int                // 0..255
	ProcessID           int                // 0..63
	Version             string
}

// raceAttempts is how often a leg that hits transient races is tried in all.
const raceAttempts = 5

// DefaultConfig returns the defaults of all keys; ids and version are the caller's.
func DefaultConfig() Config {
	return Config{
		RequestTimeout: 180 * time.Second, StreamIdle: 60 * time.Second, ConnectTimeout: 2 * time.Second,
		HandoffLease: 60 * time.Second, AdmissionTimeout: 30 * time.Second, AbortGrace: 2 * time.Second,
		QueueTimeout: 30 * time.Second, MaxBodyMemory: 1 << 30, ClientWrite: 60 * time.Second, MaxRetries: 1, RetryPause: time.Second, RacePause: 50 * time.Millisecond,
		EarlyFirstToken: true, Resume: true, Version: "0.0.0-dev",
	}
}

// Validate checks ranges; errors name the YAML key.
func (c Config) Validate() error {
	for _, d := range []struct {
		key string
		val time.Duration
	}{
		{"request_timeout_sec", c.RequestTimeout},
		{"stream_idle_timeout_sec", c.StreamIdle},
		{"connect_timeout_ms", c.ConnectTimeout},
		{"handoff_lease_sec", c.HandoffLease},
		{"admission_timeout_sec", c.AdmissionTimeout},
		{"abort_grace_ms", c.AbortGrace},
		{"queue_timeout_sec", c.QueueTimeout},
	} {
		if d.val <= 0 {
			return fmt.Errorf("%s: must be above 0", d.key)
		}
	}
	if err := c.Conversations.Validate(); err != nil {
		return err // names the key
	}
	switch {
	case c.AdmissionTimeout >= c.HandoffLease:
		return fmt.Errorf("admission_timeout_sec: %v must be below handoff_lease_sec %v", c.AdmissionTimeout, c.HandoffLease)
	case c.MaxRetries < 0 || c.MaxRetries > 10:
		return fmt.Errorf("max_retries: %d is outside 0..10", c.MaxRetries)
	case !(c.RetryBudget >= 0 && c.RetryBudget <= 10):
		return fmt.Errorf("retry_budget: %v is outside 0..10", c.RetryBudget)
	case c.MaxLocalPrefill < 0:
		return fmt.Errorf("conditional_disagg_config.max_local_prefill_length: %d is negative", c.MaxLocalPrefill)
	case c.MaxInflight < 0:
		return fmt.Errorf("max_inflight_requests: %d is negative", c.MaxInflight)
	case c.MaxBodyMemory < 0:
		return errors.New("max_body_memory_mb: must not be negative")
	case c.HedgeAfter < 0:
		return errors.New("hedge_first_leg_ms: must not be negative")
	case c.HedgeAfter > 0 && c.GenerationFirst:
		return errors.New("hedge_first_leg_ms: a leg can be hedged in schedule_style context_first only; remove one of them")
	case c.MaxQueued < 0:
		return fmt.Errorf("max_queued_requests: %d is negative", c.MaxQueued)
	case c.MaxQueued > 0 && c.MaxInflight == 0:
		return errors.New("max_queued_requests: has no effect without max_inflight_requests")
	case c.NodeID < 0 || c.NodeID > 255:
		return fmt.Errorf("node_id: %d is outside 0..255", c.NodeID)
	case c.ProcessID < 0 || c.ProcessID > MaxProcess:
		return fmt.Errorf("process id %d is outside 0..63", c.ProcessID)
	case c.IsolateCaches && len(c.APIKeys) == 0:
		return errors.New("isolate_tenant_caches: has no effect without api_keys, whose holders it sets apart")
	case len(c.AuthKey) > 0 && len(c.AuthKey) < 16:
		return errors.New("internal_request_auth_key: must have at least 16 bytes")
	}
	return validateKeys(c.APIKeys)
}
