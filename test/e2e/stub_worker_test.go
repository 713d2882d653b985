//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/test/ports"
)

// stub is a worker made of a script: it has the routes that a frontend uses,
// logs every request, and answers a leg as its script says. Its counts of
// blocks are one for each hand-over and one for each leg that runs.
type stub struct {
	name, role string
	native     bool   // has only what workers of TensorRT-LLM have
	id         string // host:port
	farm       *farm
	server     *http.Server
	ended      chan struct{} // closed when the server has ended

	mu      sync.Mutex
	info    object
	script  script
	healthy bool
	seen    []leg
	aborts  []abortCall
	pinned  map[int64]bool // hand-overs nobody fetched
	dead    map[int64]bool // ids that were aborted: an abort may overtake its leg
	running map[int64]context.CancelFunc
	events  []object // of the KV cache, by event_id
	drained int      // events that POST /kv_cache_events handed over
	perf    []object // what GET /perf_metrics hands over
	born    time.Time
	offset  float64  // of its clock, that it was told
	paths   []string // of all requests but legs
	starts  int
}

// script answers a leg; c.n counts the legs of the stub from 0.
type script func(c *call)

// leg is a request for tokens as a stub got it. Ids are never floats.
type leg struct {
	path   string
	header http.Header
	raw    string
	body   map[string]json.RawMessage
	params struct {
		Type    string          `json:"request_type"`
		Style   string          `json:"schedule_style"`
		ID      int64           `json:"disagg_request_id"`
		CtxID   int64           `json:"ctx_request_id"`
		First   []int           `json:"first_gen_tokens"`
		Logs    json.RawMessage `json:"first_gen_log_probs"`
		State   string          `json:"encoded_opaque_state"`
		Address string          `json:"ctx_info_endpoint"`
		Usage   *usage          `json:"ctx_usage"`
		Emitted bool            `json:"first_token_emitted"`
	}
	conversation string
}

