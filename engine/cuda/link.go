//go:build cuda

package cuda

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"time"
	"unsafe"

	"tandem/engine/cuda/gpu"
)

// Link is a collective over device memory, as NCCL is: its work is queued into a
// stream, and all ranks call it in the same order. Counts are equal on all ranks.
type Link interface {
	// AllGather writes count bytes of each rank, in rank order, to dst of all. src
	// may be the rank's own part of dst.
	AllGather(ctx context.Context, dst, src uint64, count int, stream unsafe.Pointer) error
	// ReduceScatter sums as many float32 as ranks times count, and gives each rank
	// the count of its place. dst may be the rank's own part of src.
	ReduceScatter(ctx context.Context, dst, src uint64, count int, stream unsafe.Pointer) error
	// AllReduce writes the sum of count float32 to dst of each rank, which may be src.
	AllReduce(ctx context.Context, dst, src uint64, count int, stream unsafe.Pointer) error
	// Err tells whether queued work has failed. Then the peers are released.
	Err() error
	// Close leaves the collective, and releases peers that wait in it.
	Close() error
}

// DefaultLinkTimeout bounds the joining of a Link, and of a step that uses it.
const DefaultLinkTimeout = time.Minute

// linked tells whether this rank's collectives go over a Link. The first time all
// ranks agree on it: each must be able to open one, on a device of its own. It runs
// on the device's thread.
func (b *Backend) linked() (bool, error) {
	if b.agreed || b.cfg.Group == nil {
		return b.link != nil, nil
	}
	mine := float32(0)
	if b.cfg.Join != nil {
		mine = math.Float32frombits(b.deviceID())
	}
	size := b.cfg.Group.Size()
	rows, all := make([]int, size), make([]float32, size)
	for r := range rows {
		rows[r] = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.patience())
	defer cancel()
	if err := b.cfg.Group.AllGather(ctx, all, []float32{mine}, rows, 1); err != nil {
		return false, because("agree on NCCL", err)
	}
	seen := map[uint32]bool{0: true}
	for _, id := range all {
		bits := math.Float32bits(id)
		if seen[bits] {
			b.agreed = true // a rank without, or two on one device: over the host then
			return false, nil
		}
		seen[bits] = true
	}
	link, err := b.cfg.Join(ctx)
	if err != nil {
		return false, because("join NCCL", err)
	}
	b.agreed, b.link = true, link
	return true, nil
}

// deviceID tells devices apart, never 0.
func (b *Backend) deviceID() uint32 {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, b.dev.Info().UUID, b.dev.Info().Bus)
	return h.Sum32() | 1
}

func (b *Backend) patience() time.Duration {
	if b.cfg.LinkTimeout > 0 {
		return b.cfg.LinkTimeout
	}
	return DefaultLinkTimeout
}

// longestPause is the most that await comes late: little beside a step, and far
// more than what a look at the stream costs.
const longestPause = 50 * time.Microsecond

// await waits for a step whose collectives are on the device: a peer that is gone
// would leave the stream waiting for ever, so the link is asked, and time is bounded.
func (b *Backend) await() error {
	for start, pause := time.Now(), 10*time.Microsecond; ; pause = min(2*pause, longestPause) {
		done, err := b.stream.Done()
		if done || err != nil {
			return err
		}
		if err := b.link.Err(); err != nil {
			return because("a collective", err)
		}
		if time.Since(start) > b.patience() {
			return because("a collective", errors.Join(fmt.Errorf("not done after %v", b.patience()), b.link.Close()))
		}
		time.Sleep(pause)
	}
}

// slot is the bytes of the largest part of a rank, which all get: the collectives
// of devices move equal parts.
func (b *Backend) slot(bytes func(rank int) int64) (size int64) {
	for r := range b.cfg.Group.Size() {
		size = max(size, bytes(r))
	}
	return (size + 15) / 16 * 16
}

func (b *Backend) gather(op string, at, own gpu.Ptr, size int64) error {
	if size == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.patience())
	defer cancel()
	return because(op, b.link.AllGather(ctx, uint64(at), uint64(own), int(size), b.stream.Handle()))
}

// linkGatherRows is gatherRows on the device.
func (b *Backend) linkGatherRows(s *shape, in, out *buffer) error {
	row := int64(in.width * in.size)
	size := b.slot(func(r int) int64 { return int64(s.batch.RankRows[r]) * row })
	at := b.scratch.shares
	own := at.At(int64(b.cfg.Group.ID()) * size)
	if err := b.stream.Copy(own, in.at, int64(s.rows)*row); err != nil {
		return err
	}
	if err := b.gather("gather rows", at, own, size); err != nil {
		return err
	}
	to := out.at
	for r, n := range s.batch.RankRows {
		if err := b.stream.Copy(to, at.At(int64(r)*size), int64(n)*row); err != nil {
			return err
		}
		to = to.At(int64(n) * row)
	}
	return nil
}

// linkGatherColumns is gatherColumns on the device, of n rows.
func (b *Backend) linkGatherColumns(all *buffer, cuts []int, n int) error {
	stride, id := int64(all.stride*all.size), b.cfg.Group.ID()
	width := func(r int) int64 { return int64((cuts[r+1] - cuts[r]) * all.size) }
	size := b.slot(func(r int) int64 { return int64(n) * width(r) })
	at := b.scratch.shares
	own := at.At(int64(id) * size)
	if err := b.stream.CopyRows(own, width(id), all.at.At(int64(cuts[id]*all.size)), stride, width(id), n); err != nil {
		return err
	}
	if err := b.gather("gather columns", at, own, size); err != nil {
		return err
	}
	for r := range b.parts {
		if r == id {
			continue
		}
		if err := b.stream.CopyRows(all.at.At(int64(cuts[r]*all.size)), stride, at.At(int64(r)*size), width(r), width(r), n); err != nil {
			return err
		}
	}
	return nil
}

// linkShares is the sum of addShares on the device; what to add is at the
// returned offset of scratch.shares.
func (b *Backend) linkShares(s *shape, share *buffer) (offset int64, err error) {
	at, row := b.scratch.shares, int64(share.width*4)
	ctx, cancel := context.WithTimeout(context.Background(), b.patience())
	defer cancel()
	if !share.shared {
		count := s.rows * share.width
		if err := b.stream.Copy(at, share.at, int64(s.rows)*row); err != nil {
			return 0, err
		}
		return 0, because("add shares", b.link.AllReduce(ctx, uint64(at), uint64(at), count, b.stream.Handle()))
	}
	size := b.slot(func(r int) int64 { return int64(s.batch.RankRows[r]) * row })
	from := share.at
	for r, n := range s.batch.RankRows {
		if err := b.stream.Copy(at.At(int64(r)*size), from, int64(n)*row); err != nil {
			return 0, err
		}
		from = from.At(int64(n) * row)
	}
	offset = int64(b.cfg.Group.ID()) * size
	err = b.link.ReduceScatter(ctx, uint64(at.At(offset)), uint64(at), int(size/4), b.stream.Handle())
	return offset, because("add shares", err)
}
