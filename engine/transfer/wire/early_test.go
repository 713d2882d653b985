package wire

import (
	"context"
	"net"
	"reflect"
	"sync"
	"testing"
	"time"

	"tandem/engine/transfer"
)

// earlyPair is an owner that grants 8 blocks of which the first 2 are computed, and
// a pull of all of them that has got those.
func earlyPair(t *testing.T, cfg Config, mem *pool) (o *owner, g *gen, peer transfer.Peer) {
	t.Helper()
	o = newOwner(t, cfg, mem)
	g = newGen(t, cfg, newPool(16, 1024))
	peers := make(chan transfer.Peer, 1)
	o.onAttach = func(m transfer.Attach) bool {
		if !m.Early {
			t.Error("the puller does not take early blocks")
		}
		o.Progress(transfer.Progress{Peer: m.Peer, ID: m.ID, Claimed: true})
		o.Accept(transfer.Accept{Peer: m.Peer, ID: m.ID, Epoch: 7, Blocks: []int32{0, 1, 2, 3, 4, 5, 6, 7}, Coming: 6})
		peers <- m.Peer
		return false
	}
	h := early(o.offer(1, 0, 8))
	g.Start(transfer.Pull{Handle: h, Dst: []int32{0, 1, 2, 3, 4, 5, 6, 7}, Prompt: transfer.Hash{1}})
	until(t, "two blocks", func() bool { _, in := moved(o.Puller, g.Puller); return in == 2*1024 })
	peer = <-peers
	o.mu.Lock()
	o.leases[1].peer = peer // what DONE is compared with
	o.mu.Unlock()
	return o, g, peer
}

// Blocks come as they are computed, none before.
func TestEarlyBlocks(t *testing.T) {
	allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
		mem := owner(16)
		copy(mem.data[0], "first")
		o, g, peer := earlyPair(t, cfg, mem)
		for n := 3; n <= 7; n++ {
			mem.data[n-1][5] = byte(n)
			o.Progress(transfer.Progress{Peer: peer, ID: 1, Ready: n})
			o.Progress(transfer.Progress{Peer: peer, ID: 1, Ready: n - 1}) // late, and no news
			until(t, "the next block", func() bool { _, in := moved(o.Puller, g.Puller); return in == uint64(n)*1024 })
		}
		mem.data[7][5] = 8
		o.Progress(transfer.Progress{Peer: peer, ID: 1, Whole: true, First: firstTokens})
		e := g.final(t, 1)
		checkOK(t, e, 8)
		if !reflect.DeepEqual(e.First, firstTokens) {
			t.Errorf("first tokens %+v", e.First)
		}
		checkBlocks(t, mem, 0, g.mem, 0, 8)
	})
}

// A request may end in any way while its blocks are read.
func TestEarlyBlocksEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(o *owner, peer transfer.Peer)
		code string
	}{
		"first token": {func(o *owner, p transfer.Peer) { o.End(transfer.End{Peer: p, ID: 1, First: firstTokens}) }, CodeFailed},
		"rejected": {func(o *owner, p transfer.Peer) {
			o.Reject(transfer.Reject{Peer: p, ID: 1, Reason: transfer.RejectUnknown, Detail: "cancelled"})
		}, CodeUnknown},
		"revoked": {func(o *owner, _ transfer.Peer) { o.Revoke(1) }, CodeStale},
	} {
		t.Run(name, func(t *testing.T) {
			allPaths(t, func(t *testing.T, cfg Config, owner func(int) *pool) {
				o, g, peer := earlyPair(t, cfg, owner(16))
				c.end(o, peer)
				e := g.final(t, 1)
				if e.Ended != (name == "first token") || e.Ended && !reflect.DeepEqual(e.First, firstTokens) {
					t.Errorf("%+v", e)
				}
				checkFailed(t, e, c.code, "")
				if e.Progress > 2 || e.Ended && e.Progress != 2 {
					t.Errorf("%d blocks counted", e.Progress)
				}
			})
		})
	}
}

// Nobody reads blocks that are still computed.
func TestComingBlocksAreNotServed(t *testing.T) {
	o, _, _ := earlyPair(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	ss := o.srv.session(1)
	for _, req := range []pullRequest{{first: 2, blocks: 1, layerTo: 2}, {blocks: 3, layerTo: 2}, {first: 1 << 19, blocks: 1 << 20, layerTo: 2}} {
		if err := ss.begin(nil, &req); err == nil {
			t.Errorf("%+v was served", req)
		}
	}
}

// A pull whose control stream breaks attaches again with what it has, and goes on.
func TestBrokenControlStream(t *testing.T) {
	for _, shared := range []bool{false, true} {
		mem := newPool(64, 1024)
		if shared {
			mem = newSharedPool(t, 64, 1024)
		}
		o := newOwner(t, Config{NoLocal: true, NoShared: !shared}, mem.fill(4))
		var mu sync.Mutex
		var control net.Conn
		dial := func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", addr)
			if addr == o.controlAddr() {
				mu.Lock()
				control = c
				mu.Unlock()
			}
			return c, err
		}
		g := newGen(t, Config{NoLocal: true, NoShared: !shared, Dial: dial}, newPool(64, 1024))
		cut := false
		o.onDone = func(transfer.Done) bool {
			if cut {
				return true
			}
			cut = true
			mu.Lock()
			defer mu.Unlock()
			_ = control.Close()
			return false // lost, too
		}
		g.pullTo(o.offer(1, 0, 64), 0, 0)
		checkOK(t, g.final(t, 1), 64)
		checkBlocks(t, o.mem, 0, g.mem, 0, 64)
		if out, in := moved(o.Puller, g.Puller); in != 64*1024 {
			t.Errorf("%d bytes came, %d went: blocks moved twice", in, out)
		}
		next[transfer.Attach](t, o)
		if a := next[transfer.Attach](t, o); len(a.Have) != 64 {
			t.Errorf("it came again with %d blocks", len(a.Have))
		}
	}
}

// A stream that breaks each time is given up.
func TestControlStreamThatBreaksAlways(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	o.onDone = func(d transfer.Done) bool {
		o.srv.session(d.Peer).end()
		return false
	}
	g := newGen(t, Config{NoLocal: true, NoShared: true, AttachTimeout: 5 * time.Second}, newPool(16, 1024))
	g.pullTo(o.offer(1, 0, 16), 0, 0)
	e := g.final(t, 1)
	checkFailed(t, e, CodeFailed, "control stream")
	if e.Progress != 16 {
		t.Errorf("%d blocks counted", e.Progress)
	}
}
