package wire

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"tandem/engine/transfer"
)

func TestPullMovesOnlyTheMissingSuffix(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(32, 1024).fill(1))
		mem := newPool(32, 1024).fill(9)
		before := newPool(32, 1024).fill(9)
		var received *faultyConn
		nw := &network{wrap: func(_ int, addr string, c net.Conn) (net.Conn, error) {
			if addr == o.dataAddr() {
				received = &faultyConn{Conn: c}
				return received, nil
			}
			return c, nil
		}}
		cfg.Dial = nw.dial
		g := newGen(t, cfg, mem)
		h := o.offer(1, 5, 10)
		g.pullTo(h, 20, 3)
		checkOK(t, g.final(t, 1), 7)
		g.quiet(t)
		checkBlocks(t, o.mem, 8, mem, 20, 7)
		checkBlocks(t, before, 0, mem, 0, 20)
		checkBlocks(t, before, 27, mem, 27, 5)
		if out, in := moved(o.Puller, g.Puller); out != 7*1024 || in != 7*1024 {
			t.Errorf("%d bytes sent, %d received", out, in)
		}
		if a := next[transfer.Attach](t, o); len(a.Have) != 3 || a.Layout != testLayout || a.Epoch != 7 {
			t.Errorf("attach %+v", a)
		}
		if d := next[transfer.Done](t, o); d.Epoch != 7 {
			t.Errorf("done %+v", d)
		}
		if cfg.NoLocal && received.read != 7*frameBytes {
			t.Errorf("%d bytes came for 7 blocks", received.read)
		}
	})
}

func TestNothingMissing(t *testing.T) {
	allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
		o := newOwner(t, cfg, owner(8))
		g := newGen(t, cfg, newPool(8, 1024))
		g.pullTo(o.offer(1, 0, 4), 0, 4)
		checkOK(t, g.final(t, 1), 0)
	})
}

// The owner may not know all blocks that the puller holds; the puller still
// fetches only what it lacks.
func TestOwnerSkipsLess(t *testing.T) {
	allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
		o := newOwner(t, cfg, owner(8).fill(3))
		o.onAttach = func(a transfer.Attach) bool {
			a.Have = a.Have[:1]
			o.answer(a)
			return false
		}
		g := newGen(t, cfg, newPool(8, 1024))
		g.pullTo(o.offer(1, 0, 6), 0, 4)
		checkOK(t, g.final(t, 1), 2)
		checkBlocks(t, o.mem, 4, g.mem, 0, 2)
	})
}

func TestRejects(t *testing.T) {
	cases := []struct{ reason, code string }{
		{transfer.RejectUnknown, CodeUnknown},
		{transfer.RejectLayout, CodeLayout},
		{transfer.RejectStale, CodeStale},
	}
	allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
		o := newOwner(t, cfg, owner(8))
		g := newGen(t, cfg, newPool(8, 1024))
		for i, c := range cases {
			id := transfer.ID(i + 1)
			h := o.offer(id, 0, 2)
			o.mu.Lock()
			o.onAttach = func(a transfer.Attach) bool {
				o.Reject(transfer.Reject{Peer: a.Peer, ID: a.ID, Reason: c.reason, Detail: "why"})
				return false
			}
			o.mu.Unlock()
			g.pullTo(h, 0, 0)
			checkFailed(t, g.final(t, id), c.code, "why")
		}
		// An earlier life of the worker, and a rank that is not there.
		o.mu.Lock()
		o.onAttach = nil
		o.mu.Unlock()
		h := o.offer(8, 0, 2)
		h.Rank = 3
		g.pullTo(h, 0, 0)
		checkFailed(t, g.final(t, 8), CodeUnknown, "")
		h = o.offer(9, 0, 2)
		h.Incarnation = "ctx-0"
		g.pullTo(h, 0, 0)
		checkFailed(t, g.final(t, 9), CodeUnknown, "earlier life")
	})
}

func TestStaleAtDone(t *testing.T) {
	allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
		o := newOwner(t, cfg, owner(8))
		o.onDone = func(d transfer.Done) bool {
			o.mu.Lock()
			o.leases[d.ID].epoch++
			o.mu.Unlock()
			return true
		}
		g := newGen(t, cfg, newPool(8, 1024))
		g.pullTo(o.offer(1, 0, 3), 0, 0)
		e := g.final(t, 1)
		checkFailed(t, e, CodeStale, "stale")
		if e.Progress != 3 {
			t.Errorf("verified %d", e.Progress)
		}
	})
}

// After Revoke the owner may overwrite the blocks at once; the race detector
// watches that nothing reads them.
func TestRevokeWhilePulling(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(64, 1024).fill(5))
		g := newGen(t, cfg, newPool(64, 1024))
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
		if e.Progress > 10 {
			t.Errorf("%d blocks verified, 10 were served", e.Progress)
		}
		checkBlocks(t, newPool(64, 1024).fill(5), 0, g.mem, 0, e.Progress)
		o.Revoke(1) // again, and unknown: nothing happens
		o.Revoke(99)
	})
}

