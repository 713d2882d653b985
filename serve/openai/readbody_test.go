package openai

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
