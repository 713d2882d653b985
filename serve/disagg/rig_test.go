package disagg

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seen is one request as a stub worker got it.
type seen struct {
	path   string
	body   map[string]json.RawMessage
	params struct {
		RequestType       string        `json:"request_type"`
		DisaggRequestID   int64         `json:"disagg_request_id"`
		CtxRequestID      int64         `json:"ctx_request_id"`
		FirstGenTokens    []int         `json:"first_gen_tokens"`
		FirstTokenEmitted bool          `json:"first_token_emitted"`
		CtxUsage          *openai.Usage `json:"ctx_usage"`
	}
	header http.Header
}

// stub is a scriptable worker.
type stub struct {
	*httptest.Server
	id        string
	script    func(n int, q seen, w http.ResponseWriter, r *http.Request) // n counts from 0
	aborts    chan int64
	abortAuth atomic.Value                                 // signature of the last one
	events    func(w http.ResponseWriter, r *http.Request) // of the cache; nil = none
	more      func(w http.ResponseWriter, r *http.Request) // all other routes, nil = 404

	mu   sync.Mutex
	log  []seen
	info discovery.ServerInfo
}

func newStub(t *testing.T, role discovery.Role, script func(int, seen, http.ResponseWriter, *http.Request)) *stub {
	t.Helper()
	st := &stub{script: script, aborts: make(chan int64, 4096)}
	st.info = discovery.ServerInfo{Role: role, Model: "tiny", Fingerprint: "f", Incarnation: "i", MaxSeqLen: 2048}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		st.mu.Lock()
		defer st.mu.Unlock()
		_ = json.NewEncoder(w).Encode(st.info)
	})
	mux.HandleFunc("POST /disagg/abort", func(w http.ResponseWriter, r *http.Request) {
		var b struct {
			ID int64 `json:"disagg_request_id"`
		}
		_ = json.NewDecoder(r.Body).Decode(&b)
		st.abortAuth.Store(r.Header.Get(openai.HeaderAuth))
		st.aborts <- b.ID
		_, _ = io.WriteString(w, `{"state":"aborted"}`)
	})
	mux.HandleFunc("/kv_cache_events", func(w http.ResponseWriter, r *http.Request) {
		if st.events == nil {
			http.NotFound(w, r)
			return
		}
		st.events(w, r)
	})
	mux.HandleFunc("POST /v1/", func(w http.ResponseWriter, r *http.Request) {
		q := seen{path: r.URL.Path, header: r.Header}
		data, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(data, &q.body)
		_ = json.Unmarshal(q.body["disaggregated_params"], &q.params)
		st.mu.Lock()
		n := len(st.log)
		st.log = append(st.log, q)
		st.mu.Unlock()
		st.script(n, q, w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if st.more == nil {
			http.NotFound(w, r)
			return
		}
		st.more(w, r)
	})
	st.Server = httptest.NewServer(mux)
	st.id = strings.TrimPrefix(st.URL, "http://")
	t.Cleanup(st.Close)
	return st
}

func (s *stub) requests() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]seen(nil), s.log...)
}

// ctxReply is a ctx worker's answer; zero values give the default of the rig.
type ctxReply struct {
	finish, text, usage, logprobs, extra string // extra: further members of the choice
	echo                                 int64
	noTokens                             bool
}

func (c ctxReply) script(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, c.body(q))
}

func (c ctxReply) body(q seen) string {
	or := func(s, def string) string {
		if s == "" {
			return def
		}
		return s
	}
	id := q.params.DisaggRequestID
	if c.echo != 0 {
		id = c.echo
	}
	params := fmt.Sprintf(`{"request_type":"context_only","disagg_request_id":%d,"ctx_request_id":%d,"ctx_dp_rank":0,`+
		`"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":"b3BhcXVl","first_gen_tokens":[65],"first_gen_log_probs":%s}`,
		id, id, or(c.logprobs, "null"))
	text := `"text":"` + or(c.text, "A") + `"`
	if c.text == "-" {
		text = `"text":""`
	}
	object := "text_completion"
	if strings.Contains(q.path, "chat") {
		object = "chat.completion"
		text = `"message":{"role":"assistant","content":` + strings.TrimPrefix(text, `"text":`) + `}`
	}
	ids := `"prompt_token_ids":[1,2,3,4,5],`
	if c.noTokens {
		ids = ""
	}
	return fmt.Sprintf(`{"id":"up-1","object":%q,"created":7,"model":"tiny",%s"choices":[{"index":0,%s,"logprobs":null,"finish_reason":%q,%s"disaggregated_params":%s}],"usage":%s}`,
		object, ids, text, or(c.finish, "not_finished"), c.extra, params,
		or(c.usage, `{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":0}}`))
}

