package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// DoneEvent ends a stream that succeeded; a stream that failed never has it.
const DoneEvent = "data: [DONE]\n\n"

// EventWriter writes server-sent events to one response: an event is one
// write and one flush, under a write deadline, so that a dead client cannot
// hold its handler. Not safe for concurrent use.
type EventWriter struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration // that an event has at least, 0 = no limit
	moved   time.Time     // when the deadline was
	buf     []byte
	held    *[]byte // events that wait for the next one, nil = none
	started bool
}

// NewEventWriter wraps a response. Nothing is sent before Start or the first event.
func NewEventWriter(w http.ResponseWriter, timeout time.Duration) *EventWriter {
	return &EventWriter{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// Start sends the status line and headers at once. Later calls do nothing.
func (e *EventWriter) Start() error {
	if e.started {
		return nil
	}
	e.begin()
	return apart(e.flush)
}

// streamHeaders are those of all streams; nobody changes the values.
var streamHeaders = http.Header{
	"Content-Type": {"text/event-stream; charset=utf-8"}, "Cache-Control": {"no-cache"}, "X-Accel-Buffering": {"no"},
}

// begin writes status line and headers, which go out with the next flush.
func (e *EventWriter) begin() {
	e.started = true
	maps.Copy(e.w.Header(), streamHeaders)
	e.deadline()
	e.w.WriteHeader(http.StatusOK)
}

// Started tells whether headers are out, after which an error can only be an event.
func (e *EventWriter) Started() bool { return e.started }

// Data writes one event "data: payload". The payload must hold no line break.
func (e *EventWriter) Data(payload []byte) error { return e.Raw(e.event(payload)) }

// HoldData is Data for the next Flush or event.
func (e *EventWriter) HoldData(payload []byte) error { return e.Hold(e.event(payload)) }

func (e *EventWriter) event(payload []byte) []byte {
	e.buf = append(append(append(e.buf[:0], "data: "...), payload...), '\n', '\n')
	return e.buf
}

// Comment writes one line that clients ignore.
func (e *EventWriter) Comment(text string) error {
	e.buf = append(e.buf[:0], ": "...)
	e.buf = append(e.buf, text...)
	e.buf = append(e.buf, '\n', '\n')
	return e.Raw(e.buf)
}

// maxHeld bounds what Hold keeps.
const maxHeld = 16 << 10

// heldBuffers are the ones of streams that hold something just now, which few do.
var heldBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, 2<<10)) }}

// Hold keeps whole events for the next Flush or event, so that several leave in
// one write to the connection. Too many are written at once.
func (e *EventWriter) Hold(events []byte) error {
	if len(events) > maxHeld || e.held != nil && len(*e.held)+len(events) > maxHeld {
		return e.Raw(events)
	}
	if e.held == nil {
		e.held = heldBuffers.Get().(*[]byte)
	}
	*e.held = append(*e.held, events...)
	return nil
}

// Flush writes what Hold kept.
func (e *EventWriter) Flush() error {
	if e.held == nil {
		return nil
	}
	return e.Raw(nil)
}

// Raw writes whole events as they are, after those of Hold.
func (e *EventWriter) Raw(events []byte) error {
	if held := e.held; held != nil {
		events, e.held = append(*held, events...), nil
		defer func() {
			*held = (*held)[:0] // and not the longer one that may have come of it
			heldBuffers.Put(held)
		}()
	}
	if !e.started {
		e.begin()
		return apart(func() error { return e.put(events) })
	}
	e.deadline()
	return e.put(events)
}

// put writes and flushes.
func (e *EventWriter) put(events []byte) error {
	if _, err := e.w.Write(events); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return e.flush()
}

// apart calls f on another stack. To write a response's head net/http needs so
// much of a stack that it would double, and stay so as long as the stream.
func apart(f func() error) (err error) {
	// As a coroutine: it begins and ends without the scheduler, which for a
	// goroutine would wake another thread.
	next, stop := iter.Pull(func(func(struct{}) bool) { err = f() })
	defer stop()
	next()
	return err
}

// Error writes the error as an event. The caller ends the response without Done.
func (e *EventWriter) Error(err *Error) error { return e.Data(err.AppendJSON(nil)) }

// Done writes the [DONE] event and lifts the write deadline.
func (e *EventWriter) Done() error {
	err := e.Raw([]byte(DoneEvent))
	if e.timeout > 0 {
		_ = e.rc.SetWriteDeadline(time.Time{})
	}
	return err
}

func (e *EventWriter) deadline() {
	if e.timeout <= 0 {
		return
	}
	// To move it costs about as much as a small event, so it moves only after an eighth of its time, and is later by that.
	if now := time.Now(); now.Sub(e.moved) > e.timeout/8 {
		e.moved = now
		// A recorder or wrapper without deadlines is fine: then there is none.
		_ = e.rc.SetWriteDeadline(now.Add(e.timeout + e.timeout/8))
	}
}

func (e *EventWriter) flush() error {
	if err := e.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("flush event: %w", err)
	}
	return nil
}

// ErrEventTooLong says that an event passed the reader's limit.
var ErrEventTooLong = errors.New("event exceeds the size limit")

// EventReader splits a byte stream into whole server-sent events. An event ends
// at an empty line, whether lines end in "\n" or "\r\n".
type EventReader struct {
	src   Pieces
	limit int
	piece []byte // what src gave and is not read yet
}

