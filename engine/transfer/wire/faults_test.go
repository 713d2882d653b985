package wire

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

const frameBytes = frameHeaderBytes + 1024 + frameSumBytes

// faultyData makes a puller whose byte path connections are wrapped.
func faultyData(t *testing.T, o *owner, cfg Config, wrap func(net.Conn) net.Conn) *gen {
	nw := &network{wrap: func(_ int, addr string, c net.Conn) (net.Conn, error) {
		if addr == o.dataAddr() {
			c = wrap(c)
		}
		return c, nil
	}}
	cfg.NoLocal, cfg.NoShared, cfg.sums, cfg.Dial = true, true, true, nw.dial
	return newGen(t, cfg, newPool(16, 1024))
}

func TestCutByteWay(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024).fill(2))
	id := transfer.ID(0)
	for _, limit := range []int{1, frameHeaderBytes, frameHeaderBytes + 1, frameBytes, 3*frameBytes + 500, 16*frameBytes - 1} {
		id++
		g := faultyData(t, o, Config{}, func(c net.Conn) net.Conn { return &faultyConn{Conn: c, limit: limit} })
		g.pullTo(o.offer(id, 0, 16), 0, 0)
		e := g.final(t, id)
		if limit >= frameBytes { // each connection brings some blocks: it goes on with the next
			checkOK(t, e, 16)
			checkBlocks(t, o.mem, 0, g.mem, 0, 16)
			if n, want := g.traffic[pathIndex(PathTCP)].resumes.Load(), (16*frameBytes-1)/(limit/frameBytes*frameBytes); n != uint64(want) {
				t.Errorf("cut at %d: went on %d times, want %d", limit, n, want)
			}
			continue
		}
		checkFailed(t, e, CodeFailed, "frame")
		if e.Progress != 0 {
			t.Errorf("cut at %d: %d blocks verified", limit, e.Progress)
		}
		if d := next[transfer.Detach](t, o); d.ID != id || d.Cancelled {
			t.Errorf("detach %+v", d)
		}
	}
}

func TestCorruptFrames(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024).fill(2))
	id := transfer.ID(0)
	// In a header's every field, and in payloads: of each connection, so that only what
	// came before counts, and the pull ends where nothing does.
	for _, flip := range []int{1, 5, 9, 11, 13, 17, 30, 4*frameBytes + 2, 4*frameBytes + 18, 5*frameBytes - 1} {
		id++
		g := faultyData(t, o, Config{}, func(c net.Conn) net.Conn { return &faultyConn{Conn: c, flip: flip} })
		g.pullTo(o.offer(id, 0, 16), 0, 0)
		e := g.final(t, id)
		if flip >= frameBytes {
			checkOK(t, e, 16)
		} else {
			checkFailed(t, e, CodeFailed, "corrupt")
		}
		checkBlocks(t, o.mem, 0, g.mem, 0, e.Progress)
	}
}

func TestSilentByteWayTimesOut(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	block := make(chan struct{})
	o.mem.onBlock = func(id int32) {
		if id == 6 {
			<-block
		}
	}
	g := newGen(t, Config{NoLocal: true, NoShared: true, IdleTimeout: 1500 * time.Millisecond}, newPool(16, 1024))
	g.pullTo(o.offer(1, 0, 16), 0, 0)
	e := g.final(t, 1)
	close(block)
	checkFailed(t, e, CodeTimeout, "frame 6")
	if e.Progress != 6 {
		t.Errorf("%d verified", e.Progress)
	}
}

// A puller that reads a few bytes at a time gets everything.
func TestSlowPuller(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024).fill(2))
	g := faultyData(t, o, Config{}, func(c net.Conn) net.Conn { return &faultyConn{Conn: c, most: 7} })
	g.pullTo(o.offer(1, 0, 16), 0, 0)
	checkOK(t, g.final(t, 1), 16)
	checkBlocks(t, o.mem, 0, g.mem, 0, 16)
}

