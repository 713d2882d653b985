package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/engine/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLayout has blocks of 2·2·2·8·4·4 = 1024 bytes.
var testLayout = transfer.Layout{Layers: 2, KVHeads: 2, HeadDim: 8, DType: "F32", BlockTokens: 4, Packing: "test"}

// wait is how long a test waits for what must happen.
const wait = time.Minute

// pool is fake block memory. onBlock, if set, sees every access. With split its
// blocks are shown through splitPool, and onRead sees each copy as it begins.
type pool struct {
	data     [][]byte
	seg      *segment // that data is in
	onBlock  func(id int32)
	split    bool
	onDevice *device
	onRead   func(id int32)
	other    transfer.Memory // shown in the place of this one
}

func (p *pool) memory() transfer.Memory {
	if p.other != nil {
		return p.other
	}
	if p.onDevice != nil {
		return devicePool{splitPool{p}}
	}
	if p.split {
		return splitPool{p}
	}
	return p
}

func newPool(blocks, size int) *pool {
	p := &pool{data: make([][]byte, blocks)}
	all := make([]byte, blocks*size)
	for i := range p.data {
		p.data[i] = all[i*size : (i+1)*size : (i+1)*size]
	}
	return p
}

// newSharedPool is a pool that other processes could map.
func newSharedPool(t testing.TB, blocks, size int) *pool {
	seg, err := newSegment("test", blocks*size)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(seg.close)
	p := &pool{data: make([][]byte, blocks), seg: seg}
	for i := range p.data {
		p.data[i] = seg.bytes[i*size : (i+1)*size : (i+1)*size]
	}
	return p
}

// File implements transfer.SharedMemory.
func (p *pool) File() (fd uintptr, size int64, ok bool) {
	if p.seg == nil {
		return 0, 0, false
	}
	return uintptr(p.seg.fd), int64(len(p.seg.bytes)), true
}

func (p *pool) Block(id int32) []byte {
	if p.onBlock != nil {
		p.onBlock(id)
	}
	return p.data[id]
}

// fill gives every block content of its own.
func (p *pool) fill(salt byte) *pool {
	for i, b := range p.data {
		for j := range b {
			b[j] = byte(i*31+j*7) ^ salt ^ byte(j>>8)
		}
	}
	return p
}

// lease is what the fake core of a ctx worker knows of a transfer.
type lease struct {
	epoch  uint32
	blocks []int32
	hashes []transfer.Hash
	peer   transfer.Peer
}

// owner is a ctx worker: a server and the simplest core that could work.
type owner struct {
	*Transport
	srv *Server
	mem *pool
	got chan any // every message of a puller, after it was handled

	mu       sync.Mutex
	leases   map[transfer.ID]*lease
	onAttach func(transfer.Attach) bool // false: leave it unanswered
	onDone   func(transfer.Done) bool
}

func newOwner(t testing.TB, cfg Config, mem *pool) *owner {
	t.Helper()
	if cfg.Incarnation == "" {
		cfg.Incarnation = "ctx-1"
	}
	srv, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{srv: srv, mem: mem, got: make(chan any, 1000), leases: map[transfer.ID]*lease{}}
	o.Transport = srv.Rank(0, mem.memory(), o.inbox)
	t.Cleanup(srv.Close)
	return o
}

// offer leases n blocks from first on and returns the handle.
func (o *owner) offer(id transfer.ID, first, n int) transfer.Handle {
	l := &lease{epoch: 7}
	for i := range n {
		l.blocks = append(l.blocks, int32(first+i))
		var h transfer.Hash
		binary.LittleEndian.PutUint64(h[:], uint64(id)<<32|uint64(i))
		l.hashes = append(l.hashes, h)
	}
	o.mu.Lock()
	o.leases[id] = l
	o.mu.Unlock()
	return transfer.Handle{
		ID: id, Incarnation: o.srv.Incarnation(), Endpoint: o.srv.Endpoint(), Epoch: 7, Lease: time.Minute,
		PromptTokens: n * testLayout.BlockTokens, Layout: testLayout, Hashes: l.hashes,
	}
}

