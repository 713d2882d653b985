//go:build cuda

package cuda

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tandem/engine/tensor"
)

// Packing names the order of bytes inside one KV block, for the transfer
// handshake: [layer][keys, values][kvHead][token][headDim].
const Packing = "kv-rows"

// ErrClosed is returned by methods of a closed backend.
var ErrClosed = errors.New("the CUDA backend is closed")

// ErrGroup is wrapped by errors of Run when a collective failed: the step is lost
// and the group has ended.
var ErrGroup = errors.New("the group of ranks failed")

// Group is what a backend needs of the collective that its rank belongs to, over
// host memory. All ranks give equal rows and width. An error is the end of the
// group for all its ranks.
type Group interface {
	ID() int
	Size() int
	// AllGather gives every rank the rows of all: dst [sum(rows), width] of src
	// [rows[ID], width], which may be the rank's part of dst.
	AllGather(ctx context.Context, dst, src []float32, rows []int, width int) error
	// ReduceScatter gives each rank the sum over all ranks of its rows: dst
	// [rows[ID], width] of src [sum(rows), width], of which dst may be the rank's
	// part and the rest is lost.
	ReduceScatter(ctx context.Context, dst, src []float32, rows []int, width int) error
}

// Config says what a Backend is made for.
type Config struct {
	Ordinal int // of the device
	// KV is the geometry of the paged cache. BlockTokens must be a multiple of 16
	// and HeadDim of 8.
	KV tensor.KVShape
	// MaxRows is the most rows of a batch (max_num_tokens), MaxSeqs the most
	// sequences in it, MaxPages the most blocks that they have together.
	MaxRows, MaxSeqs, MaxPages int
	// Group is the group that the backend's rank belongs to, nil for a backend
	// that is alone.
	Group Group
	// Join joins the Link of the group's ranks, on the device's thread; nil for a
	// machine that has none. Without it, or on one device for several ranks, the
	// ranks meet on the host.
	Join func(context.Context) (Link, error)
	// LinkTimeout bounds a step over a Link, 0 = DefaultLinkTimeout.
	LinkTimeout time.Duration
	// MaxSharedRows is the most rows of all ranks in a step; 0 is MaxRows for each.
	MaxSharedRows int
	// Graphs are the numbers of decoding rows for which a step is captured once and
	// launched as one, ascending; none without.
	Graphs []int
	// Deterministic makes a row's bits depend on its tokens and positions only: every
	// product is summed by one kernel for all numbers of rows, attention by the one of
	// chunks, and ranks meet on the host.
	Deterministic bool
	// Loaded, if set, is called after each weight tensor is on the device.
	Loaded func(name string, bytes int)
}

const (
	maxHeadDim = 256
	maxRows    = 1 << 20
)

// Validate checks the numbers. The errors name the configuration key.
func (c *Config) Validate() error {
	kv := c.KV
	switch {
	case c.MaxRows < 1 || c.MaxRows > maxRows:
		return fmt.Errorf("max_num_tokens is %d, must be 1 to %d", c.MaxRows, maxRows)
	case c.MaxSeqs < 1 || c.MaxSeqs > c.MaxRows:
		return fmt.Errorf("max_batch_size is %d, must be 1 to max_num_tokens, %d", c.MaxSeqs, c.MaxRows)
	case c.Group != nil && (c.Group.ID() < 0 || c.Group.ID() >= c.Group.Size()):
		return fmt.Errorf("rank %d of a group of %d", c.Group.ID(), c.Group.Size())
	case kv.BlockTokens < 16 || kv.BlockTokens%16 != 0 || kv.BlockTokens > 1<<16:
		return fmt.Errorf("kv_cache_config.tokens_per_block is %d, must be a multiple of 16", kv.BlockTokens)
	case kv.DType != tensor.BF16 && kv.DType != tensor.F16 && kv.DType != tensor.F8:
		return fmt.Errorf("kv_cache_config.dtype is %s: on a GPU it must be auto, bfloat16, float16 or fp8", kv.DType)
	case kv.HeadDim < 8 || kv.HeadDim%8 != 0 || kv.HeadDim > maxHeadDim:
		return fmt.Errorf("head dimension %d is not supported: a multiple of 8 up to %d is", kv.HeadDim, maxHeadDim)
	case kv.Layers < 1 || kv.KVHeads < 1 || kv.Layers > 1<<16 || kv.KVHeads > 1<<16:
		return fmt.Errorf("KV cache of %d layers and %d heads: both must be 1 to %d", kv.Layers, kv.KVHeads, 1<<16)
	case kv.Blocks < 1 || kv.BlockBytes() <= 0 || kv.Blocks > (1<<47)/kv.BlockBytes():
		return fmt.Errorf("KV cache of %d blocks of %d bytes: no such memory", kv.Blocks, kv.BlockBytes())
	}
	return nil
}

// sharedRows resolves MaxSharedRows.
func (c *Config) sharedRows() int {
	switch {
	case c.Group == nil:
		return 0
	case c.MaxSharedRows != 0:
		return c.MaxSharedRows
	}
	return max(c.MaxRows, min(c.MaxRows*c.Group.Size(), maxRows))
}