// One puller that does not read must not hold up another.
func TestSlowPullerDoesNotStallOthers(t *testing.T) {
	const blocks, size = 32, 1 << 20
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(blocks, size).fill(1))
	lend := func(id transfer.ID, n int) transfer.Handle {
		h := o.offer(id, 0, n)
		h.Layout, h.PromptTokens, h.Hashes = bigLayout, n*bigLayout.BlockTokens, nil
		return h
	}
	unblock, stuck := make(chan struct{}), make(chan struct{}, 1)
	nw := &network{wrap: func(_ int, addr string, c net.Conn) (net.Conn, error) {
		if addr == o.dataAddr() {
			c = &faultyConn{Conn: c, pause: func(at int) {
				if at > size {
					offer(stuck, struct{}{})
					<-unblock
				}
			}}
		}
		return c, nil
	}}
	slow := newGen(t, Config{NoLocal: true, NoShared: true, Dial: nw.dial}, newPool(blocks, size))
	slow.pullTo(lend(1, blocks), 0, 0)
	<-stuck
	fast := newGen(t, Config{NoLocal: true, NoShared: true}, newPool(4, size))
	fast.pullTo(lend(2, 4), 0, 0)
	checkOK(t, fast.final(t, 2), 4)
	close(unblock)
	checkOK(t, slow.final(t, 1), blocks)
}

func TestOwnerDiesWhilePulling(t *testing.T) {
	for _, phase := range []string{"attach", "data", "done"} {
		t.Run(phase, func(t *testing.T) {
			o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
			die := make(chan struct{})
			switch phase {
			case "attach":
				o.onAttach = func(transfer.Attach) bool { close(die); return false }
			case "data":
				o.mem.onBlock = func(id int32) {
					if id == 3 {
						close(die)
						<-o.srv.session(1).ended
					}
				}
			case "done":
				o.onDone = func(transfer.Done) bool { close(die); return false }
			}
			g := newGen(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
			g.pullTo(o.offer(1, 0, 16), 0, 0)
			<-die
			o.srv.Close()
			checkFailed(t, g.final(t, 1), CodeFailed, "")
		})
	}
}

func TestAttachIsTriedTwice(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024).fill(4))
	refuse := errors.New("no route")
	for name, first := range map[string]func(net.Conn) (net.Conn, error){
		"dial fails":  func(c net.Conn) (net.Conn, error) { _ = c.Close(); return nil, refuse },
		"cut at once": func(c net.Conn) (net.Conn, error) { return &faultyConn{Conn: c, limit: 1}, nil },
		"mute": func(c net.Conn) (net.Conn, error) {
			a, b := net.Pipe()
			go func() {
				_, _ = b.Read(make([]byte, 1<<16)) // and no answer, ever
				_ = c.Close()
			}()
			return a, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			nw := &network{wrap: func(n int, addr string, c net.Conn) (net.Conn, error) {
				if addr == o.controlAddr() && n == 1 {
					return first(c)
				}
				return c, nil
			}}
			g := newGen(t, Config{NoLocal: true, NoShared: true, Dial: nw.dial, AttachTimeout: 1500 * time.Millisecond}, newPool(16, 1024))
			h := o.offer(1, 0, 16)
			g.pullTo(h, 0, 0)
			checkOK(t, g.final(t, 1), 16)
		})
	}
}

func TestAttachGivesUp(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(16, 1024))
		var attaches atomic.Int32
		o.onAttach = func(transfer.Attach) bool { attaches.Add(1); return false }
		cfg.AttachTimeout = 600 * time.Millisecond
		g := newGen(t, cfg, newPool(16, 1024))
		g.pullTo(o.offer(1, 0, 16), 0, 0)
		checkFailed(t, g.final(t, 1), CodeTimeout, "twice")
		if n := attaches.Load(); n != 2 {
			t.Errorf("%d ATTACHes", n)
		}
		for range 2 {
			if d := next[transfer.Detach](t, o); d.Cancelled {
				t.Errorf("a failed attach cancelled the lease: %+v", d)
			}
		}
	})
}

// PROGRESS from a live owner keeps an ATTACH waiting beyond its limit.
func TestProgressExtendsAttach(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(16, 1024).fill(1))
		peers := make(chan transfer.Attach, 1)
		o.onAttach = func(a transfer.Attach) bool { peers <- a; return false }
		cfg.AttachTimeout = 1500 * time.Millisecond
		g := newGen(t, cfg, newPool(16, 1024))
		g.pullTo(o.offer(1, 0, 16), 0, 0)
		a := <-peers
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 20 {
			<-tick.C
			o.Progress(transfer.Progress{Peer: a.Peer, ID: a.ID})
		}
		o.answer(a)
		checkOK(t, g.final(t, 1), 16)
	})
}

