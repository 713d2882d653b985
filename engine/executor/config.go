package executor

import (
	"errors"
	"fmt"
	"time"

	"tandem/engine/kvcache"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// Role says which requests a worker takes.
type Role string

// The roles. Ctx takes ContextOnly, Gen takes GenerationOnly and Full, Mixed takes all.
const (
	Ctx   Role = "context"
	Gen   Role = "generation"
	Mixed Role = "mixed"
)

// ReusePolicy says when a request's blocks may be shared with others.
type ReusePolicy string

// The policies. AllReusable shares each block once it is computed. PerRequest shares
// a prompt when all of it is computed and the rest when the request has ended well.
// PerConversation does that too, and lets what a turn left behind go first when a
// later turn of the same conversation did not take it up again.
const (
	AllReusable     ReusePolicy = "all_reusable"
	PerRequest      ReusePolicy = "per_request"
	PerConversation ReusePolicy = "per_conversation"
)

// Valid reports whether p is a known policy.
func (p ReusePolicy) Valid() bool {
	return p == AllReusable || p == PerRequest || p == PerConversation
}

// Config fixes a core for its life. Start from DefaultConfig.
type Config struct {
	Role        Role
	Namespace   string // served model and revision; part of every block hash
	Incarnation string // of this process; in every handle
	Endpoint    string // control endpoint of the instance; in every handle
	Rank        int    // ADP rank; in every handle
	Layout      transfer.Layout

	Vocab            int // token ids are below this
	Blocks           int // N, blocks in the pool
	Window           int // positions that a query reads, its own the last; 0 = all before it
	BlockTokens      int // B, a power of two
	MaxBatch         int // requests a step
	MaxNumTokens     int // rows a step
	MaxSeqLen        int // prompt and output
	MaxQueued        int // requests waiting for admission; more get queue_full
	QueueTimeout     time.Duration
	Policy           scheduler.Policy
	Chunking         scheduler.Chunking
	Queue            scheduler.Queue
	ChunkPrefill     bool // split prompts over steps
	PrefillMixed     int  // most prefill rows in a step that also decodes, 0 = MaxNumTokens
	PrefillPerDecode int  // and for each row that decodes, though at least two blocks, 0 = no limit
	BlockReuse       bool
	PartialReuse     bool // copy a shared beginning of a block
	ShareInPass      bool // let requests of one step share blocks it computes
	EventBuffer      int  // changes of the index of reusable blocks kept for readers, 0 = none

	Reuse    ReusePolicy // when blocks may be shared, with BlockReuse
	MaxTurns int         // of a conversation that keep their blocks, with PerConversation

	// Tiers below the device's pool, with BlockReuse.
	Tiers         kvcache.Tiers
	OnboardAlways bool // bring content from them also where computing it looks cheaper: for tests

	Lease             time.Duration // ctx: life of unfetched blocks
	Attach            time.Duration // gen: from ATTACH to the first sign of the peer
	Progress          time.Duration // gen: between signs of progress
	RecvTotal         time.Duration // gen: whole pull
	PeerWait          time.Duration // ctx: wait for a peer (gen-first)
	MaxConcurrentRecv int
	MaxInflightBytes  int64
	MaxLeasedFraction float64 // ctx: admission stops above; 1 = no cap
	LocalRecompute    bool    // gen: prefill here what could not be pulled
}

// offloadFloor lets blocks of the default retention priority leave the device for
// the host, and none that were marked to go first.
const offloadFloor = 30

// DefaultConfig returns the documented defaults of a mixed worker; the caller
// fills in model and pool sizes.
func DefaultConfig() Config {
	return Config{
		Role: Mixed, BlockTokens: 16, MaxBatch: 64, MaxNumTokens: 2048, MaxQueued: 4096,
		Policy: scheduler.GuaranteedNoEvict, Chunking: scheduler.FirstCome, Queue: scheduler.FCFS,
		ChunkPrefill: true, BlockReuse: true, PartialReuse: true, ShareInPass: true, EventBuffer: 65536,
		Reuse: AllReusable, MaxTurns: 1, Tiers: kvcache.Tiers{MinPriority: offloadFloor},
		Lease: time.Minute, Attach: 10 * time.Second, Progress: 10 * time.Second,
		RecvTotal: 2 * time.Minute, PeerWait: time.Minute,
		MaxConcurrentRecv: 64, MaxInflightBytes: 512 << 20, MaxLeasedFraction: 0.5, LocalRecompute: true,
	}
}

// Validate reports everything that is wrong with c, each with the field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Role != Ctx && c.Role != Gen && c.Role != Mixed, "role %q is not context, generation or mixed", c.Role)
	bad(c.Vocab < 1, "vocab %d must be at least 1", c.Vocab)
	bad(c.BlockTokens < 1 || c.BlockTokens&(c.BlockTokens-1) != 0, "tokens_per_block %d is not a power of two", c.BlockTokens)
	bad(c.Blocks < 1, "the KV pool has %d blocks: give it more memory or lower max_seq_len", c.Blocks)
	bad(c.Window < 0, "window %d must not be negative", c.Window)
	bad(c.MaxBatch < 1, "max_batch_size %d must be at least 1", c.MaxBatch)
	bad(c.MaxNumTokens < c.BlockTokens+1, "max_num_tokens %d must exceed tokens_per_block %d", c.MaxNumTokens, c.BlockTokens)
	bad(c.MaxSeqLen < 2, "max_seq_len %d must be at least 2", c.MaxSeqLen)
	bad(c.Tiers.HostBlocks < 0 || c.Tiers.DiskBlocks < 0, "host_cache_size and disk_cache_size must not be negative")
	bad(!c.Reuse.Valid(), "block_reuse_policy %q is unknown", c.Reuse)
	bad(c.Reuse == PerConversation && c.MaxTurns < 1, "max_num_turns %d must be at least 1", c.MaxTurns)
	bad(c.Tiers.DiskBlocks > 0 && c.Tiers.HostBlocks == 0, "disk_cache_size needs a host_cache_size of at least one block")
	bad(c.MaxQueued < 1, "max_queued_requests %d must be at least 1", c.MaxQueued)
	bad(c.QueueTimeout < 0, "queue_timeout_ms must not be negative")
	bad(c.PrefillPerDecode < 0, "prefill_tokens_per_decode %d must not be negative", c.PrefillPerDecode)
	bad(c.PrefillMixed < 0 || c.PrefillMixed > 0 && c.PrefillMixed < c.BlockTokens,
		"max_prefill_tokens_mixed %d must be 0 or at least tokens_per_block", c.PrefillMixed)
	bad(c.Lease <= 0, "lease_ms must be positive")
	bad(c.Attach <= 0 || c.Progress <= 0 || c.RecvTotal <= 0 || c.PeerWait <= 0,
		"attach_ms, progress_ms, kv_transfer_timeout_ms and peer_wait_ms must be positive")
	bad(c.MaxConcurrentRecv < 1, "max_concurrent_recv %d must be at least 1", c.MaxConcurrentRecv)
	bad(c.MaxInflightBytes < 1, "max_inflight_bytes %d must be positive", c.MaxInflightBytes)
	bad(c.MaxLeasedFraction <= 0 || c.MaxLeasedFraction > 1, "max_leased_fraction %v is not in (0,1]", c.MaxLeasedFraction)
	bad(c.Layout.BlockTokens != 0 && c.Layout.BlockTokens != c.BlockTokens,
		"the KV layout has %d tokens a block, the pool %d", c.Layout.BlockTokens, c.BlockTokens)
	bad(!c.Policy.Valid(), "capacity_scheduler_policy %q is unknown", c.Policy)
	bad(!c.Chunking.Valid(), "context_chunking_policy %q is unknown", c.Chunking)
	bad(!c.Queue.Valid(), "queue_policy %q is unknown", c.Queue)
	return errors.Join(errs...)
}

// EffectiveBatch is the largest batch for which a step still has room for one
// block of prefill (engine-core SP-1); at least 1. A driver warns when it is
// below MaxBatch.
func (c Config) EffectiveBatch() int {
	return max(1, min(c.MaxBatch, c.MaxNumTokens-c.BlockTokens))
}
