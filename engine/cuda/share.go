//go:build cuda

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"tandem/engine/cuda/gpu"
)

// poolHandle is by what another process opens the pool.
type poolHandle struct {
	Magic      [8]byte
	Memory     gpu.Shared
	BlockBytes int64
	Blocks     int64
}

var poolMagic = [8]byte{'t', 'd', 'k', 'v', 'p', 'o', 'o', 'l'}

// Share returns by what another process of this host opens the KV pool.
func (b *Backend) Share() ([]byte, bool) {
	k := &b.blocks
	h := poolHandle{Magic: poolMagic, BlockBytes: k.bytes, Blocks: int64(k.n)}
	err := b.do(func() (err error) {
		h.Memory, err = b.dev.Share(k.pool)
		return err
	})
	if err != nil {
		return nil, false // a driver or container without it: blocks go over the host
	}
	var out bytes.Buffer
	err = binary.Write(&out, binary.LittleEndian, &h)
	return out.Bytes(), err == nil
}

// foreign is the open pool of another process.
type foreign struct {
	poolHandle
	at gpu.Ptr // of the allocation

	mu     sync.Mutex
	closed bool
}

// OpenShared opens the pool of another process, whose device must be one that this
// process sees. copyBlocks copies blocks of it over blocks of this pool, from device
// to device, and returns when they are there. done closes it.
func (b *Backend) OpenShared(handle []byte) (copyBlocks func(to, from []int32) error, done func(), err error) {
	k, f := &b.blocks, &foreign{}
	if err := binary.Read(bytes.NewReader(handle), binary.LittleEndian, &f.poolHandle); err != nil || f.Magic != poolMagic {
		return nil, nil, errors.New("the handle is not that of a KV pool on a device")
	}
	end := f.Memory.Size - f.Memory.Offset
	if f.BlockBytes != k.bytes || f.Memory.Offset < 0 || f.Blocks < 0 || end < 0 || f.Blocks > end/max(f.BlockBytes, 1) {
		return nil, nil, fmt.Errorf("a pool of %d blocks of %d bytes in %d bytes; blocks here have %d", f.Blocks, f.BlockBytes, end, k.bytes)
	}
	err = k.onThread(func() (err error) {
		f.at, err = k.dev.OpenShared(f.Memory)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return func(to, from []int32) error { return b.copyForeign(f, to, from) }, func() { k.closeForeign(f) }, nil
}

// copyForeign copies blocks of another process's pool.
func (b *Backend) copyForeign(f *foreign, to, from []int32) error {
	k := &b.blocks
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	return k.onThread(func() error {
		if err := b.afterReads(); err != nil {
			return err
		}
		for i, id := range to {
			if id < 0 || int(id) >= k.n || from[i] < 0 || int64(from[i]) >= f.Blocks {
				return errors.Join(fmt.Errorf("block %d of %d over block %d of %d", from[i], f.Blocks, id, k.n), k.stream.Sync())
			}
			if err := k.stream.Copy(k.at(id), f.at.At(f.Memory.Offset+int64(from[i])*k.bytes), k.bytes); err != nil {
				return errors.Join(err, k.stream.Sync())
			}
		}
		return k.stream.Sync()
	})
}

func (k *blocks) closeForeign(f *foreign) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		_ = k.onThread(func() error { return k.dev.CloseShared(f.at) }) // a device that is lost has told
	}
}
