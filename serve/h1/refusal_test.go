package h1

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestUnreadableRequests: what net/http answers by itself goes out as JSON, and what handlers answer as they wrote it. It fails when
// another Go says these things in another way.
func TestUnreadableRequests(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 4 << 10, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "400 Bad Request")
	})}
	refuse := func(status int, why string) []byte { return fmt.Appendf(nil, `{"%d":%q}`, status, why) }
	var open sync.WaitGroup // the server waits a moment before it closes these connections
	srv.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Done()
		}
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(Direct(ln, refuse)) }()
	defer func() { _ = srv.Close(); <-served; open.Wait() }()
	for _, tc := range []struct{ name, request, line, body string }{
		{"no host", "GET / HTTP/1.1\r\n\r\n", "400 Bad Request", `{"400":"missing required Host header"}`},
		{"no request", "hello\r\n\r\n", "400 Bad Request", `{"400":""}`},
		{"large", "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("b", 16<<10) + "\r\n\r\n", "431 Request Header Fields Too Large", `{"431":""}`},
		{"coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "501 Not Implemented", `{"501":""}`},
		{"version", "GET / HTTP/3.0\r\nHost: a\r\n\r\n", "505 HTTP Version Not Supported", `{"505":"unsupported protocol version"}`},
		{"expectation", "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\n", "417 Expectation Failed", `{"417":""}`},
		{"a handler's", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request", "400 Bad Request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nc, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
			if _, err := io.WriteString(nc, tc.request); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(nc) // also what was promised and never came ends it
			head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
			if line, _, _ := strings.Cut(head, "\r\n"); line != "HTTP/1.1 "+tc.line || body != tc.body || err != nil {
				t.Errorf("%q, %v", answer, err)
			}
			if json := tc.body[0] == '{'; strings.Contains(head, "Content-Type: application/json") != json || !strings.Contains(head, "Connection: close") {
				t.Errorf("%q", head)
			}
		})
	}
}
