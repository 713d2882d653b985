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
	"sync"
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
		unit := rapid.SampledFrom([]int64{1, modestBody / 8}).Draw(t, "unit")
		b := bodyBudget{limit: unit * int64(rapid.IntRange(1, 100).Draw(t, "limit"))}
		var bodies []*held
		sum := func() (n int64) {
			for _, h := range bodies {
				n += h.n
			}
			return n
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(bodies) == 0 || rapid.Bool().Draw(t, "another") {
				bodies = append(bodies, &held{b: &b})
			}
			h := bodies[rapid.IntRange(0, len(bodies)-1).Draw(t, "which")]
			before, to, most := h.n, unit*int64(rapid.IntRange(0, 40).Draw(t, "bytes")), b.limit
			if to > modestBody {
				most -= most / 8
			}
			room := to <= before || sum()-before+to <= most
			if ok := h.fits(to); ok != room {
				t.Fatalf("from %d to %d fits: %v", before, to, ok)
			}
			if ok := h.resize(to); ok != room || ok && h.n != to || !ok && h.n != before {
				t.Fatalf("from %d to %d: %v, holds %d", before, to, ok, h.n)
			}
			if b.used != sum() || b.used > b.limit {
				t.Fatalf("used %d of %d, held %d", b.used, b.limit, sum())
			}
		}
	})
}

// Who announces much and sends nothing takes nothing from those who send their requests; and who did send much leaves a part
// of the budget for those who send little.
func TestAnnouncedBodiesTakeNoBudget(t *testing.T) {
	const most = 64 << 20
	r := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.MaxBodyMemory = most }))
	open := func(head, body string) {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.front.URL, "http://"))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		// Of those below that send more than there is room for, some are cut off.
		_, _ = io.WriteString(conn, "POST "+completions+" HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n"+body)
	}
	used := func() int64 {
		r.s.bodies.mu.Lock()
		defer r.s.bodies.mu.Unlock()
		return r.s.bodies.used
	}
	grows := func(to int64) {
		t.Helper()
		for begun := time.Now(); used() < to; time.Sleep(time.Millisecond) {
			if time.Since(begun) > 30*time.Second {
				t.Fatalf("%d bytes are held, not %d", used(), to)
			}
		}
	}
	for range 40 { // together they announce five times what may be held
		open("Content-Length: 8388608", "{")
		open("Transfer-Encoding: chunked", "1\r\n{\r\n")
	}
	grows(40 << 10)
	r.post(completions, hello).wantOK(t, "ABC")

	part := strings.Repeat("x", 5<<20)
	var sent sync.WaitGroup
	defer sent.Wait()
	for range 40 {
		sent.Go(func() { open("Content-Length: 8000000", part) })
	}
	grows(most / 2)
	r.post(completions, hello).wantOK(t, "ABC")
	if n := used(); n > most {
		t.Errorf("%d bytes are held", n)
	}
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
