package wire

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"tandem/engine/transfer"
)

// splitPool shows a pool's blocks as if they lay in several places.
type splitPool struct{ p *pool }

func (s splitPool) Block(id int32) []byte {
	if s.p.onBlock != nil {
		s.p.onBlock(id)
	}
	return nil
}
func (s splitPool) BlockBytes() int { return len(s.p.data[0]) }

func (s splitPool) Read(id int32, dst []byte) {
	if s.p.onRead != nil {
		s.p.onRead(id)
	}
	s.copy(dst, s.p.data[id])
}

func (s splitPool) Write(id int32, src []byte) { s.copy(s.p.data[id], src) }

// copy panics if the buffer is not of the size of a block.
func (s splitPool) copy(dst, src []byte) {
	half := s.BlockBytes() / 2
	copy(dst[:half], src[:half])
	copy(dst[half:2*half:len(dst)], src[half:2*half:len(src)])
}

// splits runs a test for every mix of memories and both byte paths.
func splits(t *testing.T, f func(t *testing.T, cfg Config, owner, gen func(blocks int) *pool)) {
	made := func(split bool) func(int) *pool {
		return func(blocks int) *pool {
			p := newPool(blocks, 1024)
			p.split = split
			return p
		}
	}
	bothPaths(t, func(t *testing.T, cfg Config) {
		for _, owner := range []bool{false, true} {
			for _, gen := range []bool{false, true} {
				t.Run(fmt.Sprintf("owner split %v gen split %v", owner, gen), func(t *testing.T) {
					f(t, cfg, made(owner), made(gen))
				})
			}
		}
	})
}

func TestSplitMemory(t *testing.T) {
	splits(t, func(t *testing.T, cfg Config, owner, gen func(int) *pool) {
		o := newOwner(t, cfg, owner(32).fill(1))
		g := newGen(t, cfg, gen(32).fill(9))
		before := newPool(32, 1024).fill(9)
		g.pullTo(o.offer(1, 5, 10), 20, 3)
		checkOK(t, g.final(t, 1), 7)
		checkBlocks(t, o.mem, 8, g.mem, 20, 7)
		checkBlocks(t, before, 0, g.mem, 0, 20)
		checkBlocks(t, before, 27, g.mem, 27, 5)
		if out, in := moved(o.Puller, g.Puller); out != 7*1024 || in != 7*1024 {
			t.Errorf("%d bytes sent, %d received", out, in)
		}
	})
}

// Many pulls at once must not share a buffer.
func TestSplitMemoryConcurrently(t *testing.T) {
	splits(t, func(t *testing.T, cfg Config, owner, gen func(int) *pool) {
		const pulls, blocks = 20, 4
		o := newOwner(t, cfg, owner(pulls*blocks).fill(7))
		g := newGen(t, cfg, gen(pulls*blocks))
		for i := range pulls {
			g.pullTo(o.offer(transfer.ID(i+1), i*blocks, blocks), i*blocks, 0)
		}
		for ended := 0; ended < pulls; {
			if e := <-g.events; e.Done {
				checkOK(t, e, blocks)
				ended++
			}
		}
		checkBlocks(t, o.mem, 0, g.mem, 0, pulls*blocks)
	})
}

// After Revoke the owner may overwrite split blocks at once, too.
func TestSplitMemoryRevoke(t *testing.T) {
	splits(t, func(t *testing.T, cfg Config, owner, gen func(int) *pool) {
		o := newOwner(t, cfg, owner(64).fill(5))
		g := newGen(t, cfg, gen(64))
		o.mem.onBlock = func(id int32) {
			if id != 10 {
				return
			}
			o.revoke(1)
			for _, b := range o.mem.data {
				clear(b)
			}
		}
		g.pullTo(o.offer(1, 0, 64), 0, 0)
		e := g.final(t, 1)
		checkFailed(t, e, CodeStale, "stale")
		checkBlocks(t, newPool(64, 1024).fill(5), 0, g.mem, 0, e.Progress)
		if e.Progress > 10 {
			t.Errorf("%d blocks verified, 10 were served", e.Progress)
		}
	})
}

// Revoke waits for a copy of a split block that has begun.
func TestSplitMemoryRevokeWhileReading(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		mem := newPool(64, 1024).fill(5)
		mem.split = true
		o := newOwner(t, cfg, mem)
		g := newGen(t, cfg, newPool(64, 1024))
		revoked := make(chan struct{})
		mem.onRead = func(id int32) {
			if id != 10 {
				return
			}
			go func() {
				o.revoke(1)
				clear(mem.data[id])
				close(revoked)
			}()
			select {
			case <-revoked:
				t.Error("Revoke returned during a copy")
			case <-time.After(20 * time.Millisecond):
			}
		}
		g.pullTo(o.offer(1, 0, 64), 0, 0)
		<-revoked
		e := g.final(t, 1)
		if !e.OK {
			checkFailed(t, e, CodeStale, "stale")
		}
		checkBlocks(t, newPool(64, 1024).fill(5), 0, g.mem, 0, e.Progress)
	})
}

// A block whose bytes were changed on the way is not written to split memory.
func TestSplitMemoryCorruption(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(8, 1024).fill(1))
	mem := newPool(8, 1024)
	mem.split = true
	nw := &network{wrap: func(_ int, addr string, c net.Conn) (net.Conn, error) {
		if addr == o.dataAddr() {
			c = &faultyConn{Conn: c, flip: frameHeaderBytes + 100}
		}
		return c, nil
	}}
	g := newGen(t, Config{NoLocal: true, NoShared: true, Dial: nw.dial, sums: true}, mem)
	g.pullTo(o.offer(1, 0, 8), 0, 0)
	checkFailed(t, g.final(t, 1), CodeFailed, "checksum")
	if !bytes.Equal(mem.data[0], make([]byte, 1024)) {
		t.Error("the corrupt block was written")
	}
}

func TestSplitMemorySizes(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		small := newPool(8, 512)
		small.split = true
		o := newOwner(t, cfg, newPool(8, 1024))
		g := newGen(t, cfg, small)
		g.pullTo(o.offer(1, 0, 4), 0, 0)
		checkFailed(t, g.final(t, 1), CodeLayout, "own blocks have 512 bytes")
		o = newOwner(t, cfg, small)
		g = newGen(t, cfg, newPool(8, 1024))
		g.pullTo(o.offer(1, 0, 4), 0, 0)
		checkFailed(t, g.final(t, 1), CodeLayout, "owner's blocks have 512 bytes")
	})
	// A block that is not there, seen only after the ACCEPT.
	m := newMemory(newPool(1, 8))
	if err := (&places{m: m, dst: []int32{0}, size: 8}).copy(0, extent{m: m, id: 3}); err == nil {
		t.Error("a missing block was copied")
	}
}
