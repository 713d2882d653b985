package openai

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestWriteBodyToClientThatDoesNotRead ends with an error, however large the answer is.
func TestWriteBodyToClientThatDoesNotRead(t *testing.T) {
	ended := make(chan error, 1)
	body := make([]byte, 12<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ended <- WriteBody(w, 200, body, 100*time.Millisecond)
	}))
	defer srv.Close()
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	_, _ = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-ended:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the handler waits for a client that does not read")
	}
}

// TestWriteBodyKeepsConnection: whole bodies of all sizes arrive, and the limit of one does not end the next.
func TestWriteBodyKeepsConnection(t *testing.T) {
	const limit = 400 * time.Millisecond
	var size int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" { // without a limit of its own, later than the last one
			_, _ = io.WriteString(w, "late")
			return
		}
		if err := WriteBody(w, 200, bytes.Repeat([]byte("x"), size), limit); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	get := func(path string) []byte {
		resp, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.ContentLength < 0 {
			t.Errorf("%s: the length is not told", path)
		}
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for _, size = range []int{0, 1, 2047, 4097, wholePiece, wholePiece + 1, 3*wholePiece + 5} {
		if got := get("/"); len(got) != size {
			t.Errorf("%d bytes, want %d", len(got), size)
		}
	}
	<-time.After(2 * limit)
	if got := get("/late"); string(got) != "late" {
		t.Errorf("%q", got)
	}
	if err := WriteBody(httptest.NewRecorder(), 200, []byte("x"), limit); err != nil {
		t.Errorf("a writer without deadlines: %v", err)
	}
}
