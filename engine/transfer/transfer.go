// Package transfer is the pure state machine that moves KV blocks from a ctx
// worker to a gen worker: leases on the ctx side, pulls on the gen side, both
// with local deadlines. It has no goroutine, clock or I/O; byte paths live in
// its sub-packages.
package transfer

import (
	"time"

	"tandem/engine/blockhash"
)

// Hash is a block's place in the hash chain; the byte paths use it by this name.
type Hash = blockhash.Hash

// ID names one hand-over: the attempt's disagg_request_id.
type ID int64

// Handle is what a gen worker needs to fetch a request's blocks. The frontend
// carries it from the ctx answer to the gen request as an opaque string.
type Handle struct {
	ID           ID
	Incarnation  string // of the ctx worker; a restarted one rejects the handle at once
	Endpoint     string // control endpoint of the ctx instance, tcp://host:port
	Rank         int    // ADP rank that owns the blocks
	Epoch        uint32 // lease epoch
	Lease        time.Duration
	PromptTokens int // P; K and V of exactly these positions are offered
	Layout       Layout
	Root         blockhash.Hash
	Hashes       []blockhash.Hash // chain of the prompt's full blocks
	// GenFirst: the ctx worker has not answered and there is no lease yet. Rank,
	// Epoch, PromptTokens, Root and Hashes are not the ctx worker's word.
	GenFirst bool
}

// Token is an output token that the ctx worker sampled, on its way to the gen
// worker. Logprob and Top are set when log-probabilities were asked for.
type Token struct {
	ID      int32
	Logprob float64
	Rank    int // 1-based, 0 = unknown
	Top     []TopLogprob
}

// TopLogprob is one alternative of a Token.
type TopLogprob struct {
	ID      int32
	Logprob float64
}

// Layout describes how a worker stores K and V, compared at attach.
type Layout struct {
	Layers      int
	KVHeads     int
	HeadDim     int
	DType       string // "F32", "BF16", "F16", "F8" or "I8"
	BlockTokens int
	Packing     string // name of the byte order inside one block
	// KeyLines is in how many lines the keys of one head lie in a block; all tokens
	// have equal shares of each, in their order. Values are in one line. Lines of "I8"
	// keys have 16 tokens at most, those of the first 16 come first; the scales of keys
	// and of values are a line behind them. 0 = unknown: then only blocks of the same
	// size can be used.
	KeyLines int
}

// BlockBytes returns the bytes of one block over all layers, K and V.
func (l Layout) BlockBytes() int { return l.Layers * 2 * l.KVHeads * l.BlockTokens * l.headBytes() }

// headBytes are those of one token's keys, or values, of one head, its scale of 2 bytes
// with them if they are "I8".
func (l Layout) headBytes() int {
	switch l.DType {
	case "F32":
		return 4 * l.HeadDim
	case "F8":
		return l.HeadDim
	case "I8":
		return l.HeadDim + 2
	}
	return 2 * l.HeadDim
}

// Blocks returns how many blocks tokens positions take.
func (l Layout) Blocks(tokens int) int { return (tokens + l.BlockTokens - 1) / l.BlockTokens }

// Memory gives byte paths access to the blocks of one rank's pool. A block is
// contiguous. Callers read only leased blocks and write only blocks under a pull.
type Memory interface {
	// Block returns the bytes of a block, nil if they are not in one piece.
	Block(id int32) []byte
}

// SplitMemory is the Memory of blocks that lie in several places, as when each
// rank of a tensor-parallel group has some of the heads. Byte paths use the rest
// where Block returns nil. Several goroutines may read and write different blocks.
type SplitMemory interface {
	Memory
	// BlockBytes is the size of a block in one piece, as Layout.BlockBytes.
	BlockBytes() int
	// Read fills dst, of BlockBytes bytes, with a block.
	Read(id int32, dst []byte)
	// Write overwrites a block with src, of BlockBytes bytes.
	Write(id int32, src []byte)
}

// TurnMemory is a SplitMemory of which several ranks have the same bytes.
type TurnMemory interface {
	SplitMemory
	// ReadFor is Read for a transfer: of those that have the same bytes, each one's
	// are read for other transfers.
	ReadFor(id ID, block int32, dst []byte)
}

// SharedMemory is a Memory that other processes of the host may map: block id
// begins at id times the size of a block.
type SharedMemory interface {
	Memory
	// File returns the descriptor of the memory, which stays the owner's and cannot
	// be written to by others, and its size in bytes; ok is false if it is private.
	File() (fd uintptr, size int64, ok bool)
}

// DeviceMemory is a SplitMemory on a device that processes of one host may share.
type DeviceMemory interface {
	SplitMemory
	// Share returns by what another process opens the pool; ok is false if none can.
	Share() (handle []byte, ok bool)
	// OpenShared opens the pool of another process. copyBlocks overwrites blocks of this
	// memory with blocks of that pool, one for one, and returns when they are there;
	// goroutines may call it until done ends the use of the pool.
	OpenShared(handle []byte) (copyBlocks func(to, from []int32) error, done func(), err error)
}

