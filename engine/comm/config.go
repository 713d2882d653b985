package comm

import (
	"context"
	"fmt"
	"math"
	"net"
	"time"
)

// protocolVersion is spoken between processes. Others are refused.
const protocolVersion = 2

// Config of a group. All processes of an instance need the same Size,
// ConfigEpoch and Key.
type Config struct {
	// Size is the number of ranks of the instance.
	Size int
	// ConfigEpoch tells apart instances whose settings differ.
	ConfigEpoch uint32
	// Settings are what ConfigEpoch stands for, as lines of key=value. A process
	// whose epoch differs is told which key does. Empty: it is not.
	Settings string
	// OnJoin is called in the process of rank 0 while it waits, whenever ranks have
	// joined, gone, or been refused; it must not block.
	OnJoin func(Joining)
	// Key, when set, must be the same everywhere; joins then carry an HMAC.
	Key []byte

	// Timeout ends the group when a collective waits that long for a rank that
	// reports no progress. 0 = 30 s, negative = never.
	Timeout time.Duration
	// StallAfter is when OnStall is called for such a wait. 0 = 2 s.
	StallAfter time.Duration
	// OnStall is called once a wait, from a goroutine of the group; it must not
	// block.
	OnStall func(Stall)
	// JoinTimeout bounds the time until all ranks have joined. 0 = 60 s.
	JoinTimeout time.Duration
	// Work is a count that moves while this process computes. Waits for a rank
	// whose process moves it last on, as after Rank.Progress. It is called a few
	// times a second from goroutines of the group; nil = none.
	Work func() uint64
	// OnPost gets what ranks post, in the process of rank 0 alone: from a reader of
	// the group with the ranks of the process that sent it, in the order in which
	// that process sent it, or from the goroutine that posts if that is in the same
	// process. It may run several times at once, it must not block, and msg is
	// valid during the call. It may run while the group ends, never after Close.
	// nil drops the messages.
	OnPost func(from Span, msg []byte)
	// MaxPayload bounds one rank's payload and one posted message, in bytes.
	// 0 = 64 MiB.
	MaxPayload uint32

	// Dial opens connections of a leaf; nil means TCP. For tests and proxies.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	version uint32 // for tests
}

// Joining is how far a group is that waits for ranks of other processes.
type Joining struct {
	Missing []int  // ranks
	Refused string // why the last process was not taken in, empty for other news
}

// Stall is a wait that lasts longer than it should.
type Stall struct {
	Op      Op
	Iter    uint64
	Missing []int
	Waited  time.Duration
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.Size < 1 || c.Size > math.MaxUint16 {
		return fmt.Errorf("group size %d is out of range 1..%d", c.Size, math.MaxUint16)
	}
	if c.StallAfter < 0 || c.JoinTimeout < 0 {
		return fmt.Errorf("group times must not be negative")
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.StallAfter == 0 {
		c.StallAfter = 2 * time.Second
	}
	if c.JoinTimeout == 0 {
		c.JoinTimeout = time.Minute
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = 64 << 20
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if c.version == 0 {
		c.version = protocolVersion
	}
}

// patience is how long an unanswered ping may take. A process that stands still
// is judged by Timeout, not by its silence; one that died is noticed by its
// connection.
func (c *Config) patience() time.Duration {
	if c.Timeout <= 0 {
		return 24 * time.Hour
	}
	return c.Timeout + 10*time.Second
}

// checkSpan reports ranks that cannot be hosted together.
func (c *Config) checkSpan(s Span) error {
	if s.First < 0 || s.Last < s.First || s.Last >= c.Size {
		return fmt.Errorf("ranks %d-%d do not fit a group of %d", s.First, s.Last, c.Size)
	}
	return nil
}
