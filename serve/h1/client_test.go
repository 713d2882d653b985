package h1

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"

	"tandem/test/ports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T) *Client {
	c := &Client{MaxIdle: 4, IdleTime: time.Minute}
	t.Cleanup(c.CloseIdle)
	return c
}

// script is a worker that reads a request on each connection and answers with given bytes, then closes.
func script(t *testing.T, answer string, piece int) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			req, err := http.ReadRequest(bufio.NewReader(nc))
			if err == nil {
				_, _ = io.Copy(io.Discard, req.Body)
			}
			for rest := answer; rest != ""; {
				n := min(piece, len(rest))
				_, _ = io.WriteString(nc, rest[:n])
				rest = rest[n:]
			}
			_ = nc.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return "http://" + ln.Addr().String() + "/x"
}

func TestAnswers(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nA: b\r\n"
	for _, tc := range []struct {
		name, answer, body string
		err                error // of the body
		refused            string
	}{
		{"length", head + "Content-Length: 5\r\n\r\nhello", "hello", nil, ""},
		{"empty", head + "Content-Length: 0\r\n\r\n", "", nil, ""},
		{"no content", "HTTP/1.1 204 No Content\r\nA: b\r\n\r\n", "", nil, ""},
		{"to the end", head + "\r\nhello", "hello", nil, ""},
		{"bare line feeds", "HTTP/1.1 200 OK\nA: b\nContent-Length: 2\n\nhi", "hi", nil, ""},
		{"old protocol", "HTTP/1.0 200 OK\r\nA: b\r\n\r\nhello", "hello", nil, ""},
		{"chunks", head + "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\nA\r\nlo, worker\r\n0\r\n\r\n", "hello, worker", nil, ""},
		{"trailers", head + "Transfer-Encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\nT: 1\r\nU: 2\r\n\r\n", "hi", nil, ""},
		{"informal", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nC: d\r\n\r\n" + head + "Content-Length: 2\r\n\r\nhi", "hi", nil, ""},
		{"cut length", head + "Content-Length: 9\r\n\r\nhello", "hello", io.ErrUnexpectedEOF, ""},
		{"cut chunk", head + "Transfer-Encoding: chunked\r\n\r\n9\r\nhello", "hello", io.ErrUnexpectedEOF, ""},
		{"cut between chunks", head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "hello", io.ErrUnexpectedEOF, ""},
		{"cut before trailers end", head + "Transfer-Encoding: chunked\r\n\r\n0\r\n", "", io.ErrUnexpectedEOF, ""},
		{"chunk too short", head + "Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n", "", errChunk, ""},
		{"chunk without size", head + "Transfer-Encoding: chunked\r\n\r\n;x\r\n", "", errChunk, ""},
		{"chunk of no number", head + "Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n", "", errChunk, ""},
		{"chunk too large", head + "Transfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\nx", "", errChunk, ""},
		{"endless chunk line", head + "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 5000), "", errTooLong, ""},
		{"nothing", "", "", nil, "EOF"},
		{"cut head", "HTTP/1.1 200 OK\r\nA: b\r\n", "", nil, "unexpected EOF"},
		{"another protocol", "SSH-2.0-x\r\n\r\n", "", nil, "no HTTP/1 status line"},
		{"no status", "HTTP/1.1 abc\r\n\r\n", "", nil, "has no status"},
		{"no header", "HTTP/1.1 200 OK\r\nA b\r\n\r\n", "", nil, "is no header"},
		{"folded header", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "", nil, "is no header"},
		{"two lengths", head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", "", nil, "cannot be read"},
		{"negative length", head + "Content-Length: -2\r\n\r\nhi", "", nil, "cannot be read"},
		{"another coding", head + "Transfer-Encoding: gzip, chunked\r\n\r\n", "", nil, "is not chunked"},
		{"upgrade", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "", nil, "another protocol"},
		{"1xx for ever", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20), "", nil, "again and again"},
		{"endless head", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 100_000), "", nil, errTooLong.Error()},
	} {
		for _, piece := range []int{1 << 20, 1} {
			if piece == 1 && len(tc.answer) > 10_000 {
				continue
			}
			t.Run(tc.name, func(t *testing.T) {
				c := newClient(t)
				r, err := c.Post(t.Context(), script(t, tc.answer, piece), nil, []byte("{}"))
				if tc.refused != "" {
					if err == nil || !strings.Contains(err.Error(), tc.refused) {
						t.Fatalf("error %v, want %q", err, tc.refused)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				if r.Header.Get("a") != "b" {
					t.Errorf("headers %v", r.Header)
				}
				body, err := io.ReadAll(r)
				if !errors.Is(err, tc.err) || tc.body != "" && string(body) != tc.body {
					t.Errorf("body %q, %v; want %q, %v", body, err, tc.body, tc.err)
				}
			})
		}
	}
}

// worker counts the connections to an HTTP server.
func worker(t *testing.T, h http.HandlerFunc) (url string, opened *atomic.Int64) {
	t.Helper()
	opened = new(atomic.Int64)
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL, opened
}

func TestConnectionIsKept(t *testing.T) {
	url, opened := worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Close") != "" {
			w.Header().Set("Connection", "close")
		}
		_, _ = w.Write(body)
		if r.Header.Get("X-Stream") != "" {
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "and on")
		}
	})
	c := newClient(t)
	post := func(name string, read bool, want int64) {
		t.Helper()
		r, err := c.Post(t.Context(), url+"/v1", http.Header{name: {"1"}}, []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if read {
			if body, err := io.ReadAll(r); err != nil || !strings.HasPrefix(string(body), "hello") {
				t.Fatalf("%q, %v", body, err)
			}
		}
		r.Close()
		r.Close()
		if got := opened.Load(); got != want {
			t.Fatalf("%d connections, want %d", got, want)
		}
	}
	post("X-A", true, 1)
	post("X-Stream", true, 1)
	post("X-Close", true, 1)
	post("X-A", true, 2)
	post("X-Stream", false, 2) // cut, since it was not read
	post("X-A", true, 3)
	c.CloseIdle()
	post("X-A", true, 4)
}

