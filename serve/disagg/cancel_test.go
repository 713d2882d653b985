package disagg

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// block holds a worker's answer until the frontend hangs up, and says when it began.
func block(began chan<- struct{}) func(int, seen, http.ResponseWriter, *http.Request) {
	return func(_ int, _ seen, _ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
	}
}

func TestDisconnectDuringPrefill(t *testing.T) { // scenario 26, stub part
	for _, body := range []string{hello, streamed} {
		began := make(chan struct{})
		c := newStub(t, discovery.Context, block(began))
		r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan answer)
		go func() { done <- r.postCtx(ctx, completions, body) }()
		<-began
		leave()
		<-done
		if id := <-c.aborts; id != c.requests()[0].params.DisaggRequestID {
			t.Errorf("abort for %d", id)
		}
		if len(r.gen[0].requests()) != 0 {
			t.Error("gen was contacted")
		}
	}
}

// A client that closes its sending side behind the request counts as gone, although it could still read.
func TestHalfCloseIsADisconnect(t *testing.T) {
	began := make(chan struct{})
	c := newStub(t, discovery.Context, block(began))
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.front.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST "+completions+" HTTP/1.1\r\nHost: x\r\nContent-Length: "+strconv.Itoa(len(hello))+"\r\n\r\n"+hello)
	<-began
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if id := <-c.aborts; id != c.requests()[0].params.DisaggRequestID {
		t.Errorf("abort for %d", id)
	}
}

func TestDisconnectBetweenLegs(t *testing.T) { // scenario 27
	r := one(t, ctxReply{}, genReply{})
	ctx, leave := context.WithCancel(t.Context())
	r.s.beforeGen = func(req context.Context) {
		leave()
		<-req.Done()
	}
	r.postCtx(ctx, completions, hello)
	if id := <-r.ctx[0].aborts; id != r.ctx[0].requests()[0].params.DisaggRequestID {
		t.Errorf("abort for %d", id)
	}
	if len(r.gen[0].requests()) != 0 {
		t.Error("gen was contacted")
	}
}

func TestDisconnectBeforeFirstGenEvent(t *testing.T) {
	began := make(chan struct{})
	g := newStub(t, discovery.Generation, block(began))
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g})
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan answer)
	go func() { done <- r.postCtx(ctx, completions, hello) }()
	<-began
	leave()
	<-done
	id := r.ctx[0].requests()[0].params.DisaggRequestID
	if a, b := <-g.aborts, <-r.ctx[0].aborts; a != id || b != id {
		t.Errorf("aborts %d and %d, want %d", a, b, id)
	}
}

func TestDisconnectDuringDecode(t *testing.T) { // scenario 28, stub part
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, chunkText("A"))
		<-r.Context().Done()
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g})
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.front.URL+completions, strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resp.Body.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	leave()
	resp.Body.Close()
	if id := <-g.aborts; id != g.requests()[0].params.DisaggRequestID {
		t.Errorf("abort for %d", id)
	}
	r.front.Close() // waits for the handler
	if n := len(r.ctx[0].aborts); n != 0 {
		t.Errorf("ctx is free already, yet got %d aborts", n)
	}
	if r.obs.count("client_disconnects_total decode") != 1 {
		t.Errorf("events %v", r.obs.seen)
	}
}

func TestWorkerProcessEnds(t *testing.T) {
	// Another incarnation answers the probe while a leg hangs on the old connection: the leg ends at once, unless it may
	// have begun after the restart, as it may for the first probe here.
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, chunkText("A"))
		<-r.Context().Done()
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g})
	resp, err := http.Post(r.front.URL+completions, "application/json", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// The leg must have been shown: before that it would be tried again elsewhere.
	body := bufio.NewReader(resp.Body)
	if first, err := body.ReadString('\n'); err != nil || !strings.HasPrefix(first, "data: ") {
		t.Fatalf("%q %v", first, err)
	}
	for _, incarnation := range []string{"j", "k"} {
		g.mu.Lock()
		g.info.Incarnation = incarnation
		g.mu.Unlock()
		r.reg.LegEnded(g.id, false) // asks for a probe
		for r.reg.Status().Gen[0].Incarnation != incarnation {
			time.Sleep(time.Millisecond)
		}
	}
	if rest, err := io.ReadAll(body); !strings.HasPrefix(strings.TrimSpace(string(rest)), `data: {"error"`) || err == nil {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestTimeouts(t *testing.T) {
	request := func(c *Config, limit time.Duration) { c.RequestTimeout = limit }
	cases := []struct {
		name string
		edit func(*Config, time.Duration)
		ctx  bool // the ctx worker hangs, else gen
		body string
		gen  func(int, seen, http.ResponseWriter, *http.Request)
	}{
		{"request, ctx", request, true, hello, nil},
		{"request, gen", request, false, hello, nil},
		{"admission", func(c *Config, limit time.Duration) { c.AdmissionTimeout = limit }, false, streamed, nil},
		{
			"first event", request, false, streamed,
			func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
				stream(w)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			hang := func(_ int, _ seen, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
			ctx, gen := ctxReply{}.script, hang
			if c.gen != nil {
				gen = c.gen
			}
			if c.ctx {
				ctx, gen = hang, genReply{}.script
			}
			for limit := 50 * time.Millisecond; ; limit *= 2 { // until the worker that hangs has got its leg in time
				r := newRig(t, []*stub{newStub(t, discovery.Context, ctx)}, []*stub{newStub(t, discovery.Generation, gen)},
					withConfig(func(cfg *Config) { c.edit(cfg, limit) }))
				r.post(completions, c.body).wantError(t, 504, `"type":"timeout"`)
				if hangs := map[bool]*stub{true: r.ctx[0], false: r.gen[0]}[c.ctx]; len(hangs.requests()) == 0 && limit < 30*time.Second {
					continue
				}
				<-r.ctx[0].aborts
				if !c.ctx {
					<-r.gen[0].aborts
				}
				return
			}
		})
	}
}

func TestIdleStream(t *testing.T) {
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, chunkText("A"))
		<-r.Context().Done()
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g}, withConfig(func(c *Config) { c.StreamIdle = 50 * time.Millisecond }))
	a := r.post(completions, streamed)
	if len(a.events) != 2 || !strings.Contains(a.events[1], `"type":"timeout"`) || a.err == nil {
		t.Errorf("%q, %v", a.events, a.err)
	}
	<-g.aborts
}

