package h1

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	pooledSize = 8 << 10
	maxHead    = 256 << 10 // bytes of an answer's status line and headers
	joinedBody = 32 << 10  // a longer body goes out beside its head, without a copy
)

var (
	buffers = sync.Pool{New: func() any { return new([pooledSize]byte) }}
	past    = time.Unix(1, 0)

	errTooLong = errors.New("h1: the answer has a line or head that is too long")
)

// conn is one connection. Bytes that arrived and were not read yet are buf[r:w]; without any it has no buffer.
type conn struct {
	nc   net.Conn
	raw  syscall.RawConn // waits without a buffer; nil for TLS, which cannot
	sock syscall.RawConn // of the connection below TLS; nil: not known
	used bool            // it has served a request before
	buf  []byte
	r, w int

	since time.Time // it was kept

	ready func(fd uintptr) bool // tryRead, bound once
	n     int                   // what tryRead got
	err   error
}

// newConn wraps a connection; below is the one that its bytes take.
func newConn(nc, below net.Conn) *conn {
	c := &conn{nc: nc}
	if sc, ok := below.(syscall.Conn); ok {
		c.sock, _ = sc.SyscallConn() // an error leaves nil
	}
	if nc == below {
		c.raw = c.sock
		c.nc = asSocket(nc)
	}
	c.ready = c.tryRead
	return c
}

// abort ends what waits for the connection, now and later.
func (c *conn) abort() { _ = c.nc.SetDeadline(past) }

func (c *conn) close() {
	_ = c.nc.Close()
	c.r = c.w
	c.release()
}

// alive tells whether a kept connection can be used: nothing has arrived on it, not even its end.
func (c *conn) alive() bool {
	if c.sock == nil {
		return true
	}
	quiet := false
	err := c.sock.Control(func(fd uintptr) {
		var one [1]byte
		_, err := sysRead(fd, one[:])
		quiet = errors.Is(err, syscall.EAGAIN)
	})
	return err == nil && quiet
}

// send writes a request and returns how many bytes went out.
func (c *conn) send(head, body []byte) (int, error) {
	if len(body) <= joinedBody {
		n, err := c.nc.Write(append(head, body...))
		if err != nil {
			err = fmt.Errorf("send request: %w", err)
		}
		return n, err
	}
	both := net.Buffers{head, body}
	n, err := both.WriteTo(c.nc)
	if err != nil {
		err = fmt.Errorf("send request: %w", err)
	}
	return int(n), err
}

// more waits for at least one byte and appends what has arrived to buf. io.EOF: the worker closed the connection.
func (c *conn) more() error {
	switch {
	case c.r == c.w:
		c.release()
	case c.w < len(c.buf):
	case c.r > 0:
		c.w, c.r = copy(c.buf, c.buf[c.r:c.w]), 0
	case len(c.buf) >= maxHead:
		return errTooLong
	default:
		old := c.buf
		c.buf = make([]byte, 2*len(old))
		copy(c.buf, old)
		recycle(old)
	}
	var err error
	c.n = 0 // tryRead is not even called if the call has ended
	if c.raw == nil {
		c.acquire()
		c.n, err = c.nc.Read(c.buf[c.w:])
	} else if err = c.raw.Read(c.ready); err == nil {
		err = c.err
	}
	if c.n > 0 {
		c.w += c.n
		return nil
	}
	switch {
	case err == nil:
		err = io.ErrNoProgress
	case errors.Is(err, io.EOF):
		return io.EOF
	}
	return fmt.Errorf("read answer: %w", err)
}

// tryRead reads what is there. It returns false, without a buffer, when there is nothing yet.
func (c *conn) tryRead(fd uintptr) bool {
	c.acquire()
	c.n, c.err = sysRead(fd, c.buf[c.w:])
	switch {
	case c.err == syscall.EAGAIN: //nolint:errorlint // a system call's own error
		c.n = 0
		if c.r == c.w {
			c.release()
		}
		return false
	case c.err != nil:
		c.n = 0
	case c.n == 0:
		c.err = io.EOF
	}
	return true
}

func (c *conn) acquire() {
	if c.buf == nil {
		c.buf = buffers.Get().(*[pooledSize]byte)[:]
	}
}

// release gives the buffer back; nothing in it is needed.
func (c *conn) release() {
	c.r, c.w = 0, 0
	if c.buf != nil {
		recycle(c.buf)
		c.buf = nil
	}
}

func recycle(buf []byte) {
	if len(buf) == pooledSize {
		buffers.Put((*[pooledSize]byte)(buf))
	}
}