// TestStaleConnection: a connection that the worker closed meanwhile is not used.
func TestStaleConnection(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	closed := make(chan struct{}, 8)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}
	srv.Start()
	defer srv.Close()
	c := newClient(t)
	for range 3 {
		r, err := c.Post(t.Context(), srv.URL+"/", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(r)
		r.Close()
		srv.CloseClientConnections()
		<-closed
	}
}

func TestIdleTime(t *testing.T) {
	gone := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(gone)
		}
	}
	srv.Start()
	defer srv.Close()
	c := &Client{MaxIdle: 1, IdleTime: 20 * time.Millisecond}
	r, err := c.Post(t.Context(), srv.URL+"/", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(r)
	r.Close()
	<-gone // the test's time limit is its own
}

func TestCancel(t *testing.T) {
	entered, left := make(chan struct{}, 1), make(chan struct{}, 1)
	url, _ := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		if r.URL.Path == "/begin" {
			_, _ = io.WriteString(w, "some")
			w.(http.Flusher).Flush()
		}
		entered <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	})
	for _, path := range []string{"/begin", "/silent"} {
		c := newClient(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-entered; cancel() }()
		r, err := c.Post(ctx, url+path, nil, []byte("{}"))
		if err == nil {
			_, err = io.ReadAll(r)
			r.Close()
		}
		if err == nil {
			t.Errorf("%s: no error of a call that was cancelled", path)
		}
		<-left // the worker learns of it
		if len(c.idle) > 0 {
			t.Errorf("%s: the connection was kept", path)
		}
	}
}

// TestCancelBetweenPieces: a call that ends while nobody reads is over at the next read.
func TestCancelBetweenPieces(t *testing.T) {
	url, _ := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := newClient(t).Post(ctx, url+"/", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if p, err := r.Piece(); err != nil || string(p) != "some" {
		t.Fatalf("%q, %v", p, err)
	}
	cancel()
	r.conn.abort() // the call's own may still be on its way
	for range 2 {
		if p, err := r.Piece(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q, %v", p, err)
		}
	}
}

// TestEarlyAnswer: a worker that refuses a long body and closes is understood.
func TestEarlyAnswer(t *testing.T) {
	url, _ := worker(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, "too long", http.StatusRequestEntityTooLarge)
	})
	r, err := newClient(t).Post(t.Context(), url+"/", nil, make([]byte, 4<<20))
	if err != nil {
		t.Skip("the refusal was lost with the connection:", err) // which TCP allows
	}
	defer r.Close()
	if r.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", r.StatusCode)
	}
}

func TestTLS(t *testing.T) {
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, iotest.OneByteReader(r.Body))
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Config.ErrorLog = nil
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c := newClient(t)
	c.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	for range 3 {
		r, err := c.Post(t.Context(), srv.URL+"/", nil, []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(r); err != nil || string(body) != "hello" {
			t.Fatalf("%q, %v", body, err)
		}
		r.Close()
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	c.CloseIdle()
	c.TLS = nil
	if _, err := c.Post(t.Context(), srv.URL+"/", nil, nil); err == nil {
		t.Error("an unknown certificate was accepted")
	}
}

func TestRefusals(t *testing.T) {
	c := newClient(t)
	for url, want := range map[string]string{
		"ftp://a/": "neither", "http:///x": "no plain host", "http://u@h/": "no plain host", "http://h/a b": "blank", "http://h\r\n/": "blank",
	} {
		if _, err := c.Post(t.Context(), url, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
	for _, h := range []http.Header{{"A": {"b\r\nC: d"}}, {"A B": {"c"}}, {"": {"c"}}, {"A": {"\x00"}}} {
		if _, err := c.Post(t.Context(), "http://h/", h, nil); err == nil {
			t.Errorf("headers %q were sent", h)
		}
	}
	var op *net.OpError
	if _, err := c.Post(t.Context(), "http://"+ports.Address(t)+"/", nil, nil); !errors.As(err, &op) || op.Op != "dial" {
		t.Errorf("a closed port: %v", err)
	}
}

// TestWaitsWithoutBuffer: a stream that is silent holds none.
func TestWaitsWithoutBuffer(t *testing.T) {
	next := make(chan struct{})
	url, _ := worker(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "data: x\n\n")
			w.(http.Flusher).Flush()
			<-next
		}
	})
	r, err := newClient(t).Post(t.Context(), url+"/", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		if p, err := r.Piece(); err != nil || string(p) != "data: x\n\n" {
			t.Fatalf("%q, %v", p, err)
		}
		r.conn.r += r.given // as the next Piece does
		r.given = 0
		r.conn.release()
		if r.conn.tryRead(socketOf(t, r.conn)) || r.conn.buf != nil {
			t.Error("it holds a buffer and has nothing in it")
		}
		next <- struct{}{}
	}
	if _, err := r.Piece(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func socketOf(t *testing.T, c *conn) (fd uintptr) {
	t.Helper()
	if err := c.sock.Control(func(f uintptr) { fd = f }); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestWroteRequest: the trace hears of the connection, and then when a request is on the wire, before the answer comes.
func TestWroteRequest(t *testing.T) {
	wrote := make(chan struct{})
	url, _ := worker(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-wrote:
		case <-r.Context().Done():
		}
	})
	got := false
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { got = true },
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			if i.Err == nil && got {
				close(wrote)
			}
		},
	})
	r, err := newClient(t).Post(ctx, url+"/", nil, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}
