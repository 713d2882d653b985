package openai

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestReadBodyTooLarge: a client that sends its whole body before it looks for
// an answer gets the 413 and not a reset, with and without a declared length.
func TestReadBodyTooLarge(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := ReadBody(w, r, 1000)
		if err == nil {
			err = errors.New("not refused")
		}
		WriteError(w, err)
	}))
	defer srv.Close()
	const size = 20 << 20
	body := bytes.Repeat([]byte("x"), size)
	for name, head := range map[string]string{
		"length":  "Content-Length: 20971520\r\n\r\n",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n1400000\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\n" + head)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := conn.Write(body); err != nil {
			t.Fatalf("%s: the body was cut: %v", name, err)
		}
		if name == "chunked" {
			_, _ = conn.Write([]byte("\r\n0\r\n\r\n"))
		}
		answer := make([]byte, 12)
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 413" {
			t.Errorf("%s: got %q, %v", name, answer, err)
		}
		conn.Close()
	}
}

// pipeListener hands one connection to a server.
type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l pipeListener) Close() error   { close(l.conns); return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// TestReadBodyTimeout: a body that never ends gets a 408, however its bytes drip, and one in time may be followed by a
// handler that takes longer than the body could.
func TestReadBodyTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		drips int // one byte every 10 s
		head  string
		want  string
	}{
		"silent":  {0, "Content-Length: 10\r\n\r\n", "HTTP/1.1 408"},
		"drips":   {9, "Content-Length: 10\r\n\r\n", "HTTP/1.1 408"},
		"in time": {5, "Content-Length: 5\r\n\r\n", "HTTP/1.1 200"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := pipeListener{make(chan net.Conn, 1)}
				srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if _, err := ReadBody(w, r, 1000); err != nil {
						WriteError(w, err)
						return
					}
					select {
					case <-r.Context().Done():
						t.Error("the deadline of the body ended the request")
					case <-time.After(2 * bodyTime):
					}
				})}
				go srv.Serve(l)
				ours, theirs := net.Pipe()
				defer func() {
					ours.Close()
					srv.Close()
					time.Sleep(time.Minute) // the server lingers after an error
				}()
				l.conns <- theirs
				go func() {
					if _, err := io.WriteString(ours, "POST / HTTP/1.1\r\nHost: x\r\n"+c.head); err != nil {
						return
					}
					for range c.drips {
						time.Sleep(10 * time.Second)
						if _, err := io.WriteString(ours, "x"); err != nil {
							return
						}
					}
				}()
				answer := make([]byte, 12)
				if _, err := io.ReadFull(ours, answer); err != nil || string(answer) != c.want {
					t.Errorf("got %q, %v; want %q", answer, err, c.want)
				}
			})
		})
	}
}

// TestBoundBodies: a body that nobody reads and that never comes ends, a handler that has read its body may take its time,
// and the next request on the connection has its own time.
func TestBoundBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pipeListener{make(chan net.Conn, 1)}
		srv := &http.Server{Handler: BoundBodies(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/read" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if _, err := ReadBody(w, r, 0); err != nil {
				t.Error(err)
			}
			select {
			case <-r.Context().Done():
				t.Error("the deadline of the body ended the request")
			case <-time.After(2 * bodyTime):
			}
		}))}
		go srv.Serve(l)
		ours, theirs := net.Pipe()
		defer func() {
			ours.Close()
			srv.Close()
			time.Sleep(time.Minute) // the server lingers after an error
		}()
		l.conns <- theirs
		answers := bufio.NewReader(ours)
		for _, c := range []struct {
			request string
			status  int
			least   time.Duration
		}{
			{"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", http.StatusOK, 2 * bodyTime},
			{"GET /else HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusUnauthorized, 0},
			{"POST /else HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", http.StatusUnauthorized, bodyTime},
		} {
			begun := time.Now()
			if _, err := io.WriteString(ours, c.request); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			if took := time.Since(begun); resp.StatusCode != c.status || took != c.least {
				t.Errorf("%.12s: status %d after %v; want %d after %v", c.request, resp.StatusCode, took, c.status, c.least)
			}
		}
		if _, err := answers.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection is not closed: %v", err)
		}
	})
}

func TestReadBodyCompressed(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("\x1f\x8b"))
	r.Header.Set("Content-Encoding", "gzip")
	_, err := ReadBody(httptest.NewRecorder(), r, 0)
	var e *Error
	if !errors.As(err, &e) || e.Status != http.StatusBadRequest || e.Param != "Content-Encoding" {
		t.Errorf("got %v", err)
	}
}
