package h1

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// socketPair returns both ends of a connection; the first is a socket of Direct.
func socketPair(t *testing.T) (net.Conn, *net.TCPConn) {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := Direct(plain, nil)
	defer ln.Close()
	far, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := near.(*socket); !ok {
		t.Fatalf("a %T was accepted", near)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far.(*net.TCPConn)
}

// wants checks that an error is the one of a connection of package net.
func wants(t *testing.T, err error, op string, cause error) {
	t.Helper()
	var oe *net.OpError
	if !errors.As(err, &oe) || oe.Op != op || !errors.Is(err, cause) || oe.Timeout() != errors.Is(cause, os.ErrDeadlineExceeded) || oe.Addr == nil {
		t.Fatalf("%v, want one of %q that is %q", err, op, cause)
	}
}

// TestDirectDeadlines: both directions end at their deadline, also one that is set while they wait, and go on after it.
func TestDirectDeadlines(t *testing.T) {
	near, far := socketPair(t)
	buf := make([]byte, 8)
	_ = near.SetReadDeadline(time.Unix(1, 0))
	_, err := near.Read(buf)
	wants(t, err, "read", os.ErrDeadlineExceeded)
	_ = near.SetReadDeadline(time.Time{})
	ended := make(chan error, 1)
	go func() { _, err := near.Read(buf); ended <- err }()
	_ = near.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	wants(t, <-ended, "read", os.ErrDeadlineExceeded)

	much := make([]byte, 64<<20)
	n := 0
	go func() {
		var err error
		n, err = near.Write(much)
		ended <- err
	}()
	if _, err := io.ReadFull(far, buf); err != nil { // and no more: the rest finds no room
		t.Fatal(err)
	}
	_ = near.SetWriteDeadline(time.Unix(1, 0))
	wants(t, <-ended, "write", os.ErrDeadlineExceeded)
	if n < len(buf) || n >= len(much) {
		t.Fatalf("%d bytes went out", n)
	}
	_ = near.SetDeadline(time.Time{})
	go func() { _, _ = far.Write([]byte("hello")) }()
	if n, err := near.Read(buf); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	go func() { _, _ = io.Copy(io.Discard, far) }()
	if n, err := near.Write(much); err != nil || n != len(much) {
		t.Fatal(n, err)
	}
}

// TestDirectReadsAreBounded: a read takes no more than atOnce, whatever has arrived and however much there is room for.
func TestDirectReadsAreBounded(t *testing.T) {
	near, far := socketPair(t)
	buf := make([]byte, 8*atOnce)
	go func() { _, _ = far.Write(buf); _ = far.CloseWrite() }()
	got := make([]byte, len(buf))
	total := 0
	for {
		n, err := near.Read(got)
		if total += n; n > atOnce {
			t.Fatalf("%d bytes in one call", n)
		}
		if err != nil {
			if err != io.EOF || total != len(buf) { //nolint:errorlint // net/http compares it, too
				t.Fatal(total, err)
			}
			return
		}
	}
}

// TestDirectEnds: what a connection says at its end.
func TestDirectEnds(t *testing.T) {
	near, far := socketPair(t)
	if err := far.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	for range 2 {
		if n, err := near.Read(buf); n != 0 || err != io.EOF { //nolint:errorlint // net/http compares it, too
			t.Fatal(n, err)
		}
	}
	if n, err := near.Read(nil); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	near, far = socketPair(t)
	_ = far.SetLinger(0)
	far.Close()
	_, err := near.Read(buf)
	wants(t, err, "read", syscall.ECONNRESET)
	near, _ = socketPair(t)
	ended := make(chan error, 1)
	go func() { _, err := near.Read(buf); ended <- err }()
	near.Close()
	wants(t, <-ended, "read", net.ErrClosed)
	_, err = near.Write(buf)
	wants(t, err, "write", net.ErrClosed)
}

// TestDirectServes: a server whose connections are sockets takes and gives big bodies, and sees who leaves.
func TestDirectServes(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/stay" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(left)
			return
		}
		_, _ = w.Write(data)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(Direct(ln, nil)) }()
	defer func() { _ = srv.Close(); <-served }()
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	url := "http://" + ln.Addr().String()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	for range 2 { // on one connection
		resp, err := c.Post(url+"/echo", "text/plain", bytes.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d of %d bytes came back: %v", len(got), len(sent), err)
		}
	}
	resp, err := c.Post(url+"/stay", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	select {
	case <-left:
	case <-time.After(30 * time.Second):
		t.Fatal("the handler does not learn that its client left")
	}
}
