package disagg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/serve/discovery"
)

// A client that does not read stops its worker's stream after what the connections hold, and is cut off.
func TestSlowReaderHoldsLittle(t *testing.T) {
	var sent atomic.Int64
	event := chunkText(strings.Repeat("x", 64<<10))
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			n, err := io.WriteString(w, "data: "+event+"\n\n")
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g},
		withConfig(func(c *Config) { c.ClientWrite = 200 * time.Millisecond }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.front.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", completions, len(streamed), streamed)
	if id := <-g.aborts; id != g.requests()[0].params.DisaggRequestID { // only because the client does not read
		t.Errorf("abort for %d", id)
	}
	if n := sent.Load(); n > 32<<20 {
		t.Errorf("the worker sent %d bytes to a client that reads nothing", n)
	}
}

func TestBodiesHaveABudget(t *testing.T) {
	r := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.MaxBodyMemory = 4096 }))
	r.post(completions, hello).wantOK(t, "ABC")
	big := `{"model":"tiny","prompt":"` + strings.Repeat("x", 5000) + `"}`
	a := r.post(completions, big)
	a.wantError(t, 503, "try again")
	if a.header.Get("Retry-After") == "" || len(r.ctx[0].requests()) != 1 {
		t.Errorf("%v", a.header)
	}
	r.post(completions, hello).wantOK(t, "ABC")
	r.front.Close() // waits for handlers
	if r.s.bodies.used != 0 {
		t.Errorf("%d bytes stay reserved", r.s.bodies.used)
	}
}

// A client whose body is broken, and that still reads, is told so: the failed read must not count as its leaving.
func TestBrokenBodyIsAnswered(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	for name, body := range map[string]string{
		"ends early": "Content-Length: 500\r\n\r\n" + hello,
		"bad chunks": "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.front.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s", completions, body)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
	r.post(completions, hello).wantOK(t, "ABC")
}

// Big bodies are decoded and tokenised a few at a time, and give their places back however they end.
func TestBigBodiesLeaveTheirPlaces(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	big := strings.Repeat("x", 300<<10)
	for range 6 { // more than there are places
		r.post(completions, `{"prompt":"`+big).wantError(t, 400, "JSON")
		r.post(completions, `{"prompt":"`+big+`"}`).wantOK(t, "ABC")
	}
}

func TestBudgetIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := bodyBudget{limit: int64(rapid.IntRange(1, 100).Draw(t, "limit"))}
		held, resizes := []int64{}, []func(int64){}
		sum := func() (n int64) {
			for _, h := range held {
				n += h
			}
			return n
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			n := int64(rapid.IntRange(0, 40).Draw(t, "bytes"))
			if len(held) > 0 && rapid.Bool().Draw(t, "shrink") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				n = min(n, held[i])
				resizes[i](n)
				held[i] = n
			} else if resize, ok := b.take(n); ok {
				held, resizes = append(held, n), append(resizes, resize)
			} else if sum()+n <= b.limit {
				t.Fatal("refused with room")
			}
			if b.used != sum() || b.used > b.limit {
				t.Fatalf("used %d of %d, held %d", b.used, b.limit, sum())
			}
		}
	})
}

// TestWholeAnswerToClientThatDoesNotRead ends, so that its request gives its place back, which a drain waits for.
func TestWholeAnswerToClientThatDoesNotRead(t *testing.T) {
	s := &Server{cfg: Config{ClientWrite: 100 * time.Millisecond}}
	ended := make(chan error, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ended <- s.newClient(w, &RoutePlan{RequestID: "x"}).whole(make([]byte, 12<<20))
	}))
	defer srv.Close()
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	_, _ = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-ended:
		if !errors.Is(err, errClientGone) {
			t.Errorf("%v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it still waits")
	}
}

// TestEndDoesNotWaitForReaders: a frontend that must stop waits AbortGrace for a client that does not read, not ClientWrite.
func TestEndDoesNotWaitForReaders(t *testing.T) {
	event := chunkText(strings.Repeat("x", 64<<10))
	var sent atomic.Int64
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, "data: "+event+"\n\n"); err != nil {
				return
			}
			sent.Add(1)
		}
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g},
		withConfig(func(c *Config) { c.AbortGrace = 100 * time.Millisecond }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.front.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", completions, len(streamed), streamed)
	for before := int64(-1); before != sent.Load() || before == 0; time.Sleep(50 * time.Millisecond) {
		before = sent.Load() // until all that connections hold is full
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	begun := time.Now()
	r.s.Drain(now)
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}