func (o *owner) inbox(m any) {
	o.mu.Lock()
	onAttach, onDone := o.onAttach, o.onDone
	o.mu.Unlock()
	switch m := m.(type) {
	case transfer.Attach:
		if onAttach == nil || onAttach(m) {
			o.answer(m)
		}
	case transfer.Done:
		if onDone == nil || onDone(m) {
			o.mu.Lock()
			l := o.leases[m.ID]
			ok := l != nil && l.epoch == m.Epoch && l.peer == m.Peer
			if ok {
				delete(o.leases, m.ID)
			}
			o.mu.Unlock()
			o.DoneReply(transfer.DoneReply{Peer: m.Peer, ID: m.ID, OK: ok})
		}
	}
	select {
	case o.got <- m:
	default:
	}
}

func (o *owner) answer(m transfer.Attach) {
	o.mu.Lock()
	l := o.leases[m.ID]
	if l == nil {
		o.mu.Unlock()
		o.Reject(transfer.Reject{Peer: m.Peer, ID: m.ID, Reason: transfer.RejectUnknown})
		return
	}
	if l.peer != 0 {
		l.epoch++
	}
	l.peer = m.Peer
	skip := 0
	for skip < len(m.Have) && skip < len(l.hashes) && m.Have[skip] == l.hashes[skip] {
		skip++
	}
	a := transfer.Accept{Peer: m.Peer, ID: m.ID, Epoch: l.epoch, Skip: skip, Blocks: l.blocks[skip:]}
	o.mu.Unlock()
	o.Accept(a)
}

// revoke ends a lease as a core would.
func (o *owner) revoke(id transfer.ID) {
	o.mu.Lock()
	delete(o.leases, id)
	o.mu.Unlock()
	o.Revoke(id)
}

// next returns the next message of type M.
func next[M any](t *testing.T, o *owner) M {
	t.Helper()
	limit := time.After(wait)
	for {
		select {
		case m := <-o.got:
			if v, ok := m.(M); ok {
				return v
			}
		case <-limit:
			t.Fatalf("no %T came", *new(M))
		}
	}
}

// gen is a gen worker: a puller, its memory and its events.
type gen struct {
	*Puller
	mem    *pool
	events chan transfer.PullEvent
}

func newGen(t testing.TB, cfg Config, mem *pool) *gen {
	g := &gen{mem: mem, events: make(chan transfer.PullEvent, 10000)}
	g.Puller = NewPuller(cfg, mem.memory(), func(e transfer.PullEvent) { g.events <- e })
	t.Cleanup(g.Close)
	return g
}

// pullTo starts a pull of a handle into blocks from first on; have blocks are
// held already.
func (g *gen) pullTo(h transfer.Handle, first, have int) transfer.Pull {
	p := transfer.Pull{Handle: h, Have: h.Hashes[:have]}
	for i := range h.Layout.Blocks(h.PromptTokens) - have {
		p.Dst = append(p.Dst, int32(first+i))
	}
	g.Start(p)
	return p
}

// final waits for the final event of a pull and checks progress on the way.
func (g *gen) final(t testing.TB, id transfer.ID) transfer.PullEvent {
	t.Helper()
	limit, last := time.After(wait), 0
	for {
		select {
		case e := <-g.events:
			if e.ID != id {
				t.Fatalf("event of transfer %d, want %d", e.ID, id)
			}
			if e.Progress < last {
				t.Fatalf("progress fell from %d to %d", last, e.Progress)
			}
			last = e.Progress
			if e.Done {
				return e
			}
		case <-limit:
			t.Fatalf("no final event of transfer %d", id)
		}
	}
}

func (g *gen) quiet(t *testing.T) {
	t.Helper()
	select {
	case e := <-g.events:
		t.Fatalf("event after the final one: %+v", e)
	default:
	}
}

