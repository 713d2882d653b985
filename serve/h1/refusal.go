package h1

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// plainEnd is how the head ends of an answer that net/http's server gives by itself, in one piece with its text. An answer of
// a handler has other headers.
var plainEnd = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// expectation begins the answer without a body that the server gives to an Expect header which it does not know. No handler
// gives this status.
var expectation = []byte("417 ")

// plainRefusal recognises the answer to a request that the server cannot read, or does not give to a handler.
func plainRefusal(p []byte) (status int, why string, ok bool) {
	line, isAnswer := bytes.CutPrefix(p, []byte("HTTP/1.1 "))
	if !isAnswer || len(p) > 1<<10 {
		return 0, "", false
	}
	if bytes.HasPrefix(line, expectation) && bytes.HasSuffix(line, []byte("\r\n\r\n")) {
		return http.StatusExpectationFailed, "", true
	}
	line, _, ok = bytes.Cut(line, plainEnd)
	if !ok || bytes.Contains(line, []byte("\n")) || len(line) < 3 {
		return 0, "", false
	}
	status, err := strconv.Atoi(string(line[:3]))
	if err != nil || status < http.StatusBadRequest {
		return 0, "", false
	}
	_, why, _ = strings.Cut(string(line), ": ")
	return status, why, true
}

// refusedBody is how long a request that was refused may still send its body, which the server reads before it hangs up.
const refusedBody = time.Second

// writeRefusal writes another answer than the one of n bytes.
func (s *socket) writeRefusal(n, status int, body []byte) (int, error) {
	answer := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), len(body), body)
	if _, err := s.wr.run(answer, s.raw.Write); err != nil {
		return 0, s.named("write", err)
	}
	_ = s.SetReadDeadline(time.Now().Add(refusedBody)) // fails with what is closed already
	return n, nil
}
