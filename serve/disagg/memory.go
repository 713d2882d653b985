package disagg

import (
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

// take reserves n bytes and returns how to change that to what is really held, and at the end to 0. ok is false when there
// is no room.
func (b *bodyBudget) take(n int64) (resize func(int64), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit > 0 && b.used+n > b.limit {
		return nil, false
	}
	b.used += n
	return func(to int64) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.used += to - n
		n = to
	}, true
}

// readBody reads a request's body within the budget; give back what it took at the end of the request. An *openai.Error is
// for the client.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (data []byte, done func(), err error) {
	most := r.ContentLength
	if most < 0 || most > openai.DefaultMaxBody { // unknown, or refused before it is read
		most = openai.DefaultMaxBody
	}
	resize, ok := s.bodies.take(most)
	if !ok {
		w.Header().Set("Connection", "close") // the body stays unread
		e := openai.NewError(http.StatusServiceUnavailable, "", "too many bytes of requests are held at once; try again soon")
		e.RetryAfter = time.Second
		return nil, func() {}, e
	}
	data, err = openai.ReadBody(w, r, 0)
	resize(int64(cap(data)))
	return data, func() { resize(0) }, err
}
