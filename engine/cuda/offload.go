//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"tandem/engine/cuda/gpu"
)

// offload copies blocks to pinned memory of the host and back, beside steps. What
// leaves goes to a slot on the device first, which takes as long as reading it
// once: the next step may then overwrite the block, while the slot goes to the host
// over a stream of its own.
type offload struct {
	host   *gpu.Pinned
	stream *gpu.Stream
	before *gpu.Event // end of the steps, and of reads of blocks, that a copy waits for
	slots  []offloadSlot
	next   int
	ends   chan ending
	gone   chan struct{}

	mu     sync.Mutex
	failed error // of a copy to the host: no copy back may succeed any more
}

// offloadSlot is a block's place on the device, and the end of its copy to the host.
type offloadSlot struct {
	at   gpu.Ptr
	done *gpu.Event
}

// ending is a copy under way.
type ending struct {
	mark  *gpu.Event
	spare bool // the mark is this copy's own
	leave bool // it goes to the host
	done  func(error)
}

// offloadSlots is how many blocks are on their way to the host at most before steps
// wait for one, and slotBytes what they take at most, unless two take more.
const (
	offloadSlots = 16
	slotBytes    = 64 << 20
)

// HostMemory returns pinned memory for Offload and Onboard, which lives as long as
// the backend. It is called once, before them.
func (b *Backend) HostMemory(bytes int64) ([]byte, error) {
	if b.closed {
		return nil, ErrClosed
	}
	o := &b.offload
	if o.ends != nil {
		return nil, errors.New("host memory of blocks was asked for twice")
	}
	err := b.do(func() (err error) {
		if o.host, err = b.allocPinned(bytes); err != nil {
			return fmt.Errorf("%d bytes of pinned host memory: %w", bytes, err)
		}
		return o.open(b)
	})
	if err != nil {
		return nil, err
	}
	// Who waits has a thread of its own, as that of steps has no time to.
	waiter, err := gpu.Open(b.cfg.Ordinal)
	if err != nil {
		return nil, err
	}
	o.ends, o.gone = make(chan ending, 1<<16), make(chan struct{})
	go o.wait(waiter)
	return o.host.Bytes()[:bytes:bytes], nil
}

// open makes stream, events and slots, on the device's thread.
func (o *offload) open(b *Backend) (err error) {
	if o.stream, err = b.dev.NewStream(0); err != nil {
		return err
	}
	if o.before, err = b.dev.NewEvent(0); err != nil {
		return err
	}
	o.slots = make([]offloadSlot, min(max(int(slotBytes/b.blocks.bytes), 2), offloadSlots))
	for i := range o.slots {
		s := &o.slots[i]
		if s.at, err = b.alloc(b.blocks.bytes); err != nil {
			return fmt.Errorf("slots for blocks that leave the device: %w", err)
		}
		if s.done, err = b.dev.NewEvent(gpu.Sleeping); err != nil {
			return err
		}
	}
	return nil
}

// Offload begins to copy a block to memory of HostMemory, and calls done when it is
// there. Whatever is asked for later finds that the block was read.
func (b *Backend) Offload(block int32, to []byte, done func(error)) {
	o := &b.offload
	err := b.move(block, to, func(host gpu.Host) error {
		s := &o.slots[o.next]
		if err := b.stream.Wait(s.done); err != nil { // as of the block that was here before
			return err
		}
		err := errors.Join(b.stream.Copy(s.at, b.blocks.at(block), b.blocks.bytes), b.stream.Record(o.before), o.stream.Wait(o.before),
			o.stream.Read(host, s.at), o.stream.Record(s.done))
		if err != nil {
			return err
		}
		o.next = (o.next + 1) % len(o.slots)
		o.ends <- ending{mark: s.done, leave: true, done: done}
		return nil
	})
	if err != nil {
		o.fail(err)
		done(err)
	}
}

// Onboard begins to copy memory of HostMemory to a block, behind the copies and the
// steps that were asked for, and calls done when it is there. Nothing may use the
// block before. Goroutines other than the loop's may call it.
func (b *Backend) Onboard(block int32, from []byte, done func(error)) {
	o := &b.offload
	err := b.move(block, from, func(host gpu.Host) error {
		mark, err := b.dev.NewEvent(gpu.Sleeping)
		if err != nil {
			return err
		}
		err = errors.Join(b.stream.Record(o.before), o.stream.Wait(o.before), o.stream.Write(b.blocks.at(block), host), o.stream.Record(mark))
		if err != nil {
			return errors.Join(err, mark.Free())
		}
		o.ends <- ending{mark: mark, spare: true, done: done}
		return nil
	})
	if err != nil {
		done(err)
	}
}

// move runs fn on the device's thread with the pinned memory of a block.
func (b *Backend) move(block int32, mem []byte, fn func(gpu.Host) error) error {
	switch {
	case b.offload.ends == nil:
		return errors.New("move a KV block: no host memory was asked for")
	case block < 0 || int(block) >= b.blocks.n || int64(len(mem)) != b.blocks.bytes:
		return fmt.Errorf("move block %d of %d: %d bytes of host memory for %d", block, b.blocks.n, len(mem), b.blocks.bytes)
	}
	all := b.offload.host.Bytes()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))) - uintptr(unsafe.Pointer(unsafe.SliceData(all)))
	if at > uintptr(len(all)-len(mem)) {
		return errors.New("move a KV block: the memory is not that of HostMemory")
	}
	return b.do(func() error { return fn(b.offload.host.Slice(int64(at), int64(len(mem)))) })
}

func (o *offload) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.failed == nil {
		o.failed = err
	}
}

func (o *offload) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// wait tells the ends of copies, in the order in which they were asked for.
func (o *offload) wait(dev *gpu.Device) {
	defer close(o.gone)
	for e := range o.ends {
		err := dev.Do(func() error {
			err := e.mark.Sync()
			if e.spare {
				err = errors.Join(err, e.mark.Free())
			}
			return err
		})
		if e.leave {
			o.fail(err)
		} else {
			err = errors.Join(err, o.failure())
		}
		e.done(err)
	}
	_ = dev.Close() // whose errors the copies had
}

// close waits for the copies under way; none may be asked for any more.
func (o *offload) close() {
	if o.ends != nil {
		close(o.ends)
		<-o.gone
	}
}

// free gives streams and events back, on the device's thread.
func (o *offload) free() {
	if o.stream != nil {
		_ = o.stream.Free()
	}
	if o.before != nil {
		_ = o.before.Free()
	}
	for _, s := range o.slots {
		if s.done != nil {
			_ = s.done.Free()
		}
	}
}
