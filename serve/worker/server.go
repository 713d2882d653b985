package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// Config is what a Server needs beyond its engine. The zero value of a field
// takes the default given here.
type Config struct {
	Version      string
	MaxBody      int64         // bytes of a request body, default openai.DefaultMaxBody
	WriteTimeout time.Duration // for one event of a stream, default 30 s
	Stall        time.Duration // an iteration longer than this with work present is a stall, default 10 s

	// Key verifies protected fields and internal headers. Without one they are
	// obeyed only if Trusted: the listener is loopback or a unix socket, or
	// trust_internal_network is set.
	Key     openai.Key
	Trusted bool
	// Transceiver: a cache_transceiver_config is in force; without it a request
	// with request_type is refused.
	Transceiver bool

	// Ranks names the ranks of this process, such as "2-3", when the instance
	// spreads over several, empty when it does not. Remote: rank 0 is in another
	// one, which serves the instance; here are only state and metrics.
	Ranks  string
	Remote bool
	// ExposeRouting tells callers on which rank their request ran. Callers that
	// ask for it by X-Disagg-Return-Route learn it in any case.
	ExposeRouting bool

	// PerfRecords is how many requests /perf_metrics keeps until it is read, 0 =
	// none. ReturnPerf adds Server-Timing to all replies, and not only to those
	// whose caller sent X-Disagg-Return-Metrics.
	PerfRecords int
	ReturnPerf  bool

	Tracer     *trace.Tracer // nil = no spans
	RequestLog trace.RequestLog

	AdminAddr string // published in /server_info
	Metrics   http.Handler
	Observer  Observer
	Logger    *slog.Logger
	Now       func() time.Time
}

// Observer is told about every completions request, for metrics.
type Observer interface {
	// FirstToken reports the time from arrival to the first output token.
	FirstToken(d time.Duration)
	// Gap reports the time between two outputs that hold tokens, a token.
	Gap(d time.Duration, tokens int)
	// Done reports a finished request.
	Done(Observation)
}

// Observation describes a finished request.
type Observation struct {
	Endpoint string // "chat" or "completions"
	Kind     string // "full", "context_only", "generation_only", "refused"
	Stream   bool
	Status   int    // HTTP status; of a broken stream the status of its error event
	Finish   string // finish reason, empty after an error
	Elapsed  time.Duration
	Prompt   int // tokens
	Cached   int // tokens of the prompt that were found in the cache
	Output   int // tokens
	Stages   Stages
}

// Server is the HTTP handler of a worker.
type Server struct {
	cfg      Config
	mux      *http.ServeMux
	backend  atomic.Pointer[Backend]
	draining atomic.Bool
	clock    clockOffset
	perf     *trace.Ring[perfRecord] // nil = off
	log      *slog.Logger
	events   cacheEvents
	heavy    openai.Gate
	live     live
}

// New makes a server that answers 503 until Attach.
func New(cfg Config) *Server {
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = openai.DefaultMaxBody
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.Stall <= 0 {
		cfg.Stall = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	s := &Server{cfg: cfg, mux: http.NewServeMux(), log: cfg.Logger, perf: trace.NewRing[perfRecord](cfg.PerfRecords), heavy: openai.NewGate()}
	s.clock.start = cfg.Now()
	s.events.quit = make(chan struct{})
	s.routes()
	return s
}

// Attach puts the loaded engine behind the server. Call it once.
func (s *Server) Attach(b Backend) {
	if b.EOS == nil && b.Tokenizer != nil {
		b.EOS = b.Tokenizer.EOS()
	}
	b.guides = newGuides()
	s.backend.Store(&b)
}

// Drain makes the server refuse completions and report itself as draining.
// Requests that run go on; streams of events end.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.events.once.Do(func() { close(s.events.quit) })
}

func (s *Server) routes() {
	route := func(method, path string, h http.HandlerFunc) {
		s.mux.HandleFunc(method+" "+path, h)
	}
	route("GET", "/health", s.health)
	route("GET", "/health/ready", s.health)
	route("GET", "/health/live", func(http.ResponseWriter, *http.Request) {})
	route("GET", "/server_info", s.serverInfo)
	route("GET", "/version", s.version)
	if s.cfg.Metrics != nil {
		s.mux.Handle("GET /metrics", s.cfg.Metrics)
		s.mux.Handle("GET /prometheus/metrics", s.cfg.Metrics)
	}
	if s.cfg.Remote {
		return
	}
	route("POST", "/v1/chat/completions", s.completions(openai.Chat))
	route("POST", "/v1/completions", s.completions(openai.Completion))
	route("GET", "/v1/models", s.models)
	route("GET", "/v1/models/{id...}", s.model)
	route("GET", "/kv_cache_stats", s.cacheStats)
	route("GET", "/kv_cache_events", s.streamEvents)
	route("POST", "/kv_cache_events", s.drainEvents)
	route("POST", "/disagg/abort", s.abort)
	route("GET", "/perf_metrics", s.perfMetrics)
	route("GET", "/steady_clock_offset", s.clock.get)
	route("POST", "/steady_clock_offset", s.clock.post)
}

// ServeHTTP implements http.Handler. A panic ends its own request only.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := openai.RequestID(r.Header)
	r.Header.Set(openai.HeaderRequestID, id)
	w.Header().Set(openai.HeaderRequestID, id)
	tw := &trackedWriter{ResponseWriter: w}
	defer s.recover(tw, r)
	if h, pattern := s.mux.Handler(r); pattern == "" {
		s.noRoute(tw, r, h)
		return
	}
	s.mux.ServeHTTP(tw, r)
}

// noRoute answers 404 and 405 with an error object. h is the mux's own answer,
// which knows the allowed methods.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := &headerProbe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		openai.WriteError(w, openai.NewError(http.StatusMethodNotAllowed, openai.CodeMethodNotAllowed,
			"%s is not allowed here: use %s", r.Method, probe.header.Get("Allow")))
		return
	}
	if s.cfg.Remote {
		openai.WriteError(w, openai.NewError(http.StatusNotFound, openai.CodeNotFound,
			"this process computes %s of an instance and serves no requests: send them to the process of its rank 0", discovery.RankNames(s.cfg.Ranks)))
		return
	}
	openai.WriteError(w, openai.NewError(http.StatusNotFound, openai.CodeNotFound,
		"there is nothing at %s", openai.Cut(r.URL.Path, 200)))
}

func (s *Server) recover(w *trackedWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	s.log.Error("a handler panicked", "request_id", r.Header.Get(openai.HeaderRequestID),
		"path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	if w.wrote {
		panic(http.ErrAbortHandler) // the reply is cut: let the client see that
	}
	openai.WriteError(w, openai.NewError(http.StatusInternalServerError, "internal", "internal error"))
}

// trackedWriter remembers whether headers are out.
type trackedWriter struct {
	http.ResponseWriter
	wrote bool
}

func (w *trackedWriter) WriteHeader(status int) {
	w.wrote = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *trackedWriter) Write(b []byte) (int, error) {
	w.wrote = true
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *trackedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// headerProbe swallows a reply and keeps its status and headers.
type headerProbe struct {
	header http.Header
	status int
}

func (p *headerProbe) Header() http.Header         { return p.header }
func (p *headerProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *headerProbe) WriteHeader(status int)      { p.status = status }

type noObserver struct{}

func (noObserver) FirstToken(time.Duration) {}
func (noObserver) Gap(time.Duration, int)   {}
func (noObserver) Done(Observation)         {}