// genReply is a gen worker's answer.
type genReply struct{ usage string }

func (g genReply) script(_ int, q seen, w http.ResponseWriter, r *http.Request) {
	usage := g.usage
	if usage == "" {
		usage = `{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":5}}`
	}
	if string(q.body["stream"]) != "true" {
		choice := `"text":"ABC"`
		if strings.Contains(q.path, "chat") {
			choice = `"message":{"role":"assistant","content":"ABC"}`
		}
		_, _ = fmt.Fprintf(w, `{"id":"up-2","object":"x","created":7,"model":"tiny","choices":[{"index":0,%s,"logprobs":null,"finish_reason":"stop"}],"usage":%s}`, choice, usage)
		return
	}
	events := []string{chunkText("A"), chunkText("B"), chunkText("C"), `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`}
	if q.params.FirstTokenEmitted {
		events = events[1:]
	}
	if strings.Contains(string(q.body["stream_options"]), "include_usage") {
		events = append(events, `{"choices":[],"usage":`+usage+`}`)
	}
	stream(w, append(events, "[DONE]")...)
}

func chunkText(s string) string {
	return `{"choices":[{"index":0,"text":"` + s + `","finish_reason":null}]}`
}

func stream(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		_, _ = io.WriteString(w, "data: "+e+"\n\n")
		w.(http.Flusher).Flush()
	}
}

// rig is a frontend over stub workers.
type rig struct {
	t        *testing.T
	s        *Server
	reg      *discovery.Registry
	front    *httptest.Server
	obs      *counter
	cfg      Config
	ctx, gen []*stub
	probes   *muteProber
}

// muteProber gets no answer from the workers that it is told of.
type muteProber struct {
	discovery.Prober
	mute sync.Map // base URLs
}

func (m *muteProber) Probe(ctx context.Context, url string) (discovery.Health, discovery.ServerInfo, []discovery.Model, error) {
	if _, ok := m.mute.Load(url); ok {
		return discovery.Health{}, discovery.ServerInfo{}, nil, discovery.ErrMute
	}
	return m.Prober.Probe(ctx, url)
}

// silence lets a worker's probes get no answer, until a request ends.
func (r *rig) silence(st *stub, done <-chan answer) answer {
	r.probes.mute.Store(st.URL, true)
	for {
		r.reg.Suspect(st.id)
		select {
		case a := <-done:
			return a
		case <-time.After(time.Millisecond):
		}
	}
}

// alarm fails the test when the server logs an error: a panic, or a failure that it cannot explain to a client.
type alarm struct{ t *testing.T }

func (a alarm) Write(p []byte) (int, error) {
	a.t.Errorf("the server's log: %s", p)
	return len(p), nil
}

// counter is the Observer of tests.
type counter struct {
	deaf
	mu   sync.Mutex
	seen map[string]int
}

func (c *counter) Happened(e Event, labels ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[string(e)+" "+strings.Join(labels, " ")]++
}

func (c *counter) LegEnded(l LegEnd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[fmt.Sprintf("%s leg, first token known %t", l.Role, l.First > 0)]++
}

func (c *counter) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[name]
}

type rigOption func(*rig, *Parts)

func withRouters(ctx, gen router.Router) rigOption {
	return func(_ *rig, p *Parts) { p.Context, p.Generation = ctx, gen }
}

// ableToResume lets all gen workers go on with streams of others.
func ableToResume(r *rig, _ *Parts) {
	for _, g := range r.gen {
		g.info.Resume = true
	}
}

func withConfig(edit func(*Config)) rigOption { return func(r *rig, _ *Parts) { edit(&r.cfg) } }

