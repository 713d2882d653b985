package openai

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// DefaultMaxBody is the default limit of a request body in bytes.
const DefaultMaxBody = 8 << 20

// Body is a JSON object as its sender wrote it: members in order, each value
// untouched, known here or not.
type Body struct {
	members []member
}

type member struct {
	name string
	raw  json.RawMessage
}

// bodyTime bounds the sending of a body. A client that never ends it would
// otherwise hold its connection, and whatever waits for the request, for ever.
const bodyTime = 60 * time.Second

// ReadBody reads a request's body. Longer than limit bytes: *Error 413; not all
// there after a minute: *Error 408; compressed or not readable: *Error 400.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if limit <= 0 {
		limit = DefaultMaxBody
	}
	tooLarge := func() *Error {
		drain(w, r)
		return NewError(http.StatusRequestEntityTooLarge, CodeBodyTooLarge,
			"the request body is larger than the limit of %d bytes: send a shorter one", limit)
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, Unsupported("Content-Encoding", "the content encoding %q is not supported: send plain JSON", Cut(enc, 64))
	}
	if r.ContentLength > limit {
		return nil, tooLarge()
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // test recorders have none
	data, err := readSized(http.MaxBytesReader(w, r.Body, limit), r.ContentLength)
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, NewError(http.StatusRequestTimeout, CodeBodyTimeout,
			"the request body did not arrive within %v: send it faster, or less", bodyTime)
	}
	_ = rc.SetReadDeadline(time.Time{})
	var own *Error // of a reader that whoever calls has put around the body
	if errors.As(err, &own) {
		return nil, own
	}
	if err != nil {
		return nil, NewError(http.StatusBadRequest, CodeInvalidRequest, "the request body ended early: %v", err)
	}
	return data, nil
}

// BoundBodies bounds the sending of bodies that next answers without ReadBody: the server waits for the rest of those that
// nobody reads before it answers, so that clients without a key could else hold connections for ever.
func BoundBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // test recorders have none
		}
		next.ServeHTTP(w, r)
	})
}

// maxTrusted bounds the memory that a client gets by saying how much it will send.
const maxTrusted = 64 << 10

// readSized is io.ReadAll for a reader that should give size bytes, < 0 = unknown: most bodies then take no more memory than
// they need, and none is copied while it grows.
func readSized(r io.Reader, size int64) ([]byte, error) {
	if size < 0 {
		size = 511
	}
	data := make([]byte, 0, min(size, maxTrusted)+1) // one more, to see the end
	for {
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return data, err //nolint:wrapcheck // as io.ReadAll
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

// Bounds of drain.
const (
	maxDrain  = 64 << 20
	drainTime = 5 * time.Second
)

// drain reads on through a body that is refused, within bounds: most clients
// look for an answer only after they have sent everything, and would otherwise
// see a broken connection in place of it. A client that asked first
// (Expect: 100-continue) sends nothing.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") != "" {
		return
	}
	rc := http.NewResponseController(w)
	if rc.SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, maxDrain)
	_ = rc.SetReadDeadline(time.Time{})
}

// decoder is a JSON decoder with its input, for use by one reader after the other.
type decoder struct {
	jsontext.Decoder
	in bytes.Buffer
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// begin makes d read data, which it does not change.
func (d *decoder) begin(data []byte) {
	d.in = *bytes.NewBuffer(data)
	// Who calls has checked the bytes; what is left to allow are escaped lone surrogates, which JavaScript clients send for
	// cut strings. They decode to U+FFFD.
	d.Reset(&d.in, jsontext.AllowInvalidUTF8(true))
}

// end gives d back without what it read.
func (d *decoder) end() {
	d.begin(nil)
	decoders.Put(d)
}

// ParseBody reads one JSON object. Errors are *Error 400 and say where the text
// is wrong; a member that occurs twice and bytes that are not UTF-8 are errors.
// The values are parts of data, which must stay as it is.
func ParseBody(data []byte) (Body, error) {
	var b Body
	if len(bytes.TrimSpace(data)) == 0 {
		return b, Invalid("", "the request body is empty: send a JSON object")
	}
	if !utf8.Valid(data) {
		return b, Invalid("", "the request body is not valid UTF-8 at byte %d", invalidAt(data))
	}
	dec := decoders.Get().(*decoder)
	defer dec.end()
	dec.begin(data)
	tok, err := dec.ReadToken()
	if err == nil && tok.Kind() != '{' {
		return b, Invalid("", "the request body must be a JSON object, not %s", kindName(tok.Kind()))
	}
	for err == nil && dec.PeekKind() != '}' {
		var m member
		m, err = readMember(dec, data)
		b.members = append(b.members, m)
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	if err != nil {
		return Body{}, syntaxError(err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Body{}, Invalid("", "the request body has more text after its JSON object, at byte %d", dec.InputOffset())
	}
	return b, nil
}

func readMember(dec *decoder, data []byte) (member, error) {
	name, err := dec.ReadToken()
	if err != nil {
		return member{}, err
	}
	m := member{name: name.String()}
	val, err := dec.ReadValue()
	if end := int(dec.InputOffset()); err == nil {
		m.raw = json.RawMessage(data[end-len(val) : end : end])
	}
	return m, err
}

func syntaxError(err error) *Error {
	var syn *jsontext.SyntacticError
	if !errors.As(err, &syn) {
		return Invalid("", "the request body is not valid JSON: %v", err)
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return Invalid("", "the request body has the member %s twice, at byte %d", syn.JSONPointer, syn.ByteOffset)
	}
	reason := syn.Err
	if errors.Is(reason, io.ErrUnexpectedEOF) {
		reason = errors.New("the text ends too early")
	}
	return Invalid("", "the request body is not valid JSON at byte %d: %v", syn.ByteOffset, reason)
}

func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
	return len(data)
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '[':
		return "a list"
	case '{':
		return "an object"
	}
	return "something else"
}

// Get returns a member's value; null counts as present.
func (b *Body) Get(name string) (json.RawMessage, bool) {
	for i := range b.members {
		if b.members[i].name == name {
			return b.members[i].raw, true
		}
	}
	return nil, false
}

// Set replaces a member in its place or appends it. raw must be valid JSON.
func (b *Body) Set(name string, raw json.RawMessage) {
	for i := range b.members {
		if b.members[i].name == name {
			b.members[i].raw = raw
			return
		}
	}
	b.members = append(b.members, member{name, raw})
}

// SetValue is Set with a Go value, marshalled.
func (b *Body) SetValue(name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	b.Set(name, raw)
	return nil
}

// Delete removes a member if it is there.
func (b *Body) Delete(name string) {
	b.members = slices.DeleteFunc(b.members, func(m member) bool { return m.name == name })
}

// Names lists the members in order.
func (b *Body) Names() []string {
	names := make([]string, len(b.members))
	for i := range b.members {
		names[i] = b.members[i].name
	}
	return names
}

// Clone copies the list of members; the values are shared and never changed.
func (b *Body) Clone() Body { return Body{members: slices.Clone(b.members)} }

// AppendJSON appends the object.
func (b *Body) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	for i := range b.members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, b.members[i].name)
		dst = append(dst, ':')
		dst = append(dst, b.members[i].raw...)
	}
	return append(dst, '}')
}
