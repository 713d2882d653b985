package comm

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"tandem/engine/comm/commpb"
)

// Post sends a message of at most Config.MaxPayload bytes to the process of rank
// 0, where Config.OnPost gets it. Any goroutine may post, and none waits for a
// peer. Messages of one process arrive in the order of their posts, and before
// whatever collective a rank of it enters afterwards; what was posted before a
// rank here fails or closes still arrives, unless the connection is lost. msg is
// the caller's again. After the end of the group Post returns its error.
func (r *Rank) Post(msg []byte) error {
	h := r.hub
	if h.bar.over() {
		return h.cause()
	}
	if len(msg) > int(h.cfg.MaxPayload) {
		return fmt.Errorf("rank %d posts %d bytes, at most %d are allowed", r.id, len(msg), h.cfg.MaxPayload)
	}
	if h.span.First > 0 {
		h.up.post(bytes.Clone(msg))
		return nil
	}
	if h.cfg.OnPost != nil {
		h.cfg.OnPost(h.span, msg)
	}
	return nil
}

// posted hands on what a process posted.
func (h *hub) posted(from Span, messages [][]byte) {
	for _, msg := range messages {
		if len(msg) > int(h.cfg.MaxPayload) {
			h.fail(diverged("post bytes", from.First, h.ranks[0].iter.Load(),
				fmt.Sprintf("at most %d", h.cfg.MaxPayload), fmt.Sprint(len(msg))))
			return
		}
		if h.cfg.OnPost != nil {
			h.cfg.OnPost(from, msg)
		}
	}
}

// postOverhead is what one message counts beside its bytes.
const postOverhead = 16

// maxBacklog is how many bytes may wait for a root that takes nothing, beside one
// message.
const maxBacklog = 64 << 20

var errBacklog = errors.New("it takes no posts")

// outbox holds what waits to be sent to the root.
type outbox struct {
	mu       sync.Mutex
	messages [][]byte
	bytes    int
	ready    chan struct{} // has one while there may be messages
}

// take empties the outbox.
func (o *outbox) take() [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.messages
	o.messages, o.bytes = nil, 0
	return out
}

func (l *leaf) post(msg []byte) {
	o := &l.outbox
	o.mu.Lock()
	o.messages = append(o.messages, msg)
	o.bytes += len(msg) + postOverhead
	full := o.bytes > maxBacklog+int(l.hub.cfg.MaxPayload)
	o.mu.Unlock()
	if full {
		l.hub.fail(l.hub.lost(rootSpan, errBacklog))
		return
	}
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// deliver sends posts for those who must not wait for the stream.
func (l *leaf) deliver() {
	defer l.hub.bg.Done()
	for {
		select {
		case <-l.hub.done:
			return // the last word to the root takes the rest along
		case <-l.outbox.ready:
		}
		l.mu.Lock()
		err := l.flushPosts()
		l.mu.Unlock()
		l.flushWake()
		if err != nil {
			return // the reader of the stream says why
		}
	}
}

// flushPosts sends what was posted until now, in messages that every receiver
// takes. For whoever holds the stream.
func (l *leaf) flushPosts() error {
	messages := l.outbox.take()
	for len(messages) > 0 {
		n, size := 0, 0
		for n < len(messages) && (n == 0 || size+len(messages[n])+postOverhead <= int(l.hub.cfg.MaxPayload)) {
			size += len(messages[n]) + postOverhead
			n++
		}
		err := l.stream.Send(&commpb.LeafMessage{Kind: &commpb.LeafMessage_Posts{
			Posts: &commpb.Posts{Messages: messages[:n]},
		}})
		if err != nil {
			return err
		}
		messages = messages[n:]
	}
	return nil
}
