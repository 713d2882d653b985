package wire

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	pb "tandem/engine/transfer/transferpb"
)

// tcpPath reads framed blocks from the owner's data listener, straight into block
// memory where that is in one piece.
type tcpPath struct{ pool dataPool }

func (t *tcpPath) name() string { return PathTCP }

func (t *tcpPath) offered(l *link, _ *pb.Accept) bool { return l.local == nil }

func (t *tcpPath) close() { t.pool.close() }

func (t *tcpPath) open(ctx context.Context, pl *pull, l *link, a *pb.Accept, again bool) (reader, error) {
	_, host, err := splitEndpoint(pl.order.Handle.Endpoint)
	if err != nil {
		return nil, err
	}
	r := &tcpReader{path: t, pl: pl, addr: net.JoinHostPort(host, strconv.Itoa(int(a.GetDataPort())))}
	dialing, cancel := context.WithTimeout(ctx, pl.p.cfg.AttachTimeout)
	defer cancel()
	if r.conn, err = t.pool.get(dialing, r.addr, again); err != nil {
		return nil, fmt.Errorf("byte path to %s: %w", r.addr, err)
	}
	r.in = deadlineReader{conn: r.conn, ctx: ctx, idle: pl.p.cfg.IdleTimeout}
	r.frames = frameReader{in: &r.in}
	r.wake = context.AfterFunc(ctx, func() { _ = r.conn.SetDeadline(time.Unix(1, 0)) })
	r.req = pl.request(a)
	r.req.plain = !pl.p.cfg.sums && withinHost(r.conn)
	r.frames.plain = r.req.plain
	return r, nil
}

// tcpReader is a connection that answers one PULL after another.
type tcpReader struct {
	path   *tcpPath
	pl     *pull
	addr   string
	conn   net.Conn
	in     deadlineReader
	frames frameReader
	wake   func() bool

	req pullRequest // of the blocks ordered last
	seq uint32      // of its next frame
}

func (r *tcpReader) read(n int) error {
	r.req.order(n)
	r.seq = 0
	return r.in.write(r.req.encode())
}

func (r *tcpReader) poll() (int, error) {
	pl := r.pl
	want := r.req.frame(r.seq)
	to := pl.to.direct(pl.verified)
	straight := to != nil
	if !straight {
		to = pl.to.buffer()
	}
	if err := r.frames.next(want, to, r.seq+1 < r.req.blocks); err != nil {
		return 0, err
	}
	if !straight {
		pl.to.put(pl.verified, to)
	}
	r.seq++
	return 1, nil
}

func (r *tcpReader) close(done bool) {
	if !r.wake() || !done || r.seq < r.req.blocks {
		_ = r.conn.Close()
		return
	}
	r.path.pool.put(r.addr, r.conn)
}

// withinHost tells that a connection does not leave this machine.
func withinHost(conn net.Conn) bool {
	a, ok := conn.LocalAddr().(*net.TCPAddr)
	b, also := conn.RemoteAddr().(*net.TCPAddr)
	return ok && also && a.IP.Equal(b.IP)
}

// deadlineReader reads from a connection that must deliver something within
// idle, piece by piece, until ctx ends.
type deadlineReader struct {
	conn net.Conn
	ctx  context.Context
	idle time.Duration
}

func (r *deadlineReader) Read(b []byte) (int, error) {
	if err := r.arm(); err != nil {
		return 0, err
	}
	return r.conn.Read(b[:min(len(b), readChunk)])
}

func (r *deadlineReader) write(b []byte) error {
	if err := r.arm(); err != nil {
		return err
	}
	_, err := r.conn.Write(b)
	return err
}

// arm sets the deadline. If ctx ends in between, the deadline that its AfterFunc
// set may just have been replaced, so ctx is looked at afterwards.
func (r *deadlineReader) arm() error {
	_ = r.conn.SetDeadline(time.Now().Add(r.idle))
	return context.Cause(r.ctx)
}
