package openai

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

func TestEventReader(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
		end      error
	}{
		{"lf", "data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}, io.EOF},
		{"crlf", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}, io.EOF},
		{"comment", ": hi\n\ndata: a\n\n", []string{": hi\n\n", "data: a\n\n"}, io.EOF},
		{"comment before data", ": ids 5\ndata: a\n\n", []string{": ids 5\ndata: a\n\n"}, io.EOF},
		{"extra blanks", "\n\r\ndata: a\n\n\n", []string{"data: a\n\n"}, io.EOF},
		{"cut", "data: a\n\ndata: b\n", []string{"data: a\n\n"}, io.ErrUnexpectedEOF},
		{"cut in line", "data: a", nil, io.ErrUnexpectedEOF},
		{"too long", "data: " + strings.Repeat("x", 200) + "\n\n", nil, ErrEventTooLong},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, src := range []io.Reader{strings.NewReader(tc.in), iotest.OneByteReader(strings.NewReader(tc.in))} {
				r := NewEventReader(src, 100)
				for _, want := range tc.want {
					got, err := r.Next()
					if err != nil || string(got) != want {
						t.Fatalf("got %q, %v; want %q", got, err, want)
					}
				}
				if _, err := r.Next(); !errors.Is(err, tc.end) {
					t.Fatalf("end: %v, want %v", err, tc.end)
				}
			}
		})
	}
}

func TestEventData(t *testing.T) {
	for in, want := range map[string]string{
		"data: a\n\n":                  "a",
		"data:a\r\n\r\n":               "a",
		": x\nevent: e\ndata:  a\n\n":  " a",
		"data: a\ndata: b\n\n":         "a\nb",
		"data: a\r\ndata: b\r\n\r\n\n": "a\nb",
	} {
		if got, ok := EventData([]byte(in)); !ok || string(got) != want {
			t.Errorf("%q: %q %v", in, got, ok)
		}
	}
	if _, ok := EventData([]byte(": only\n\n")); ok {
		t.Error("a comment has data")
	}
}

