//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"sync"

	"tandem/engine/cuda/gpu"
)

// blocks is the KV pool: block after block, each contiguous, so that one copy moves
// it. Transfers have a thread, a stream and pinned memory of their own, because
// the rank's thread may be in the middle of a step.
type blocks struct {
	pool  gpu.Ptr
	bytes int64 // of a block
	n     int

	mu     sync.Mutex // one copy at a time
	dev    *gpu.Device
	stream *gpu.Stream
	stage  *gpu.Pinned // one block
}

// open allocates the pool on the rank's device, and what copies need.
func (k *blocks) open(dev *gpu.Device, n int, bytes int64) (err error) {
	k.n, k.bytes = n, bytes
	err = dev.Do(func() (err error) {
		if k.pool, err = dev.Alloc(int64(n) * bytes); err != nil {
			return fmt.Errorf("KV pool of %d blocks: %w; lower kv_cache_config.max_tokens or free_gpu_memory_fraction", n, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if k.dev, err = gpu.Open(dev.Info().Ordinal); err != nil {
		return err
	}
	return k.dev.Do(func() (err error) {
		if k.stream, err = k.dev.NewStream(0); err != nil {
			return err
		}
		k.stage, err = k.dev.AllocPinned(bytes)
		return err
	})
}

// close frees what copies need; the pool goes with the rank's device.
func (k *blocks) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dev == nil {
		return nil
	}
	err := k.dev.Do(func() (err error) {
		if k.stream != nil {
			err = k.stream.Free()
		}
		if k.stage != nil {
			err = errors.Join(err, k.stage.Free())
		}
		return err
	})
	err = errors.Join(err, k.dev.Close())
	k.dev = nil
	return err
}

func (k *blocks) at(id int32) gpu.Ptr { return k.pool.At(int64(id) * k.bytes) }

// copies runs fn with the stage, on the thread of copies.
func (k *blocks) copies(id int32, fn func() error) error {
	if id < 0 || int(id) >= k.n {
		return fmt.Errorf("block %d of %d", id, k.n)
	}
	return k.onThread(fn)
}

// onThread runs fn on the thread of copies, one call at a time.
func (k *blocks) onThread(fn func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dev == nil {
		return ErrClosed
	}
	return k.dev.Do(fn)
}

// afterReads lets the stream of copies wait for what reads blocks that it is about
// to overwrite.
func (b *Backend) afterReads() error {
	if before := b.offload.before; before != nil { // an Offload may not have read the block yet
		return b.blocks.stream.Wait(before)
	}
	return nil
}

// Block returns nil: blocks are not in the host's memory.
func (b *Backend) Block(int32) []byte { return nil }

// BlockBytes is the size of a block.
func (b *Backend) BlockBytes() int { return int(b.blocks.bytes) }

// Read copies a block to dst. Goroutines other than the loop's may read blocks
// that are leased. If the device fails dst is left as it is: the checksum of the
// transfer is then of other bytes, and the step that runs reports the device.
func (b *Backend) Read(id int32, dst []byte) {
	k := &b.blocks
	b.lost("read", k.copies(id, func() error {
		if err := errors.Join(k.stream.Read(k.stage.Slice(0, int64(len(dst))), k.at(id)), k.stream.Sync()); err != nil {
			return err
		}
		copy(dst, k.stage.Bytes())
		return nil
	}))
}

// Write overwrites a block with src. Other goroutines may write blocks under a
// pull.
func (b *Backend) Write(id int32, src []byte) {
	k := &b.blocks
	b.lost("write", k.copies(id, func() error {
		copy(k.stage.Bytes(), src)
		if err := b.afterReads(); err != nil {
			return err
		}
		return errors.Join(k.stream.Write(k.at(id), k.stage.Slice(0, int64(len(src)))), k.stream.Sync())
	}))
}

// lost keeps the error of a copy for the next step, which must not use what was
// not copied.
func (b *Backend) lost(what string, err error) {
	if err != nil {
		err = fmt.Errorf("%s a KV block: %w", what, err)
		b.copyError.CompareAndSwap(nil, &err)
	}
}

// CopyBlockPrefix makes the first tokens positions of block to equal those of
// block from. The positions behind them hold nothing of use and must be written
// before they are read.
func (b *Backend) CopyBlockPrefix(from, to int32, tokens int) error {
	if b.closed {
		return ErrClosed
	}
	if err := b.CheckCopy(from, to, tokens); err != nil || tokens == 0 || from == to {
		return err
	}
	// One contiguous copy beats picking the positions out of every head.
	return b.do(func() error { return b.stream.Copy(b.blocks.at(to), b.blocks.at(from), b.blocks.bytes) })
}