// TestStop ends a pull in each phase. Writing the blocks after the final event
// lets the race detector see a pull that is not quiet.
func TestStop(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		for _, phase := range []string{"start", "attach", "data", "done"} {
			t.Run(phase, func(t *testing.T) {
				o := newOwner(t, cfg, newPool(16, 1024))
				g := newGen(t, cfg, newPool(16, 1024))
				reached, passed := make(chan struct{}), make(chan struct{})
				pause := func() { close(reached); <-passed }
				switch phase {
				case "start":
					close(reached)
				case "attach":
					o.onAttach = func(transfer.Attach) bool { pause(); return false }
				case "data":
					o.mem.onBlock = func(id int32) {
						if id == 7 {
							pause()
						}
					}
				case "done":
					o.onDone = func(transfer.Done) bool { pause(); return false }
				}
				g.pullTo(o.offer(1, 0, 16), 0, 0)
				<-reached
				g.Stop(1)
				inPull := phase == "data" && !cfg.NoLocal
				if inPull {
					close(passed) // the copy runs in the pull's own goroutine
				}
				e := g.final(t, 1)
				if !inPull {
					close(passed)
				}
				for _, b := range g.mem.data {
					clear(b)
				}
				if phase == "start" && e.OK {
					return
				}
				checkFailed(t, e, CodeCancelled, "stopped")
				g.Stop(1)
				if phase == "data" && e.Progress > 8 { // the eighth was being copied
					t.Errorf("%d verified", e.Progress)
				}
				if phase != "start" {
					if d := next[transfer.Detach](t, o); d.ID != 1 || !d.Cancelled {
						t.Errorf("detach %+v", d)
					}
				}
				g.quiet(t)
			})
		}
	})
}

// A pull that ended well leaves no Detach behind.
func TestNoDetachAfterDone(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(16, 1024))
		g := newGen(t, cfg, newPool(16, 1024))
		g.pullTo(o.offer(1, 0, 16), 0, 0)
		checkOK(t, g.final(t, 1), 16)
		g.Close()
		o.srv.Close()
		close(o.got)
		for m := range o.got {
			if d, ok := m.(transfer.Detach); ok {
				t.Errorf("%+v", d)
			}
		}
		if len(o.srv.sessions) != 0 || len(o.srv.tokens) != 0 || len(o.srv.conns) != 0 {
			t.Errorf("left: %d sessions, %d tokens, %d connections", len(o.srv.sessions), len(o.srv.tokens), len(o.srv.conns))
		}
	})
}

func TestKeepAlive(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		cfg.Key = []byte("k")
		o := newOwner(t, cfg, newPool(16, 1024))
		g := newGen(t, cfg, newPool(16, 1024))
		h := o.offer(1, 0, 16)
		h.Lease = 30 * time.Millisecond
		for range 3 {
			g.KeepAlive(h, 0)
			if k := next[transfer.KeepAlive](t, o); k.ID != 1 || k.Epoch != 7 {
				t.Fatalf("keep-alive %+v", k)
			}
		}
		// Attached, the pull's own stream goes on renewing.
		attached := make(chan transfer.Attach, 1)
		o.mu.Lock()
		o.onAttach = func(a transfer.Attach) bool { attached <- a; return false }
		o.mu.Unlock()
		g.pullTo(h, 0, 0)
		a := <-attached
		done := make(chan transfer.Done, 1)
		o.mu.Lock()
		o.onDone = func(d transfer.Done) bool { done <- d; return false }
		o.mu.Unlock()
		o.answer(a)
		d := <-done
		o.DoneReply(transfer.DoneReply{Peer: d.Peer, ID: 1, OK: true})
		checkOK(t, g.final(t, 1), 16)
		if n := waiting(g.Puller); n != 0 {
			t.Errorf("%d beats left", n)
		}
		h.ID = 2
		g.KeepAlive(h, 0)
		g.Stop(2)
	})
}