func checkOK(t testing.TB, e transfer.PullEvent, blocks int) {
	t.Helper()
	if !e.OK || e.Progress != blocks || e.Code != "" {
		t.Fatalf("final event %+v, want ok with %d blocks", e, blocks)
	}
}

func checkFailed(t testing.TB, e transfer.PullEvent, code, reason string) {
	t.Helper()
	if e.OK || e.Code != code || !strings.Contains(e.Reason, reason) {
		t.Fatalf("final event %+v, want code %s with %q", e, code, reason)
	}
}

// checkBlocks compares n blocks of both pools.
func checkBlocks(t testing.TB, a *pool, fromA int, b *pool, fromB, n int) {
	t.Helper()
	for i := range n {
		if !bytes.Equal(a.data[fromA+i], b.data[fromB+i]) {
			t.Fatalf("block %d of %d differs", i, n)
		}
	}
}

// allPaths runs a test over every byte path, and gives it the owner's pool for that.
func allPaths(t *testing.T, f func(t *testing.T, cfg Config, owner func(blocks int) *pool)) {
	private := func(blocks int) *pool { return newPool(blocks, 1024) }
	bothPaths(t, func(t *testing.T, cfg Config) { f(t, cfg, private) })
	t.Run("shm", func(t *testing.T) {
		f(t, Config{NoLocal: true}, func(blocks int) *pool { return newSharedPool(t, blocks, 1024) })
	})
	t.Run("stage", func(t *testing.T) { f(t, Config{NoLocal: true}, private) })
}

// bothPaths runs a test over TCP and within the process, where an owner sees who
// reads its blocks.
func bothPaths(t *testing.T, f func(t *testing.T, cfg Config)) {
	for name, cfg := range map[string]Config{"tcp": {NoLocal: true, NoShared: true}, "local": {}} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

// network is a Dial hook that counts connections and hands them to a rule.
type network struct {
	mu    sync.Mutex
	dials map[string]int
	wrap  func(n int, addr string, c net.Conn) (net.Conn, error) // n from 1 per addr
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	if n.dials == nil {
		n.dials = map[string]int{}
	}
	n.dials[addr]++
	k := n.dials[addr]
	n.mu.Unlock()
	if n.wrap == nil {
		return c, nil
	}
	return n.wrap(k, addr, c)
}

func (n *network) count(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[addr]
}

func (o *owner) dataAddr() string    { return o.srv.data.Addr().String() }
func (o *owner) controlAddr() string { return strings.TrimPrefix(o.srv.Endpoint(), endpointScheme) }

// faultyConn changes what is read from a connection, byte-exactly.
type faultyConn struct {
	net.Conn
	mu    sync.Mutex
	read  int
	limit int              // bytes after which the connection is cut; 0 = never
	flip  int              // offset of a byte to corrupt; 0 = none
	pause func(offset int) // called before each read
	most  int              // bytes a read returns at most; 0 = any
}

func (c *faultyConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	at := c.read
	c.mu.Unlock()
	if c.pause != nil {
		c.pause(at)
	}
	if c.most > 0 {
		b = b[:min(len(b), c.most)]
	}
	if c.limit > 0 {
		if at >= c.limit {
			_ = c.Close()
			return 0, net.ErrClosed
		}
		b = b[:min(len(b), c.limit-at)]
	}
	n, err := c.Conn.Read(b)
	if c.flip >= at && c.flip < at+n && c.flip > 0 {
		b[c.flip-at] ^= 0x40
	}
	c.mu.Lock()
	c.read += n
	c.mu.Unlock()
	return n, err
}

// moved are the bytes that an owner says it sent and a puller that it received.
func moved(owner, puller *Puller) (out, in uint64) {
	for i := range pathNames {
		out += owner.traffic[i].out.Load()
		in += puller.traffic[i].in.Load()
	}
	return out, in
}
