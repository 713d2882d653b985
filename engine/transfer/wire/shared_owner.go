package wire

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// word is a grant's place on the board; p is nil if it has none.
type word struct {
	p *atomic.Uint64
	i uint32
}

// sharedOwner is the owner's side of shared memory.
type sharedOwner struct {
	srv      *Server
	host     string
	name     string
	listener *net.UnixListener
	board    *segment
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool
	pools  map[uint32]sharedPool
	free   []uint32 // words of the board
	stamp  uint64
	conns  map[*net.UnixConn]bool
}

// sharedPool is the file of a rank's memory; ok is false if it has none.
type sharedPool struct {
	fd   uintptr
	size int64
	ok   bool
	// handle holds that of a device's memory, in place of the memory; nil = it is the
	// host's.
	handle *segment
}

var errNoHost = errors.New("this system and its network cannot be told from others")

// newSharedOwner opens the socket of a server, nil if shared memory is off or not
// to be had, which costs only speed.
func newSharedOwner(s *Server) *sharedOwner {
	if s.cfg.NoShared || !sharedMemory {
		return nil
	}
	o := &sharedOwner{srv: s, host: thisHost(), pools: map[uint32]sharedPool{}, conns: map[*net.UnixConn]bool{}}
	name, stamp := newToken(), newToken()
	o.name, o.stamp = "tandem-kv-"+hex.EncodeToString(name[:]), binary.LittleEndian.Uint64(stamp[:])>>1
	err := errNoHost
	if o.host != "" {
		o.board, err = newSegment("tandem-kv-board", 8*boardWords)
	}
	if err == nil {
		if o.listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + o.name}); err != nil {
			o.board.close()
		}
	}
	if err != nil {
		s.cfg.Logger.Warn("KV blocks cannot be shared in memory, pullers of this host use TCP", "error", err)
		return nil
	}
	for i := range uint32(boardWords) {
		o.free = append(o.free, boardWords-1-i)
	}
	o.wg.Add(1)
	go o.accept()
	return o
}

func (o *sharedOwner) register(t *Transport) {
	p := sharedPool{}
	if m, ok := t.memory.Memory.(transfer.SharedMemory); ok && t.memory.blockBytes > 0 {
		p.fd, p.size, p.ok = m.File()
	}
	if !p.ok {
		p = o.deviceOf(t)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pools[t.id] = p
}

func (o *sharedOwner) describe(ss *session, to *pb.Accept) {
	if len(ss.blocks) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	m := &pb.SharedMemory{Host: o.host, Name: o.name, Pool: ss.rank.id}
	if p := o.pools[ss.rank.id]; p.ok {
		m.Device = p.handle != nil
		if len(o.free) == 0 {
			return // thousands of pullers: some of them use TCP
		}
		i := o.free[len(o.free)-1]
		o.free = o.free[:len(o.free)-1]
		o.stamp++
		ss.word = word{wordAt(o.board.bytes, i), i}
		ss.word.p.Store(o.stamp)
		m.Word, m.Stamp = i, o.stamp
		m.Blocks = make([]byte, 0, 4*len(ss.blocks))
		for _, id := range ss.blocks {
			m.Blocks = binary.LittleEndian.AppendUint32(m.Blocks, uint32(id))
		}
	}
	to.Shared = m
}

func (o *sharedOwner) retract(ss *session) {
	if ss.word.p != nil {
		ss.word.p.Store(0)
	}
}

func (o *sharedOwner) forget(ss *session) {
	ss.mu.Lock()
	w := ss.word
	ss.word = word{}
	ss.mu.Unlock()
	if w.p == nil {
		return
	}
	w.p.Store(0)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.free = append(o.free, w.i)
}

func (o *sharedOwner) close() {
	o.mu.Lock()
	o.closed = true
	for c := range o.conns {
		_ = c.Close()
	}
	o.mu.Unlock()
	_ = o.listener.Close()
	o.wg.Wait()
	o.srv.retired = append(o.srv.retired, o.board.close)
	for _, p := range o.pools {
		if p.handle != nil {
			p.handle.close()
		}
	}
}

func (o *sharedOwner) accept() {
	defer o.wg.Done()
	for {
		conn, err := o.listener.AcceptUnix()
		if err != nil {
			return // closed
		}
		o.mu.Lock()
		if o.closed {
			o.mu.Unlock()
			_ = conn.Close()
			return
		}
		o.conns[conn] = true
		o.wg.Add(1)
		o.mu.Unlock()
		go o.serve(conn)
	}
}

// serve answers one puller. The connection stays open as long as that has the
// memory mapped.
func (o *sharedOwner) serve(conn *net.UnixConn) {
	defer func() {
		_ = conn.Close()
		o.mu.Lock()
		delete(o.conns, conn)
		o.mu.Unlock()
		o.wg.Done()
	}()
	_ = conn.SetDeadline(time.Now().Add(handshakeLimit))
	err := sameUser(conn)
	var h hello
	if err == nil {
		h, err = readHello(conn)
	}
	if err != nil {
		o.srv.cfg.Logger.Warn("a connection for shared memory was refused", "error", err)
		return
	}
	ss := o.srv.byToken(h.token)
	if ss == nil {
		return // the grant ended meanwhile
	}
	log := o.srv.cfg.Logger.With(slog.Int64("disagg_request_id", int64(ss.id)))
	if h.kind == wantStage {
		err = serveStage(o.srv, conn, ss.rank)
	} else {
		err = o.handOut(conn, ss.rank.id, h.kind)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		log.Debug("the puller's connection for shared memory ended", "error", err)
	}
}

// handOut sends the descriptors of a pool and waits for the puller's end.
func (o *sharedOwner) handOut(conn *net.UnixConn, rank uint32, kind byte) error {
	o.mu.Lock()
	p := o.pools[rank]
	o.mu.Unlock()
	if !p.ok || (p.handle != nil) != (kind == wantDevice) {
		return errNotServed
	}
	offer := sharedOffer{size: uint64(p.size), board: uint64(len(o.board.bytes))}
	if _, _, err := conn.WriteMsgUnix(offer.encode(), rights(int(p.fd), o.board.fd), nil); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	_, err := conn.Read(make([]byte, 1))
	return err
}
