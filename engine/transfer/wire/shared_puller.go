package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// sharedReader is the puller's side of shared memory. It keeps the pools of owners
// mapped as long as those live.
type sharedReader struct {
	cfg    *Config
	host   string
	stages dataPool
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	peers  map[string]*sharedPeer
	failed map[string]time.Time // when an owner's memory could not be had
}

// retryShared is how long an owner whose memory could not be had is left to TCP.
const retryShared = time.Minute

func newSharedReader(cfg *Config) *sharedReader {
	if cfg.NoShared || !sharedMemory {
		return nil
	}
	s := &sharedReader{cfg: cfg, host: thisHost(), peers: map[string]*sharedPeer{}, failed: map[string]time.Time{}}
	s.stages.idle = map[string][]*idleConn{}
	return s
}

func (s *sharedReader) name() string { return PathShared }

// keyOf names one pool of one life of an owner.
func keyOf(m *pb.SharedMemory) string { return fmt.Sprintf("%s/%d", m.GetName(), m.GetPool()) }

func (s *sharedReader) offered(l *link, a *pb.Accept) bool {
	m := a.GetShared()
	if l.local != nil || m == nil || s.host == "" || m.GetHost() != s.host || len(m.GetName()) > maxName {
		return false
	}
	if n := len(m.GetBlocks()); n > 0 && n != 4*int(a.GetBlocks()) {
		return false
	}
	return s.worth(keyOf(m))
}

// worth reports whether memory may be tried: it could be had, or that is long ago.
func (s *sharedReader) worth(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, bad := s.failed[key]
	return !bad || time.Since(at) > retryShared
}

// avoid leaves memory alone for a while that could not be had.
func (s *sharedReader) avoid(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failed) > mostKnown {
		clear(s.failed)
	}
	s.failed[key] = time.Now()
}

func (s *sharedReader) close() {
	s.stages.close()
	s.mu.Lock()
	s.closed = true
	for _, p := range s.peers {
		if p.conn != nil {
			_ = p.conn.Close()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *sharedReader) open(ctx context.Context, pl *pull, _ *link, a *pb.Accept, again bool) (r reader, err error) {
	switch m := a.GetShared(); {
	case len(m.GetBlocks()) == 0:
		r, err = s.openStage(ctx, pl, a, again)
	case m.GetDevice():
		r, err = s.openDevice(ctx, pl, a, again)
	default:
		r, err = s.openPool(ctx, pl, a)
	}
	if err != nil && ctx.Err() == nil && again {
		s.avoid(keyOf(a.GetShared()))
	}
	return r, err
}

// dial asks an owner for memory; the descriptors are the caller's.
func (s *sharedReader) dial(ctx context.Context, m *pb.SharedMemory, kind byte, t token) (*net.UnixConn, sharedOffer, []int, error) {
	d := net.Dialer{Timeout: handshakeLimit}
	c, err := d.DialContext(ctx, "unix", "@"+m.GetName())
	if err != nil {
		return nil, sharedOffer{}, nil, err
	}
	conn := c.(*net.UnixConn)
	_ = conn.SetDeadline(time.Now().Add(handshakeLimit))
	h := hello{kind: kind, token: t}
	if err = sameUser(conn); err == nil {
		_, err = conn.Write(h.encode())
	}
	if err == nil {
		var o sharedOffer
		var fds []int
		if o, fds, err = receiveOffer(conn); err == nil {
			if (o.slots > 0) == (kind == wantStage) {
				_ = conn.SetDeadline(time.Time{})
				return conn, o, fds, nil
			}
			closeAll(fds)
			err = fmt.Errorf("shared memory: %w: %+v was not asked for", errCorrupt, o)
		}
	}
	_ = conn.Close()
	return nil, sharedOffer{}, nil, fmt.Errorf("shared memory of the owner: %w", err)
}

// sharedPeer is one pool of an owner. It is unmapped when the owner is gone and no
// reader is left.
type sharedPeer struct {
	ready chan struct{} // closed when the rest, or err, is there
	err   error
	conn  *net.UnixConn

	mu          sync.Mutex
	users       int
	pool, board []byte // pool is a handle if the blocks are on a device
	copyBlocks  func(to, from []int32) error
	done        func() // of copyBlocks
}

// use reports whether the pool may be read until leave.
func (p *sharedPeer) use() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		return false
	}
	p.users++
	return true
}

func (p *sharedPeer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 {
		if p.done != nil {
			p.done()
		}
		unmapShared(p.pool)
		unmapShared(p.board)
	}
}

