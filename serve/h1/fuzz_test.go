package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// wire is a connection that gives prepared bytes, some at a time.
type wire struct {
	net.Conn
	data []byte
	n    int
}

func (w *wire) Read(p []byte) (int, error) {
	if len(w.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, w.data[:min(w.n, len(w.data))])
	w.data = w.data[n:]
	return n, nil
}

func (*wire) Close() error                { return nil }
func (*wire) SetDeadline(time.Time) error { return nil }

// read reads an answer from bytes that come n at a time.
func read(data []byte, n int) (r *Response, body []byte, err error) {
	w := &wire{data: bytes.Clone(data), n: n}
	r = &Response{client: &Client{}, conn: newConn(w, w), unwatch: func() bool { return true }}
	defer r.Close()
	if err = r.readHead(); err != nil {
		return nil, nil, err
	}
	body, err = io.ReadAll(r)
	return r, body, err
}

// FuzzAnswer: an answer is the same however the network cuts it, and what both understand is what net/http understands.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nT: x\r\n\r\n"), byte(2))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\nContent-Length: 3\n\nabcdef"), byte(0))
	f.Add([]byte("HTTP/1.0 200\r\nA: b\r\na:  c \r\n\r\nto the end"), byte(6))
	f.Fuzz(func(t *testing.T, data []byte, n byte) {
		r, body, err := read(data, 1<<20)
		cut, cutBody, cutErr := read(data, int(n%16)+1)
		if (err == nil) != (cutErr == nil) || (r == nil) != (cut == nil) || err == nil && !bytes.Equal(body, cutBody) {
			t.Fatalf("at once %q, %v; in pieces %q, %v", body, err, cutBody, cutErr)
		}
		if err != nil {
			return
		}
		br := bufio.NewReader(bytes.NewReader(data))
		std, serr := http.ReadResponse(br, nil)
		for serr == nil && std.StatusCode < 200 {
			std, serr = http.ReadResponse(br, nil)
		}
		if serr != nil {
			return // stricter in a detail
		}
		defer std.Body.Close()
		stdBody, serr := io.ReadAll(std.Body)
		if serr != nil && !errors.Is(serr, io.ErrUnexpectedEOF) {
			return
		}
		if std.StatusCode != r.StatusCode || std.Header.Get("A") != r.Header.Get("A") || serr == nil && !bytes.Equal(stdBody, body) {
			t.Fatalf("%d %v %q; net/http: %d %v %q", r.StatusCode, r.Header, body, std.StatusCode, std.Header, stdBody)
		}
	})
}