type abortCall struct {
	ID     int64  `json:"disagg_request_id"`
	Reason string `json:"reason"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u usage) cached() int {
	if u.Details == nil {
		return 0
	}
	return u.Details.Cached
}

// stream tells whether the leg asks for events.
func (l *leg) stream() bool { return string(l.body["stream"]) == "true" }

// farm is the set of stubs of one test: a gen stub that is asked for a
// hand-over fetches it from the ctx stub that has it.
type farm struct {
	mu    sync.Mutex
	stubs []*stub
}

// claim ends the hand-over at the stub that keeps it.
func (f *farm) claim(id int64) {
	f.mu.Lock()
	stubs := f.stubs
	f.mu.Unlock()
	for _, s := range stubs {
		s.mu.Lock()
		delete(s.pinned, id)
		s.mu.Unlock()
	}
}

// newStub starts a stub with the default script of its role.
func (f *farm) newStub(t *testing.T, name, role string) *stub {
	t.Helper()
	s := &stub{name: name, role: role, farm: f, healthy: true, born: time.Now(), pinned: map[int64]bool{}, running: map[int64]context.CancelFunc{}}
	s.script = ctxReply{}.script
	if role == "generation" {
		s.script = genReply{}.script
	}
	s.info = object{
		"role": role, "model": "tiny", "model_fingerprint": "f", "tokens_per_block": 32, "kv_cache_hash_algo": "tandem-kv1",
		"kv_layout":      object{"layers": 2, "kv_heads": 1, "head_dim": 8, "dtype": "bfloat16", "tp": 1, "pp": 1},
		"max_batch_size": 64, "max_num_tokens": 2048, "max_seq_len": 2048, "adp_size": 1,
		"adp_conversation_affinity": false, "kv_events": true, "kv_cache_namespace": "tiny",
		"disaggregated_params": object{"ctx_info_endpoint": []string{"tcp://10.0.0.1:5000", "tcp://10.0.0.1:5001"}},
	}
	s.start(t, ports.Address(t)) // one that nobody else is given while the stub is away
	f.mu.Lock()
	f.stubs = append(f.stubs, s)
	f.mu.Unlock()
	t.Cleanup(s.kill)
	return s
}

// start listens, also again after kill, then as another incarnation.
func (s *stub) start(t *testing.T, addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s.id = ln.Addr().String()
	server, ended := &http.Server{Handler: s.routes()}, make(chan struct{})
	s.mu.Lock()
	s.starts++
	s.info["incarnation"] = fmt.Sprintf("%s-%d", s.name, s.starts)
	s.pinned, s.dead = map[int64]bool{}, map[int64]bool{}
	s.mu.Unlock()
	s.server, s.ended = server, ended
	go func() { defer close(ended); _ = server.Serve(ln) }()
}

// kill cuts all connections and refuses new ones, as a killed process does.
func (s *stub) kill() {
	_ = s.server.Close()
	<-s.ended
}

// restart is another process at the same address.
func (s *stub) restart(t *testing.T) { s.start(t, s.id) }

func (s *stub) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /server_info", s.answer(func() any { return s.info }))
	mux.HandleFunc("GET /v1/models", s.answer(func() any {
		return object{"object": "list", "data": []object{{"id": "tiny", "object": "model", "owned_by": "test"}}}
	}))
	mux.HandleFunc("GET /kv_cache_stats", s.answer(func() any { return s.stats() }))
	mux.HandleFunc("GET /steady_clock_offset", s.answer(func() any {
		now := time.Since(s.born).Seconds()
		return object{"receive_ts": now, "transmit_ts": now}
	}))
	mux.HandleFunc("POST /steady_clock_offset", func(w http.ResponseWriter, r *http.Request) {
		var o struct {
			Offset float64 `json:"offset"`
		}
		_ = json.NewDecoder(r.Body).Decode(&o)
		s.mu.Lock()
		s.offset = o.Offset
		s.mu.Unlock()
		_, _ = io.WriteString(w, "{}")
	})
	mux.HandleFunc("GET /perf_metrics", s.answer(func() any { return drain(&s.perf) }))
	mux.HandleFunc("POST /kv_cache_events", s.answer(func() any {
		out := append([]object{}, s.events[s.drained:]...)
		s.drained = len(s.events)
		return out
	}))
	mux.HandleFunc("GET /kv_cache_events", s.streamEvents)
	mux.HandleFunc("POST /disagg/abort", s.abort)
	mux.HandleFunc("POST /v1/", s.serve)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/c") {
			s.mu.Lock()
			s.paths = append(s.paths, r.Method+" "+r.URL.Path)
			s.mu.Unlock()
		}
		if s.native && (r.URL.Path == "/kv_cache_stats" || r.URL.Path == "/disagg/abort" || r.URL.Path == "/kv_cache_events" && r.Method == http.MethodGet) {
			http.NotFound(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// cacheEvent adds an event of the KV cache.
func (s *stub) cacheEvent(data object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, object{"event_id": len(s.events), "attention_dp_rank": 0, "cache_epoch": 1, "gap": false, "data": data})
}

// streamEvents sends the cache events from an id on, and waits for more.
func (s *stub) streamEvents(w http.ResponseWriter, r *http.Request) {
	next := 0
	if r.URL.Query().Get("snapshot") != "1" {
		next, _ = strconv.Atoi(r.URL.Query().Get("from"))
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		s.mu.Lock()
		var fresh []object
		if next < len(s.events) {
			fresh = append(fresh, s.events[next:]...)
		}
		s.mu.Unlock()
		for _, e := range fresh {
			data, err := json.Marshal(e)
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(w, events(string(data)))
			next++
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

func drain(list *[]object) []object {
	out := append([]object{}, *list...)
	*list = nil
	return out
}

// answer sends what value returns under the lock.
func (s *stub) answer(value func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.mu.Lock()
		data, err := json.Marshal(value())
		s.mu.Unlock()
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(data)
	}
}

const stubBlocks = 10000

// stats counts blocks. The lock is held.
func (s *stub) stats() object {
	active, pinned := len(s.running), len(s.pinned)
	return object{
		"blocks_total": stubBlocks, "blocks_free": stubBlocks - active - pinned, "blocks_active": active, "blocks_reusable": 0,
		"blocks_pinned_for_handoff": pinned, "blocks_receiving": 0, "handoffs_open": pinned, "transfers_in_flight": 0,
		"requests_active": active, "requests_waiting": 0,
	}
}

func (s *stub) abort(w http.ResponseWriter, r *http.Request) {
	var a abortCall
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	state := "unknown"
	s.dead[a.ID] = true
	if s.pinned[a.ID] {
		state = "aborted"
		delete(s.pinned, a.ID)
	}
	if cancel := s.running[a.ID]; cancel != nil {
		state = "aborted"
		cancel()
	}
	s.aborts = append(s.aborts, a)
	s.mu.Unlock()
	_, _ = fmt.Fprintf(w, `{"state":%q}`, state)
}

// serve logs a leg and lets the script answer it.
func (s *stub) serve(w http.ResponseWriter, r *http.Request) {
	l, err := readLeg(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	s.mu.Lock()
	c := &call{stub: s, n: len(s.seen), leg: l, w: w, ctx: ctx}
	s.seen = append(s.seen, *l)
	run := s.script
	key := l.params.ID
	if s.dead[key] {
		run = func(c *call) { c.status(499, `{"error":{"message":"cancelled","code":"cancelled"}}`) }
	}
	if _, twice := s.running[key]; key == 0 || twice {
		key = -int64(len(s.seen))
	}
	s.running[key] = cancel
	s.mu.Unlock()
	arrived := time.Since(s.born).Seconds()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, key)
		ended := time.Since(s.born).Seconds() + s.offset
		s.perf = append(s.perf, object{
			"ctx_request_id": l.params.ID, "kind": l.params.Type, "arrival_time": arrived + s.offset, "first_scheduled_time": arrived + s.offset,
			"first_token_time": ended, "last_token_time": ended,
		})
	}()
	if l.params.Type == "generation_only" {
		s.farm.claim(l.params.CtxID)
	}
	run(c)
}

func readLeg(r *http.Request) (*leg, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	l := &leg{path: r.URL.Path, header: r.Header.Clone(), raw: string(data)}
	if err := json.Unmarshal(data, &l.body); err != nil {
		return nil, err
	}
	if raw := l.body["disaggregated_params"]; raw != nil {
		if err := json.Unmarshal(raw, &l.params); err != nil {
			return nil, err
		}
	}
	if raw := l.body["conversation_params"]; raw != nil {
		var c struct {
			ID string `json:"conversation_id"`
		}
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, err
		}
		l.conversation = c.ID
	}
	return l, nil
}

// legs returns the legs so far.
func (s *stub) legs() []leg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]leg(nil), s.seen...)
}

// aborted returns the ids that were aborted so far.
func (s *stub) aborted() (ids []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.aborts {
		ids = append(ids, a.ID)
	}
	return ids
}

// clean tells that the stub keeps nothing for anybody.
func (s *stub) clean() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pinned)+len(s.running) == 0
}

// setScript changes the answers of legs to come.
func (s *stub) setScript(f script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = f
}

// setInfo changes /server_info; the frontend sees it at its next probe.
func (s *stub) setInfo(key string, val any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info[key] = val
}

// call is one leg that a script answers.
type call struct {
	*stub
	*leg
	n   int
	w   http.ResponseWriter
	ctx context.Context // ends with the connection, or an abort of the leg
}

// wait pauses; false when the leg ended meanwhile.
func (c *call) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// until waits for a channel; false when the leg ended meanwhile.
func (c *call) until(ready <-chan struct{}) bool {
	select {
	case <-c.ctx.Done():
		return false
	case <-ready:
		return true
	}
}

// status answers with an error body.
func (c *call) status(code int, body string) {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(code)
	_, _ = io.WriteString(c.w, body)
}

// reset breaks the connection: RST, without another byte.
func (c *call) reset() {
	conn, _, err := c.w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// send writes text in pieces that end at the given bytes, each flushed.
func (c *call) send(text string, cuts ...int) {
	if c.w.Header().Get("Content-Type") == "" {
		c.w.Header().Set("Content-Type", "text/event-stream")
	}
	from := 0
	for _, to := range append(cuts, len(text)) {
		_, _ = io.WriteString(c.w, text[from:to])
		c.w.(http.Flusher).Flush()
		from = to
	}
}

// events joins the data of events to a stream's text.
func events(data ...string) string {
	var b bytes.Buffer
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return b.String()
}
