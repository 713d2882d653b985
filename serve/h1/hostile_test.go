package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// listener accepts connections and gives each to serve, which owns it.
func listener(t *testing.T, serve func(net.Conn)) (host string) {
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
			serve(nc)
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// TestHandshakeEnds: a worker that accepts a connection and says nothing costs the time to connect, and is one that could
// not be reached.
func TestHandshakeEnds(t *testing.T) {
	held := make(chan net.Conn, 4)
	host := listener(t, func(nc net.Conn) { held <- nc })
	t.Cleanup(func() {
		select {
		case nc := <-held:
			nc.Close()
		default: // the time was up before a packet was sent
		}
	})
	c := newClient(t)
	c.Connect = 50 * time.Millisecond
	_, err := c.Post(t.Context(), "https://"+host+"/", nil, []byte("x"))
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" || !op.Timeout() {
		t.Errorf("%v", err)
	}
}

// TestEndedCallSendsNothing: not even on a connection that is there.
func TestEndedCallSendsNothing(t *testing.T) {
	var seen atomic.Int64
	url, _ := worker(t, func(w http.ResponseWriter, _ *http.Request) { seen.Add(1); _, _ = io.WriteString(w, "ok") })
	c := newClient(t)
	r, err := c.Post(t.Context(), url+"/", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(r)
	r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { t.Error("it was sent") }})
	if _, err := c.Post(ctx, url+"/", nil, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if n := seen.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestOldConnectionIsNotUsed: one that was kept longer than IdleTime is closed although nobody swept yet.
func TestOldConnectionIsNotUsed(t *testing.T) {
	url, opened := worker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	c := newClient(t)
	for range 2 {
		r, err := c.Post(t.Context(), url+"/", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(r)
		r.Close()
		c.mu.Lock()
		for _, list := range c.idle {
			list[0].since = time.Now().Add(-c.IdleTime)
		}
		c.mu.Unlock()
	}
	if n := opened.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// TestOnePostPerCall: a request that was sent is never sent again by itself, however its connection ends. Whether the worker
// has acted on it only the caller can judge.
func TestOnePostPerCall(t *testing.T) {
	for name, second := range map[string]string{
		"closed without a word": "", "cut in the head": "HTTP/1.1 200 OK\r\nA: b", "cut in the body": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
	} {
		t.Run(name, func(t *testing.T) {
			var posts atomic.Int64
			host := listener(t, func(nc net.Conn) {
				defer nc.Close()
				br := bufio.NewReader(nc)
				for _, answer := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", second} {
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					posts.Add(1)
					_, _ = io.WriteString(nc, answer)
				}
			})
			c := newClient(t)
			post := func() error {
				r, err := c.Post(t.Context(), "http://"+host+"/", nil, []byte("x"))
				if err != nil {
					return err
				}
				defer r.Close()
				_, err = io.ReadAll(r)
				return err
			}
			if err := post(); err != nil {
				t.Fatal(err)
			}
			if err := post(); err == nil {
				t.Error("no error")
			}
			if n := posts.Load(); n != 2 {
				t.Errorf("%d requests were sent, not 2", n)
			}
			if len(c.idle[host]) != 0 {
				t.Error("the connection was kept")
			}
		})
	}
}

// TestConnectionsThatMayNotBeKept: the next request would meet bytes that are not its answer.
func TestConnectionsThatMayNotBeKept(t *testing.T) {
	for name, answer := range map[string]string{
		"length and chunks":  "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"a second answer":    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n",
		"old protocol":       "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
		"close among others": "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok",
		"trailing body":      "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok",
	} {
		t.Run(name, func(t *testing.T) {
			host := listener(t, func(nc net.Conn) {
				defer nc.Close()
				br := bufio.NewReader(nc)
				if req, err := http.ReadRequest(br); err == nil {
					_, _ = io.Copy(io.Discard, req.Body)
					_, _ = io.WriteString(nc, answer)
				}
				_, _ = br.ReadByte() // until the client has done
			})
			c := newClient(t)
			r, err := c.Post(t.Context(), "http://"+host+"/", nil, []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r)
			if err != nil || strings.HasPrefix(name, "t") != (len(body) == 0) {
				t.Errorf("%q, %v", body, err)
			}
			r.Close()
			if n := len(c.idle[host]); n != 0 {
				t.Errorf("%d connections are kept", n)
			}
		})
	}
}