// peer returns the pool of an owner, mapped.
func (s *sharedReader) peer(ctx context.Context, mem transfer.Memory, a *pb.Accept) (*sharedPeer, error) {
	key := keyOf(a.GetShared())
	s.mu.Lock()
	p := s.peers[key]
	if p != nil || s.closed {
		s.mu.Unlock()
		if p == nil {
			return nil, errClosed
		}
		select {
		case <-p.ready:
			return p, p.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	p = &sharedPeer{ready: make(chan struct{})}
	s.peers[key] = p
	s.mu.Unlock()
	conn, err := s.connect(ctx, p, mem, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.err = err
	if err == nil && s.closed {
		p.leave()
		_ = conn.Close()
		p.err = errClosed
	}
	if p.err != nil {
		delete(s.peers, key)
	} else {
		p.conn = conn
		s.wg.Add(1)
		go s.watch(key, p)
	}
	close(p.ready)
	return p, p.err
}

// connect maps what the owner hands out.
func (s *sharedReader) connect(ctx context.Context, p *sharedPeer, mem transfer.Memory, a *pb.Accept) (*net.UnixConn, error) {
	kind := byte(wantPool)
	if a.GetShared().GetDevice() {
		kind = wantDevice
	}
	conn, o, fds, err := s.dial(ctx, a.GetShared(), kind, token(a.GetToken()))
	if err != nil {
		return nil, err
	}
	defer closeAll(fds)
	if p.pool, err = mapShared(fds[0], o.size); err == nil {
		if p.board, err = mapShared(fds[1], o.board); err == nil && kind == wantDevice {
			err = p.openDevice(mem)
		}
		if err != nil {
			unmapShared(p.board)
			unmapShared(p.pool)
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	p.users = 1
	return conn, nil
}

// watch lets go of a pool when its owner is gone.
func (s *sharedReader) watch(key string, p *sharedPeer) {
	defer s.wg.Done()
	_, _ = p.conn.Read(make([]byte, 1)) // nothing is ever sent
	_ = p.conn.Close()
	s.mu.Lock()
	if s.peers[key] == p {
		delete(s.peers, key)
	}
	s.mu.Unlock()
	p.leave()
}

func (s *sharedReader) openPool(ctx context.Context, pl *pull, a *pb.Accept) (reader, error) {
	p, err := s.peer(ctx, pl.p.memory.Memory, a)
	if err != nil {
		return nil, err
	}
	m := a.GetShared()
	if int(m.GetWord()) >= len(p.board)/8 {
		return nil, fmt.Errorf("shared memory: %w: word %d of %d", errCorrupt, m.GetWord(), len(p.board)/8)
	}
	if !p.use() {
		return nil, errors.New("the owner of the shared memory is gone")
	}
	return &poolReader{
		ctx: ctx, pl: pl, peer: p, blocks: m.GetBlocks()[4*(len(pl.order.Have)+pl.verified-int(a.GetSkip())):],
		size: uint64(pl.order.Handle.Layout.BlockBytes()), word: m.GetWord(), stamp: m.GetStamp(),
	}, nil
}

func (s *sharedReader) openStage(ctx context.Context, pl *pull, a *pb.Accept, again bool) (reader, error) {
	r := &stageReader{path: s, pl: pl, key: keyOf(a.GetShared()), req: pl.request(a)}
	if !again {
		r.conn, _ = s.stages.take(r.key).(*stagedConn)
	}
	if r.conn == nil {
		conn, o, fds, err := s.dial(ctx, a.GetShared(), wantStage, r.req.token)
		if err != nil {
			return nil, err
		}
		defer closeAll(fds)
		if r.conn, err = newStagedConn(conn, o, fds); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	r.in = deadlineReader{conn: r.conn, ctx: ctx, idle: pl.p.cfg.IdleTimeout}
	r.wake = context.AfterFunc(ctx, func() { _ = r.conn.SetDeadline(time.Unix(1, 0)) })
	return r, nil
}

// poolReader copies blocks out of an owner's pool.
type poolReader struct {
	ctx     context.Context
	pl      *pull
	peer    *sharedPeer
	blocks  []byte // places of those that are missing, 4 bytes each
	ordered int
	size    uint64
	word    uint32
	stamp   uint64
}

func (r *poolReader) read(n int) error {
	r.ordered = n
	return nil
}

// pollBytes is how much is copied between two looks at the board.
const pollBytes = 4 << 20

func (r *poolReader) poll() (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	if r.peer.copyBlocks != nil {
		return r.pollDevice()
	}
	n := min(r.ordered, int(max(1, pollBytes/r.size)))
	for i := range n {
		at := uint64(binary.LittleEndian.Uint32(r.blocks[4*i:])) * r.size
		if at+r.size > uint64(len(r.peer.pool)) {
			return 0, fmt.Errorf("shared memory: %w: a block at %d of %d bytes", errCorrupt, at, len(r.peer.pool))
		}
		r.pl.to.put(r.pl.verified+i, r.peer.pool[at:at+r.size])
	}
	return r.counted(n)
}

// counted tells whether n more blocks were surely read under a live lease.
func (r *poolReader) counted(n int) (int, error) {
	if wordAt(r.peer.board, r.word).Load() != r.stamp {
		return 0, errStale
	}
	r.blocks, r.ordered = r.blocks[4*n:], r.ordered-n
	return n, nil
}

func (r *poolReader) close(bool) { r.peer.leave() }
