package h1

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Direct returns a listener whose TCP connections are read and written by system calls that the scheduler does not watch.
// They cannot block, and a proxy makes two for each token, so the watching would cost more than all it does with the token.
//
// A request that net/http cannot read never gets to a handler: it is answered with a line of plain text. refuse makes the JSON
// that goes out in its place, of the status and of what net/http says about it, "" if nothing; nil = the text goes out. With
// TLS above, which hides the answer, it stays as it is.
func Direct(ln net.Listener, refuse func(status int, why string) []byte) net.Listener {
	return direct{ln, refuse}
}

type direct struct {
	net.Listener
	refuse func(status int, why string) []byte
}

// Accept waits for a connection.
func (d direct) Accept() (net.Conn, error) {
	nc, err := d.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // net/http looks at it
	}
	nc = asSocket(nc)
	if s, ok := nc.(*socket); ok {
		s.refuse = d.refuse
	}
	return nc, nil
}

// asSocket makes a connection a socket if it is one of TCP.
func asSocket(nc net.Conn) net.Conn {
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return nc
	}
	s := &socket{TCPConn: tc, raw: raw}
	s.rd.try, s.wr.try = s.rd.read, s.wr.write
	return s
}

// socket is a TCP connection. Both directions may be used at once; of one direction, calls follow each other.
type socket struct {
	*net.TCPConn
	raw    syscall.RawConn
	rd, wr way
	refuse func(status int, why string) []byte // nil = answers go out as they are
}

// atOnce bounds the bytes of one call, and so the time in which the scheduler cannot have its thread.
const atOnce = 64 << 10

// way is one direction of a socket: the call that runs.
type way struct {
	mu  sync.Mutex
	try func(fd uintptr) bool // bound once
	p   []byte
	n   int
	err error
}

// Read reads what has arrived, or waits for it.
func (s *socket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := s.rd.run(p, s.raw.Read)
	switch {
	case err != nil:
		return n, s.named("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write writes all of p.
func (s *socket) Write(p []byte) (int, error) {
	if s.refuse != nil {
		if status, why, ok := plainRefusal(p); ok {
			return s.writeRefusal(len(p), status, s.refuse(status, why))
		}
	}
	n, err := s.wr.run(p, s.raw.Write)
	if err != nil {
		return n, s.named("write", err)
	}
	return n, nil
}

// run makes a call; by waits while it would block.
func (w *way) run(p []byte, by func(func(uintptr) bool) error) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.p, w.n, w.err = p, 0, nil
	err := by(w.try)
	if err == nil {
		err = w.err
	}
	w.p = nil
	return w.n, err
}

func (w *way) read(fd uintptr) bool {
	w.n, w.err = sysRead(fd, w.p[:min(len(w.p), atOnce)])
	return w.err != syscall.EAGAIN //nolint:errorlint // a system call's own error
}

func (w *way) write(fd uintptr) bool {
	for w.n < len(w.p) {
		n, err := sysWrite(fd, w.p[w.n:min(len(w.p), w.n+atOnce)])
		if err == syscall.EAGAIN { //nolint:errorlint // a system call's own error
			return false
		}
		if w.err = err; err != nil {
			return true
		}
		w.n += n
	}
	return true
}

// named makes the error that the connection itself would have returned.
func (s *socket) named(op string, err error) error {
	var oe *net.OpError
	if errors.As(err, &oe) { // of a deadline or the end
		err = oe.Err
	} else if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // a system call's own error
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
}