// stop returns only after a read in progress.
func TestStopWaitsForTheReader(t *testing.T) {
	for range 50 {
		ss := &session{srv: &Server{}, phase: phaseServing}
		inside, release, order := make(chan struct{}), make(chan struct{}), make(chan string, 2)
		go func() {
			_ = ss.read(nil, func() error {
				close(inside)
				<-release
				order <- "read"
				return nil
			})
		}()
		<-inside
		go func() {
			ss.stop()
			order <- "stop"
		}()
		for range 100 {
			runtime.Gosched()
		}
		close(release)
		if first, second := <-order, <-order; first != "read" || second != "stop" {
			t.Fatalf("%s before %s", first, second)
		}
		if err := ss.read(nil, func() error { return nil }); !errors.Is(err, errNotServed) {
			t.Fatalf("read after stop: %v", err)
		}
	}
}

// Two ranks of one instance serve from their own pools to their own cores.
func TestRanks(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(16, 1024).fill(1))
		mem := newPool(16, 1024).fill(2)
		var other *Transport
		other = o.srv.Rank(1, mem, func(m any) {
			switch m := m.(type) {
			case transfer.Attach:
				other.Accept(transfer.Accept{Peer: m.Peer, ID: m.ID, Epoch: m.Epoch, Blocks: []int32{9, 3}})
			case transfer.Done:
				other.DoneReply(transfer.DoneReply{Peer: m.Peer, ID: m.ID, OK: true})
			}
		})
		g := newGen(t, cfg, newPool(16, 1024))
		h := o.offer(1, 0, 2)
		g.pullTo(h, 0, 0)
		checkOK(t, g.final(t, 1), 2)
		h.ID, h.Rank = 2, 1
		g.pullTo(h, 4, 0)
		checkOK(t, g.final(t, 2), 2)
		checkBlocks(t, o.mem, 0, g.mem, 0, 2)
		checkBlocks(t, mem, 9, g.mem, 4, 1)
		checkBlocks(t, mem, 3, g.mem, 5, 1)
	})
}

// Revoke does not wait for a puller that has stopped reading.
func TestRevokeInterruptsABlockedWrite(t *testing.T) {
	const blocks, size = 64, 1 << 20
	o := newOwner(t, Config{NoLocal: true, NoShared: true, IdleTimeout: time.Hour}, newPool(blocks, size))
	served := make(chan struct{}, blocks+1)
	o.mem.onBlock = func(int32) { served <- struct{}{} }
	unblock := make(chan struct{})
	nw := &network{wrap: func(_ int, addr string, c net.Conn) (net.Conn, error) {
		if addr == o.dataAddr() {
			c = &faultyConn{Conn: c, pause: func(int) { <-unblock }}
		}
		return c, nil
	}}
	g := newGen(t, Config{NoLocal: true, NoShared: true, Dial: nw.dial}, newPool(blocks, size))
	h := o.offer(1, 0, blocks)
	h.Layout = bigLayout
	h.PromptTokens, h.Hashes = blocks*bigLayout.BlockTokens, nil
	g.pullTo(h, 0, 0)
	<-served // ACCEPT's look at the size
	<-served // the first block; socket buffers hold far less than all of them
	o.revoke(1)
	close(unblock)
	checkFailed(t, g.final(t, 1), CodeStale, "")
}

// bigLayout has blocks of 1 MiB.
var bigLayout = transfer.Layout{Layers: 32, KVHeads: 8, HeadDim: 64, DType: "BF16", BlockTokens: 16, Packing: "test"}

// A second puller replaces the first, which gets STALE.
func TestSecondAttachReplacesTheFirst(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(64, 1024).fill(5))
		hold := make(chan struct{})
		first := newGen(t, cfg, newPool(64, 1024))
		entered := make(chan struct{})
		reached := 0
		first.mem.onBlock = func(id int32) {
			if id == 5 {
				if reached++; reached == 2 {
					close(entered)
					<-hold
				}
			}
		}
		h := o.offer(1, 0, 16)
		first.pullTo(h, 0, 0)
		<-entered
		second := newGen(t, cfg, newPool(64, 1024))
		if cfg.NoLocal {
			second.pullTo(h, 0, 0)
			checkOK(t, second.final(t, 1), 16)
			close(hold)
		} else {
			close(hold) // in one process the copy itself is under the session's lock
			second.pullTo(h, 0, 0)
			if e := first.final(t, 1); e.OK {
				t.Skip("the first finished before it was replaced")
			}
			checkOK(t, second.final(t, 1), 16)
			return
		}
		checkFailed(t, first.final(t, 1), CodeStale, "")
		checkBlocks(t, o.mem, 0, second.mem, 0, 16)
	})
}