// Traffic counts the bytes of blocks that a rank moved by one byte path.
type Traffic struct {
	Path     string // inproc, shm or tcp
	Sent     uint64 // bytes that pullers were given
	Received uint64 // bytes that were pulled and verified
	Pulls    uint64 // confirmed pulls of this rank
	Resumed  uint64 // how often a pull went on after this path broke
}

// Peer names one control stream of a gen worker at a ctx worker.
type Peer uint64

// Messages from a puller to the ctx core. They arrive through the driver's inbox.
type (
	// Attach asks for the blocks of a transfer; Have are the chain hashes that
	// the puller already holds, a prefix of the handle's.
	Attach struct {
		Peer        Peer
		ID          ID
		Incarnation string
		Epoch       uint32
		Layout      Layout
		Have        []blockhash.Hash
		// GenFirst waits for the ctx leg if that has not come or not prefilled yet.
		// Both legs must be of one prompt: its length, and the hash behind its last
		// token.
		GenFirst     bool
		PromptTokens int
		Prompt       blockhash.Hash
		Early        bool // with GenFirst: takes blocks while later ones are still computed
	}
	// Done ends a transfer: all bytes came and were verified.
	Done struct {
		Peer  Peer
		ID    ID
		Epoch uint32
	}
	// Detach ends a puller's interest: a CANCEL message or a broken stream.
	Detach struct {
		Peer      Peer
		ID        ID
		Cancelled bool // CANCEL: nobody will come back, the lease ends; else it stays until expiry
		Reason    string
	}
	// Release ends a lease for which nobody will come any more, unless another puller
	// has it meanwhile. Epoch is the last that the one who gave up knew.
	Release struct {
		ID    ID
		Epoch uint32
	}
	// KeepAlive renews a lease; any data frame sent counts as one too. Without an
	// epoch it prolongs the wait of a ctx leg for its peer.
	KeepAlive struct {
		ID    ID
		Epoch uint32
	}
)

// Replies of the ctx core to a puller, carried out by the driver.
type (
	// Accept grants a pull of Blocks, in prompt order, from index Skip on.
	Accept struct {
		Peer   Peer
		ID     ID
		Epoch  uint32
		Skip   int     // blocks the puller has already
		Blocks []int32 // pool block ids of the rest, leased
		Coming int     // of Blocks, at their end: not computed yet, so not to be read before a Progress
		First  []Token // sampled at the end of the prompt, unless blocks are coming; FIN tells them
	}
	// Progress tells a puller that its transfer is alive.
	// Claimed: this rank has the request; no other one needs to wait for it.
	Progress struct {
		Peer    Peer
		ID      ID
		Claimed bool
		Ready   int     // of an Accept's blocks with some coming: so many may be read, 0 = as before
		Whole   bool    // that is all of them, and the prompt's end was sampled
		First   []Token // with Whole: as in Accept
	}
	// End answers an Attach whose request ended with its first token: nothing is
	// left to fetch.
	End struct {
		Peer  Peer
		ID    ID
		First []Token
	}
	// Reject refuses an Attach. Reason is one of the Reject* constants; Detail
	// says which field differs.
	Reject struct {
		Peer   Peer
		ID     ID
		Reason string
		Detail string
	}
	// DoneReply answers Done: OK commits the pull, stale voids it.
	DoneReply struct {
		Peer Peer
		ID   ID
		OK   bool
	}
)

// Reasons of a Reject.
const (
	RejectUnknown = "unknown_transfer"
	RejectLayout  = "layout_mismatch"
	RejectStale   = "stale"
	RejectPrompt  = "prompt_mismatch" // both legs have not the same prompt
)

// Pull is the gen core's order to fetch a request's missing blocks.
type Pull struct {
	Handle Handle
	Have   []blockhash.Hash // prefix of the handle's that is held in the gen index
	Dst    []int32          // pool blocks for the rest of the prompt
	// BlockTokens is how many tokens a block of Dst has, 0 = as many as the handle's. If
	// that is another number, Have are the handle's blocks that are held as a whole.
	BlockTokens int
	Prompt      blockhash.Hash // behind the last token, for Handle.GenFirst
}

// PullEvent is what the byte path reports about a pull, through the driver's inbox.
type PullEvent struct {
	ID       ID
	Progress int  // blocks so far, from the start of Dst, that were checked and surely read under a live lease
	Done     bool // the pull ended and touches no block any more
	OK       bool // with Done: the ctx side confirmed the epoch
	// Epoch is with Done that of the last grant, 0 = there was none.
	Epoch uint32
	// First are the tokens of FIN, with OK, or with Ended: the request ended with
	// them, and no block came.
	First  []Token
	Ended  bool
	Code   string
	Reason string // with Done and not OK: what failed, for the log and the client
}
