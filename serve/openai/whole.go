package openai

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	wholePiece = 256 << 10 // bytes of an answer that have one time limit together
	keptWhole  = 2 << 10   // bytes that net/http keeps until the handler has returned: they do not wait for the client
)

// WriteBody writes the body of a whole answer with its length and sends it. A client has timeout to take each piece of 256
// KiB, so that one that does not read cannot hold its handler; 0 = no limit. Of the headers it sets Content-Length.
func WriteBody(w http.ResponseWriter, status int, body []byte, timeout time.Duration) error {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	rc := http.NewResponseController(w)
	limit := func(at time.Time) {
		if timeout > 0 {
			_ = rc.SetWriteDeadline(at) // a recorder or wrapper without deadlines has no limit
		}
	}
	if len(body) <= keptWhole {
		timeout = 0
	}
	defer limit(time.Time{}) // the next request on the connection begins without one
	limit(time.Now().Add(timeout))
	w.WriteHeader(status)
	for len(body) > 0 {
		n := min(len(body), wholePiece)
		if _, err := w.Write(body[:n]); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
		if body = body[n:]; len(body) > 0 {
			limit(time.Now().Add(timeout))
		}
	}
	if timeout <= 0 {
		return nil
	}
	return (&EventWriter{rc: rc}).flush() // what net/http still holds, within the limit
}