func TestConcurrentPulls(t *testing.T) {
	allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
		const pulls, blocks = 50, 8
		o := newOwner(t, cfg, owner(pulls*blocks).fill(7))
		g := newGen(t, cfg, newPool(pulls*blocks, 1024))
		for i := range pulls {
			g.pullTo(o.offer(transfer.ID(i+1), i*blocks, blocks), i*blocks, 0)
		}
		seen := map[transfer.ID]bool{}
		for len(seen) < pulls {
			select {
			case e := <-g.events:
				if !e.Done {
					continue
				}
				checkOK(t, e, blocks)
				if seen[e.ID] {
					t.Fatalf("two final events of %d", e.ID)
				}
				seen[e.ID] = true
			case <-time.After(wait):
				t.Fatalf("%d of %d ended", len(seen), pulls)
			}
		}
		checkBlocks(t, o.mem, 0, g.mem, 0, pulls*blocks)
	})
}

func TestConnectionsAreReused(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(8, 1024).fill(1))
	nw := &network{}
	g := newGen(t, Config{NoLocal: true, NoShared: true, Dial: nw.dial}, newPool(8, 1024))
	for id := range transfer.ID(5) {
		g.pullTo(o.offer(id+1, 0, 8), 0, 0)
		checkOK(t, g.final(t, id+1), 8)
	}
	if c, d := nw.count(o.controlAddr()), nw.count(o.dataAddr()); c != 1 || d != 1 {
		t.Errorf("%d control and %d data connections for five pulls", c, d)
	}
}

// An idle connection that the owner closed is replaced without failing a pull.
func TestStaleIdleConnection(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(8, 1024).fill(1))
	g := newGen(t, Config{NoLocal: true, NoShared: true}, newPool(8, 1024))
	g.pullTo(o.offer(1, 0, 8), 0, 0)
	checkOK(t, g.final(t, 1), 8)
	o.srv.mu.Lock()
	for c := range o.srv.conns {
		_ = c.Close()
	}
	o.srv.mu.Unlock()
	g.pullTo(o.offer(2, 0, 8), 0, 0)
	checkOK(t, g.final(t, 2), 8)
}

func TestKey(t *testing.T) {
	allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
		with := func(key string) Config { c := cfg; c.Key = []byte(key); return c }
		o := newOwner(t, with("secret"), owner(8).fill(1))
		for i, c := range []struct {
			key string
			ok  bool
		}{{"secret", true}, {"other", false}, {"", false}} {
			id := transfer.ID(i + 1)
			g := newGen(t, with(c.key), newPool(8, 1024))
			g.pullTo(o.offer(id, 0, 8), 0, 0)
			if e := g.final(t, id); e.OK != c.ok {
				t.Errorf("key %q: %+v", c.key, e)
			}
		}
	})
}

func TestStartMistakes(t *testing.T) {
	o := newOwner(t, Config{}, newPool(8, 1024))
	g := newGen(t, Config{}, newPool(8, 512))
	h := o.offer(1, 0, 4)
	g.pullTo(h, 0, 0)
	checkFailed(t, g.final(t, 1), CodeLayout, "bytes")
	g.Start(transfer.Pull{Handle: h, Dst: []int32{1}})
	checkFailed(t, g.final(t, 1), CodeFailed, "destination")
	g.Close()
	g.pullTo(h, 0, 0)
	checkFailed(t, g.final(t, 1), CodeCancelled, "shutting down")
}

func BenchmarkPull(b *testing.B) {
	const blocks, size = 64, 1 << 20
	for _, c := range []struct {
		name   string
		cfg    Config
		shared bool
	}{{"inproc", Config{}, false}, {"shm", Config{NoLocal: true}, true}, {"stage", Config{NoLocal: true}, false}, {"tcp", Config{NoLocal: true, NoShared: true}, false}, {"tcp-sums", Config{NoLocal: true, NoShared: true, sums: true}, false}} {
		b.Run(fmt.Sprintf("%s/%dx1MiB", c.name, blocks), func(b *testing.B) {
			mem := newPool(blocks, size)
			if c.shared {
				mem = newSharedPool(b, blocks, size)
			}
			o := newOwner(b, c.cfg, mem.fill(1))
			g := newGen(b, c.cfg, newPool(blocks, size))
			b.SetBytes(blocks * size)
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			id := transfer.ID(0)
			for b.Loop() {
				id++
				h := o.offer(id, 0, blocks)
				h.Layout, h.PromptTokens, h.Hashes = bigLayout, blocks*16, nil
				g.pullTo(h, 0, 0)
				checkOK(b, g.final(b, id), blocks)
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			spent := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(spent.Seconds()/(float64(b.N)*blocks*size/1e9), "core-s/GB")
		})
	}
}