// Bytes that never become an event keep a stream no longer than silence.
func TestPartsOfAnEventAreNoLife(t *testing.T) {
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, chunkText("A"))
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "data: {")
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(time.Millisecond):
			}
		}
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g}, withConfig(func(c *Config) { c.StreamIdle = 50 * time.Millisecond }))
	a := r.post(completions, streamed)
	if len(a.events) != 2 || !strings.Contains(a.events[1], `"type":"timeout"`) || a.err == nil {
		t.Errorf("%q, %v", a.events, a.err)
	}
	<-g.aborts
}

func TestInflightLimit(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	c := newStub(t, discovery.Context, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-release
		ctxReply{}.script(n, q, w, r)
	})
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(func(c *Config) { c.MaxInflight = 1 }))
	done := make(chan answer)
	go func() { done <- r.post(completions, hello) }()
	<-began
	a := r.post(completions, hello)
	a.wantError(t, 429, "overloaded")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", a.header)
	}
	close(release)
	(<-done).wantOK(t, "ABC")
}

func TestDrain(t *testing.T) {
	began := make(chan struct{}, 1)
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, chunkText("A"))
		began <- struct{}{}
		<-r.Context().Done()
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g})
	done := make(chan answer)
	go func() { done <- r.post(completions, streamed) }()
	<-began
	grace, end := context.WithCancel(t.Context())
	drained := make(chan struct{})
	go func() { defer close(drained); r.s.Drain(grace) }()
	for r.s.enter() { // until draining is visible
		r.s.leave()
	}
	r.post(completions, hello).wantError(t, 503, "shutting down")
	if a := r.get("/health"); a.status != 503 {
		t.Errorf("health %d", a.status)
	}
	end()
	<-drained
	a := <-done
	if len(a.events) != 2 || !strings.Contains(a.events[1], "shutting down") || a.err == nil {
		t.Errorf("%q, %v", a.events, a.err)
	}
	<-g.aborts
}

func (r *rig) get(path string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.front.URL+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, raw: string(data), err: err}
}

func TestHandoffIsSigned(t *testing.T) {
	key := []byte("0123456789abcdef")
	r := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.AuthKey = key }))
	r.post(completions, hello).wantOK(t, "ABC")
	q := r.gen[0].requests()[0]
	params, err := openai.DecodeDisaggParams(q.body["disaggregated_params"])
	if err != nil || !openai.Key(key).VerifyHandoff(params, q.header.Get(openai.HeaderAuth)) {
		t.Errorf("%v, auth %q", err, q.header.Get(openai.HeaderAuth))
	}
	if h := r.ctx[0].requests()[0].header; h.Get(openai.HeaderAuth) != "" || h.Get(openai.HeaderDeadline) == "" {
		t.Errorf("ctx headers %v", h)
	}
}

func TestAbortIsSigned(t *testing.T) {
	key := openai.Key("0123456789abcdef")
	r := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.AuthKey = key }))
	r.gen[0].script = func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }
	r.post(completions, hello).wantError(t, http.StatusBadRequest)
	select {
	case id := <-r.ctx[0].aborts:
		if got, _ := r.ctx[0].abortAuth.Load().(string); !key.VerifyAbort(id, got) {
			t.Errorf("signed %q", got)
		}
	case <-time.After(30 * time.Second):
		t.Error("no abort came")
	}
}

// TestUnfinishedBody: a client that never ends its body takes no place of max_inflight_requests and holds up no drain.
func TestUnfinishedBody(t *testing.T) {
	r := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.MaxInflight = 1 }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.front.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST "+completions+" HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n")
	asked := make([]byte, 12)
	if _, err := io.ReadFull(conn, asked); err != nil || string(asked) != "HTTP/1.1 100" { // the handler reads
		t.Fatalf("%q, %v", asked, err)
	}
	_, _ = io.WriteString(conn, `{"model"`)
	r.post(completions, hello).wantOK(t, "ABC")
	now, cancel := context.WithCancel(t.Context())
	cancel()
	r.s.Drain(now)
}