// Pieces is a byte stream that gives what has arrived as it lies. A piece is
// valid until the next call; with an error there is none.
type Pieces interface {
	Piece() ([]byte, error)
}

// copied makes pieces of any reader, by a buffer of its own.
type copied struct {
	r   io.Reader
	buf []byte
}

// Piece reads once.
func (c *copied) Piece() ([]byte, error) {
	for range 100 {
		if n, err := c.r.Read(c.buf); n > 0 {
			return c.buf[:n], nil // an error comes again
		} else if err != nil {
			return nil, err //nolint:wrapcheck // a Reader hands on what it wraps
		}
	}
	return nil, io.ErrNoProgress
}

// NewEventReader reads events of at most limit bytes (<= 0: 8 MiB). If r has
// Pieces they are read without a buffer in between.
func NewEventReader(r io.Reader, limit int) *EventReader {
	if limit <= 0 {
		limit = 8 << 20
	}
	src, ok := r.(Pieces)
	if !ok {
		src = &copied{r, make([]byte, 4<<10)}
	}
	return &EventReader{src: src, limit: limit}
}

// Next returns the next event with its ending empty line, valid until the next
// call. io.EOF: the stream ended between events. io.ErrUnexpectedEOF: it ended
// within one. Empty lines before an event are skipped.
func (r *EventReader) Next() ([]byte, error) {
	var begun []byte // what earlier pieces have of the event
	line := 0        // where its last line begins
	for {
		start, next := 0, 0 // of the event and of the next line in this piece
		for {
			at := bytes.IndexByte(r.piece[next:], '\n')
			if at < 0 {
				break
			}
			first := line == 0 && next == start
			blank := isBlank(begun[line:], r.piece[next:next+at])
			next += at + 1
			switch {
			case blank && first:
				begun, start = nil, next
			case blank:
				event := r.piece[start:next:next]
				if len(begun) > 0 {
					event = append(begun, event...)
				}
				r.piece = r.piece[next:]
				if len(event) > r.limit {
					return nil, ErrEventTooLong
				}
				return event, nil
			}
			line = len(begun)
		}
		if begun = append(begun, r.piece[start:]...); next > start {
			line = len(begun) - (len(r.piece) - next)
		}
		if len(begun) > r.limit {
			return nil, ErrEventTooLong
		}
		var err error
		if r.piece, err = r.src.Piece(); errors.Is(err, io.EOF) {
			if len(begun) > 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return nil, io.EOF
		} else if err != nil {
			return nil, fmt.Errorf("read event: %w", err)
		}
	}
}

// isBlank tells whether the two parts of a line, without its end, are nothing.
func isBlank(a, b []byte) bool {
	switch len(a) + len(b) {
	case 0:
		return true
	case 1:
		return string(a)+string(b) == "\r"
	}
	return false
}

// More tells whether another whole event has arrived, so that Next will not wait.
func (r *EventReader) More() bool {
	data := bytes.TrimLeft(r.piece, "\r\n")
	return bytes.Contains(data, []byte("\n\n")) || bytes.Contains(data, []byte("\n\r\n"))
}

// EventData returns the joined data lines of an event. ok is false for an
// event that has none, such as a comment.
func EventData(event []byte) (data []byte, ok bool) {
	for line := range bytes.Lines(event) {
		rest, isData := bytes.CutPrefix(line, []byte("data:"))
		if !isData {
			continue
		}
		rest = bytes.TrimRight(rest, "\r\n")
		rest = bytes.TrimPrefix(rest, []byte(" "))
		if !ok {
			data, ok = rest, true
			continue
		}
		joined := make([]byte, 0, len(data)+1+len(rest))
		joined = append(append(joined, data...), '\n')
		data = append(joined, rest...)
	}
	return data, ok
}

// idsPrefix begins the comment by which a gen worker tells the token ids behind the next event.
const idsPrefix = ": ids "

// idsOfChoice joins the ids to the choice they are of; without it they are the first one's.
const idsOfChoice = " of "

// AppendIDsComment appends the comment that tells the token ids of a choice behind the next event of a stream.
func AppendIDsComment(dst []byte, choice int, ids []int32) []byte {
	dst = append(dst, idsPrefix...)
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	if choice > 0 {
		dst = strconv.AppendInt(append(dst, idsOfChoice...), int64(choice), 10)
	}
	return append(dst, '\n', '\n')
}

// IDsComment reads such a comment; ok is false for any other event.
func IDsComment(event []byte) (choice int, ids []int32, ok bool) {
	rest, ok := bytes.CutPrefix(event, []byte(idsPrefix))
	if !ok {
		return 0, nil, false
	}
	rest, of, found := bytes.Cut(bytes.TrimSpace(rest), []byte(idsOfChoice))
	if found {
		n, err := strconv.ParseUint(string(of), 10, 31)
		if err != nil || n >= MaxChoices {
			return 0, nil, false
		}
		choice = int(n)
	}
	for part := range bytes.SplitSeq(bytes.TrimSpace(rest), []byte(",")) {
		id, err := strconv.ParseInt(string(part), 10, 32)
		if err != nil || id < 0 {
			return 0, nil, false
		}
		ids = append(ids, int32(id))
	}
	return choice, ids, true
}