// While attached and waiting, the lease is renewed on the same stream.
func TestKeepAliveWhileAttached(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	block := make(chan struct{})
	o.mem.onBlock = func(id int32) {
		if id == 3 {
			<-block
		}
	}
	g := newGen(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	h := o.offer(1, 0, 16)
	h.Lease = 30 * time.Millisecond
	g.pullTo(h, 0, 0)
	for range 4 { // the first may be for bytes sent
		next[transfer.KeepAlive](t, o)
	}
	close(block)
	checkOK(t, g.final(t, 1), 16)
}

func TestKeepAliveOutlivesABrokenPeer(t *testing.T) {
	nw := &network{wrap: func(n int, _ string, c net.Conn) (net.Conn, error) {
		if n == 1 {
			_ = c.Close()
			return nil, errors.New("no route")
		}
		return c, nil
	}}
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	g := newGen(t, Config{NoLocal: true, NoShared: true, Dial: nw.dial}, newPool(16, 1024))
	h := o.offer(1, 0, 16)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for got := false; !got; {
		g.KeepAlive(h, 0)
		select {
		case <-tick.C: // as a core would, until it gets through
		case m := <-o.got:
			_, got = m.(transfer.KeepAlive)
		}
	}
}

// waiting returns how many requests' leases p keeps alive.
func waiting(p *Puller) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.beats)
}

// Without another call the stream of a KEEPALIVE is closed after a while.
func TestKeepAliveLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{
			cfg: Config{Incarnation: "a"}, endpoint: "tcp://a:1", ranks: map[uint32]*Transport{},
			sessions: map[transfer.Peer]*session{}, tokens: map[token]*session{},
		}
		beats := make(chan any, 10)
		srv.ranks[0] = &Transport{srv: srv, inbox: func(m any) { beats <- m }}
		register(srv)
		defer unregister(srv)
		p := NewPuller(Config{}, newPool(1, 1), func(transfer.PullEvent) {})
		h := transfer.Handle{ID: 1, Endpoint: "tcp://a:1", Incarnation: "a", Lease: time.Minute}
		p.KeepAlive(h, 0)
		time.Sleep(50 * time.Second)
		p.KeepAlive(h, 0)
		time.Sleep(50 * time.Second)
		if len(beats) != 2 || waiting(p) != 1 {
			t.Errorf("%d keep-alives, %d beats", len(beats), waiting(p))
		}
		time.Sleep(15 * time.Second)
		if waiting(p) != 0 {
			t.Error("the beat goes on")
		}
		p.Close()
	})
}

func TestStopWhileDialling(t *testing.T) {
	dialling := make(chan struct{}, 2)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		dialling <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	g := newGen(t, Config{NoLocal: true, NoShared: true, Dial: dial}, newPool(16, 1024))
	g.pullTo(o.offer(1, 0, 16), 0, 0)
	<-dialling
	g.Stop(1)
	checkFailed(t, g.final(t, 1), CodeCancelled, "stopped")
}

// unread is an owner that takes control streams and reads nothing of them.
type unread struct {
	pb.UnimplementedTransferServer
	came chan struct{}
}

func (u unread) Exchange(stream pb.Transfer_ExchangeServer) error {
	u.came <- struct{}{}
	<-stream.Context().Done()
	return nil
}

// TestSendToOwnerThatDoesNotRead ends soon after the link's context: it is not the owner that says how long it takes.
func TestSendToOwnerThatDoesNotRead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, u := grpc.NewServer(), unread{came: make(chan struct{}, 2)}
	pb.RegisterTransferServer(srv, u)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(1, 1024))
	g := newGen(t, Config{NoLocal: true, NoShared: true}, newPool(1, 1024))
	h := o.offer(1, 0, 8000)
	h.Endpoint = endpointScheme + ln.Addr().String()
	ctx, cancel := context.WithCancelCause(t.Context())
	l, err := g.openLink(ctx, &h, false)
	if err != nil {
		t.Fatal(err)
	}
	<-u.came
	sent := make(chan error, 1)
	go func() {
		var err error
		for err == nil { // gRPC takes the first ones on trust
			err = l.send(&pb.PullerMessage{Kind: &pb.PullerMessage_Attach{Attach: &pb.Attach{Have: encodeHashes(h.Hashes)}}})
		}
		sent <- err
	}()
	cancel(errStopped)
	select {
	case err := <-sent:
		if !errors.Is(err, errStopped) {
			t.Errorf("%v", err)
		}
	case <-time.After(wait):
		t.Fatal("it waits for the owner")
	}
	l.cancel(context.Canceled)
	l.finish()
}