func newRig(t *testing.T, ctx, gen []*stub, opts ...rigOption) *rig {
	t.Helper()
	r := &rig{t: t, obs: &counter{seen: map[string]int{}}, cfg: DefaultConfig(), ctx: ctx, gen: gen}
	r.cfg.RetryPause, r.cfg.RacePause = time.Millisecond, time.Millisecond
	r.cfg.ExposeRouting = true
	dc := discovery.Config{MinContext: 1, MinGen: 1}
	for _, s := range ctx {
		dc.Context = append(dc.Context, s.id)
	}
	for _, s := range gen {
		dc.Generation = append(dc.Generation, s.id)
	}
	client := newClient(time.Second)
	var err error
	r.probes = &muteProber{Prober: discovery.HTTPProber{Client: client}}
	if r.reg, err = discovery.New(dc, discovery.Options{Prober: r.probes}); err != nil {
		t.Fatal(err)
	}
	parts := Parts{
		Registry: r.reg, Context: router.NewRoundRobin(), Generation: router.NewRoundRobin(), Observer: r.obs,
		Log: slog.New(slog.NewTextHandler(alarm{t}, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	for _, o := range opts {
		o(r, &parts)
	}
	if r.s, err = New(r.cfg, parts); err != nil {
		t.Fatal(err)
	}
	if r.s.homes != nil {
		r.s.homes.patience = 30 * time.Second // machines that do other things, too
	}
	runCtx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.reg.Run(runCtx) }()
	if err := r.reg.WaitStart(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	r.s.SetStarted()
	r.front = httptest.NewServer(r.s.Handler())
	t.Cleanup(func() {
		r.front.Close()
		r.s.Drain(t.Context())
		r.s.Close()
		r.checkIdle()
		cancel()
		<-done
		client.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
	})
	return r
}

// checkIdle is scenario 48: after any scenario nothing stays open.
func (r *rig) checkIdle() {
	st := r.s.Snapshot()
	if st.Handoffs != 0 || st.Inflight != 0 || st.Routers[RoleContext].Open != 0 || st.Routers[RoleGeneration].Open != 0 {
		r.t.Errorf("not idle at the end: %+v", st)
	}
}

// one is the usual rig: one default ctx and one default gen stub.
func one(t *testing.T, c ctxReply, g genReply, opts ...rigOption) *rig {
	t.Helper()
	return newRig(t, []*stub{newStub(t, discovery.Context, c.script)}, []*stub{newStub(t, discovery.Generation, g.script)}, opts...)
}

// answer is a client's view of a reply.
type answer struct {
	status int
	header http.Header
	raw    string
	body   struct {
		Choices []struct {
			Text    string `json:"text"`
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
			FinishReason string `json:"finish_reason"`
		} `json:"choices"`
		Usage openai.Usage `json:"usage"`
		Error *struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}
	events []string // data of a stream's events
	err    error    // how reading ended
}

func (r *rig) post(path, body string, headers ...string) answer {
	r.t.Helper()
	return r.postCtx(r.t.Context(), path, body, headers...)
}

func (r *rig) postCtx(ctx context.Context, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.front.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	var data []byte
	data, a.err = io.ReadAll(resp.Body)
	a.raw = string(data)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		sc := bufio.NewScanner(strings.NewReader(a.raw))
		for sc.Scan() {
			if d, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
				a.events = append(a.events, d)
			}
		}
		return a
	}
	_ = json.Unmarshal(data, &a.body)
	return a
}

const (
	completions = "/v1/completions"
	chats       = "/v1/chat/completions"
	hello       = `{"model":"tiny","prompt":"hello","max_tokens":3}`
)

func (a answer) wantOK(t *testing.T, text string) {
	t.Helper()
	if a.status != 200 || len(a.body.Choices) != 1 || a.body.Choices[0].Text+a.body.Choices[0].Message.Content != text {
		t.Errorf("status %d, body %s; want text %q", a.status, a.raw, text)
	}
}

func (a answer) wantError(t *testing.T, status int, parts ...string) {
	t.Helper()
	if a.status != status || a.body.Error == nil {
		t.Errorf("status %d, body %s; want an error %d", a.status, a.raw, status)
		return
	}
	for _, p := range parts {
		if !strings.Contains(a.raw, p) {
			t.Errorf("body %s lacks %q", a.raw, p)
		}
	}
}