func TestEventWriterChunks(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewEventWriter(rec, time.Second)
	c := NewChunks(Chat, "chatcmpl-1", "m\"x", 7)
	for _, data := range [][]byte{
		c.AppendRole(nil, 0),
		c.AppendDelta(nil, Delta{Text: "a\n\u2028", TokenIDs: []int32{5, 6}}),
		c.AppendDelta(nil, Delta{Finish: FinishStop}),
		c.AppendUsage(nil, NewUsage(3, 2, 1)),
	} {
		if err := w.Data(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Done(); err != nil {
		t.Fatal(err)
	}
	const head = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m\"x","choices":[`
	want := head + `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n" +
		head + `{"index":0,"delta":{"content":"a\n\u2028"},"logprobs":null,"finish_reason":null,"token_ids":[5,6]}]}` + "\n\n" +
		head + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\n" +
		head + `],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}` + "\n\n" +
		"data: [DONE]\n\n"
	if got := rec.Body.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !rec.Flushed {
		t.Error("nothing was flushed")
	}
}

// deadlineWriter records write deadlines and fails once its client is dead.
type deadlineWriter struct {
	http.ResponseWriter
	deadlines []time.Time
	flushes   int
	dead      bool
}

func (w *deadlineWriter) SetWriteDeadline(t time.Time) error {
	w.deadlines = append(w.deadlines, t)
	return nil
}

func (w *deadlineWriter) FlushError() error {
	w.flushes++
	if w.dead {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// TestEventsAtHandGoOutTogether holds events as long as another one is there.
func TestEventsAtHandGoOutTogether(t *testing.T) {
	pr, pw := io.Pipe()
	go func() {
		for _, part := range []string{"data: a\n\ndata: b\r\n\r\n: c\n\ndata: d", "\n\n\n\n\n", "data: e\n\n"} {
			_, _ = io.WriteString(pw, part)
		}
		pw.Close()
	}()
	rec := httptest.NewRecorder()
	w := &deadlineWriter{ResponseWriter: rec}
	r, out := NewEventReader(pr, 0), NewEventWriter(w, 0)
	var more []bool
	for {
		event, err := r.Next()
		if err != nil {
			break
		}
		more = append(more, r.More())
		if r.More() {
			err = out.Hold(event)
		} else {
			err = out.Raw(event)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := []bool{true, true, false, false, false}; !slices.Equal(more, want) {
		t.Errorf("more: %v, want %v", more, want)
	}
	if got := rec.Body.String(); got != "data: a\n\ndata: b\r\n\r\n: c\n\ndata: d\n\ndata: e\n\n" {
		t.Errorf("the client got %q", got)
	}
	if w.flushes != 3 {
		t.Errorf("%d flushes, want 3", w.flushes)
	}
	if err := errors.Join(out.Hold(make([]byte, maxHeld)), out.Hold([]byte("x")), out.Flush(), out.Hold([]byte("y")), out.Flush()); err != nil {
		t.Fatal(err)
	}
	if rest := rec.Body.Len(); w.flushes != 5 || !strings.HasSuffix(rec.Body.String(), "xy") {
		t.Errorf("%d flushes, %d bytes", w.flushes, rest)
	}
}

func TestEventWriterDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &deadlineWriter{ResponseWriter: httptest.NewRecorder()}
		ew := NewEventWriter(w, time.Second)
		for range 3 {
			time.Sleep(time.Minute) // of the bubble's clock
			if err := ew.Data([]byte("{}")); err != nil {
				t.Fatal(err)
			}
			if last := w.deadlines[len(w.deadlines)-1]; time.Until(last) != 1125*time.Millisecond {
				t.Errorf("the deadline of an event is in %v", time.Until(last))
			}
		}
		if w.flushes != 3 { // three events, the first with the headers
			t.Errorf("%d flushes", w.flushes)
		}
		for range 100 {
			time.Sleep(30 * time.Millisecond)
			if err := ew.Data([]byte("{}")); err != nil {
				t.Fatal(err)
			}
			if left := time.Until(w.deadlines[len(w.deadlines)-1]); left < time.Second {
				t.Fatalf("an event has %v, less than its timeout", left)
			}
		}
		if n := len(w.deadlines); n > 25 {
			t.Errorf("100 events within 3 seconds moved the deadline %d times", n-3)
		}
		w.dead = true
		if err := ew.Data([]byte("{}")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a dead client gave %v", err)
		}
		w.dead = false
		if err := ew.Done(); err != nil || !w.deadlines[len(w.deadlines)-1].IsZero() {
			t.Errorf("the connection keeps a deadline: %v %v", w.deadlines, err)
		}
	})
}

func BenchmarkAppendDelta(b *testing.B) {
	c := NewChunks(Chat, "chatcmpl-1", "model", 7)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = c.AppendDelta(buf[:0], Delta{Text: " the quick"})
	}
}

func TestIDsComment(t *testing.T) {
	for _, ids := range [][]int32{{0}, {5, 6}, {1<<31 - 1, 7, 0}} {
		choice := len(ids) % 3
		of, got, ok := IDsComment(AppendIDsComment(nil, choice, ids))
		if of != choice {
			t.Errorf("ids of choice %d became those of %d", choice, of)
		}
		if !ok || !slices.Equal(got, ids) {
			t.Errorf("%v became %v %v", ids, got, ok)
		}
	}
	for _, text := range []string{"", ": ids", ": ids \n\n", ": ids -1\n\n", ": ids 1,\n\n", ": ids 2147483648\n\n", ": keep-alive\n\n", "data: ids 1\n\n", ": ids 1 2\n\n"} {
		if _, ids, ok := IDsComment([]byte(text)); ok {
			t.Errorf("%q gives %v", text, ids)
		}
	}
}
