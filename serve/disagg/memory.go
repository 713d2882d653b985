package disagg

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"tandem/serve/openai"
)

// bodyBudget bounds the bytes of request bodies that are held at once, so that many clients with big bodies cannot take all
// memory. The zero value has no limit.
type bodyBudget struct {
	limit int64

	mu   sync.Mutex
	used int64
}

// modestBody is a body that may take the last part of the budget, an eighth, which bigger ones leave free: those who send
// little are not shut out by those who send much.
const modestBody = 256 << 10

// room tells whether a body that holds some bytes may hold as many as to. The caller holds mu.
func (b *bodyBudget) room(holds, to int64) bool {
	most := b.limit
	if to > modestBody {
		most -= most / 8
	}
	return b.limit <= 0 || to <= holds || b.used-holds+to <= most
}

// held is what one body takes of the budget. Not safe for concurrent use.
type held struct {
	b *bodyBudget
	n int64
}

// fits tells whether the body could grow to that size now.
func (h *held) fits(to int64) bool {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	return h.b.room(h.n, to)
}

// resize changes what the body takes, at the end to 0. It returns false and changes nothing when there is no room to grow.
func (h *held) resize(to int64) bool {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if !h.b.room(h.n, to) {
		return false
	}
	h.b.used += to - h.n
	h.n = to
	return true
}

// countedBody is a body that takes of the budget what its reader is about to hold, not what its sender announces: one who
// sends nothing would else keep all others out.
type countedBody struct {
	io.ReadCloser
	held *held
	read int64
}

// Read needs room for what was read before and for all of p.
func (c *countedBody) Read(p []byte) (int, error) {
	if to := c.read + int64(len(p)); to > c.held.n && !c.held.resize(to) {
		return 0, errBodyMemory()
	}
	n, err := c.ReadCloser.Read(p)
	c.read += int64(n)
	return n, err //nolint:wrapcheck // a Reader hands on what it wraps
}

func errBodyMemory() *openai.Error {
	e := openai.NewError(http.StatusServiceUnavailable, "", "too many bytes of requests are held at once; try again soon")
	e.RetryAfter = time.Second
	return e
}

// readBody reads a request's body within the budget; give back what it took at the end of the request. An *openai.Error is
// for the client.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (data []byte, done func(), err error) {
	h := &held{b: &s.bodies}
	done = func() { h.resize(0) }
	if n := r.ContentLength; n <= openai.DefaultMaxBody && !h.fits(n) { // others are refused for their length
		w.Header().Set("Connection", "close") // the body stays unread
		return nil, done, errBodyMemory()
	}
	r.Body = &countedBody{ReadCloser: r.Body, held: h}
	data, err = openai.ReadBody(w, r, 0)
	var oe *openai.Error
	if errors.As(err, &oe) && oe.Status == http.StatusServiceUnavailable {
		w.Header().Set("Connection", "close") // the rest stays unread
	}
	h.resize(min(int64(cap(data)), h.n)) // a body that was cut off holds nothing
	return data, done, err
}
