package disagg

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/h1"
	"tandem/serve/openai"
	"tandem/serve/router"
	"tandem/serve/trace"
)

// Parts are what a Server works with. Registry and both routers are required.
type Parts struct {
	Registry   *discovery.Registry
	Context    router.Router
	Generation router.Router
	Tracer     *trace.Tracer    // nil = no spans
	Capture    *trace.Capture   // nil = no trace for replay
	PerfFile   io.Writer        // takes a perf record with each call, nil = nobody
	Diag       io.Writer        // takes a line for each event in the life of a request, nil = nobody
	Observer   Observer         // nil = nobody
	Log        *slog.Logger     // nil = discard
	Now        func() time.Time // nil = time.Now
	Metrics    http.Handler     // nil = no /metrics
	Prompts    *Prompts         // nil = routers see texts, and token ids only of clients that send them
	Homes      Homes            // nil = this frontend alone knows where conversations live
	Warnings   []discovery.Warning
}

// Server is the frontend. Make it with New, serve Handler, call SetStarted when the cluster is up, Drain and Close at the
// end.
type Server struct {
	cfg      Config
	reg      *discovery.Registry
	routers  map[discovery.Role]router.Router
	obs      Observer
	log      *slog.Logger
	now      func() time.Time
	metrics  http.Handler
	warnings []discovery.Warning
	prompts  *Prompts
	feeds    *feeds // nil = no router listens
	homes    *homes // nil = not shared
	ids      *IDs
	keys     keyring
	retries  *retryBudget // nil = no bound
	bodies   bodyBudget
	heavy    openai.Gate  // of big bodies that are decoded or tokenised
	client   *http.Client // for all but legs
	calls    *h1.Client   // for legs

	tracer              *trace.Tracer
	capture             *trace.Capture
	routed              routeLog // of capture
	perf                *perf
	diag                *diagnostics
	perfFile            io.Writer // of perf records, nil = none
	perfFailed          atomic.Bool
	stopPerfFile        func()        // nil = does not run
	clocks              sync.Map      // workers whose clocks were compared
	rankTold            sync.Map      // leg and worker whose first ranks are in the log
	kvMatched, kvPrompt atomic.Uint64 // tokens that routers found at the workers they chose, and of those they looked for
	handoffs            atomic.Int64
	background          sync.WaitGroup  // aborts on their way
	stop                context.Context // ends all requests at shutdown
	stopNow             context.CancelCauseFunc

	mu       sync.Mutex
	started  bool
	draining bool
	inflight int
	queue    *fairQueue
	idle     chan struct{} // closed when draining and nothing is in flight

	beforeGen func(context.Context) // test hook between ctx reply and gen dispatch
}

// New checks the configuration and builds a Server.
func New(cfg Config, parts Parts) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if parts.Registry == nil || parts.Context == nil || parts.Generation == nil {
		return nil, errors.New("disagg: registry and both routers are required")
	}
	s := &Server{
		cfg: cfg, reg: parts.Registry, obs: parts.Observer, log: parts.Log, now: parts.Now, metrics: parts.Metrics,
		warnings: parts.Warnings, prompts: parts.Prompts, client: newClient(cfg.ConnectTimeout), calls: newCalls(cfg.ConnectTimeout), idle: make(chan struct{}),
		routers: map[discovery.Role]router.Router{discovery.Context: parts.Context, discovery.Generation: parts.Generation},
	}
	if t, ok := s.client.Transport.(*http.Transport); ok {
		t.TLSClientConfig = cfg.WorkerTLS
	}
	s.calls.TLS = cfg.WorkerTLS
	if s.obs == nil {
		s.obs = deaf{}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.retries = newRetryBudget(cfg.RetryBudget, s.obs)
	s.tracer, s.capture = parts.Tracer, parts.Capture
	size := cfg.PerfRecords
	if s.perfFile = parts.PerfFile; s.perfFile != nil && size == 0 {
		size = PerfRing
	}
	s.perf = newPerf(size, s.now())
	s.bodies.limit, s.heavy = cfg.MaxBodyMemory, openai.NewGate()
	s.keys, s.queue = newKeyring(cfg.APIKeys, cfg.IsolateCaches, cfg.AuthKey), newFairQueue(cfg.MaxInflight, cfg.MaxQueued)
	s.diag = newDiagnostics(parts.Diag, cfg.NodeID, s.now)
	if s.diag != nil && cfg.GenerationFirst {
		s.diag.style = openai.GenerationFirst
	}
	s.ids = NewIDs(cfg.NodeID, cfg.ProcessID, s.now)
	s.homes = newHomes(parts.Homes, s.obs, s.now, func(code, message string) {
		if message != "" {
			s.log.Warn(message, "code", code)
		}
		s.reg.SetWarning(code, message)
	})
	s.stop, s.stopNow = context.WithCancelCause(context.Background())
	s.beforeGen = heldGen
	s.startFeeds()
	s.startPerfFile(perfPause)
	return s, nil
}

// SetProcess makes the server's ids those of another process of its node; call it before SetStarted.
func (s *Server) SetProcess(process int) { s.ids = NewIDs(s.cfg.NodeID, process, s.now) }

// SetStarted opens the server for requests; until then it answers 503.
func (s *Server) SetStarted() {
	s.feeds.prime()
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	for _, in := range append(s.reg.Candidates(discovery.Context, ""), s.reg.Candidates(discovery.Generation, "")...) {
		s.syncClock(in)
	}
	st := s.reg.Status()
	for _, w := range s.inert(&st) {
		s.log.Warn(w.Message, "code", w.Code)
	}
}

// ready tells whether requests are accepted, and if not, why.
func (s *Server) ready() (bool, string) {
	s.mu.Lock()
	started, draining := s.started, s.draining
	s.mu.Unlock()
	switch {
	case draining:
		return false, "the frontend is shutting down"
	case !started && s.reg.Readiness().OK():
		return false, "the cluster is starting: not all listed workers are ready yet"
	case !started:
		return false, "the cluster is starting"
	}
	switch st := s.reg.Readiness(); {
	case st.OK():
		return true, ""
	case st.PreparedCtx < st.MinCtx:
		return false, "too few context workers are ready"
	}
	return false, "too few generation workers are ready"
}

// enter counts a request that Drain waits for, unless it has begun; leave must follow.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.inflight++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inflight--
	if s.draining && s.inflight == 0 {
		close(s.idle)
	}
}

// Drain refuses new requests and lets running ones finish until ctx ends; then it ends the rest, with aborts to workers
// and an error to clients, and waits for them.
func (s *Server) Drain(ctx context.Context) {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		if s.inflight == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
		s.stopNow(errShutdown)
		<-s.idle
	}
}

// Close waits for aborts on their way and drops idle connections. Call it after Drain.
func (s *Server) Close() {
	s.stopNow(errShutdown)
	s.background.Wait()
	s.homes.close()
	if s.stopPerfFile != nil {
		s.stopPerfFile()
	}
	s.client.CloseIdleConnections()
	s.calls.CloseIdle()
}

// InstanceState is one worker of one leg, for metrics.
type InstanceState struct {
	Role string
	ID   string
	Up   bool
}

// RouterState is one leg's router.
type RouterState struct {
	Kind string
	router.Stats
}

// Snapshot is the state that gauges show.
type Snapshot struct {
	Inflight int
	Queued   int   // of them, waiting for a place
	Handoffs int64 // ctx replies whose blocks were neither fetched nor given up
	Ready    bool
	Routers  map[string]RouterState // by role
	// Tokens of prompts that routers found in the caches of the workers they chose, and all of those prompts.
	KVMatched, KVPrompt uint64
	Instances           []InstanceState
	Warnings            map[string]int // of /cluster_info, by code
}

// Snapshot returns the present state.
func (s *Server) Snapshot() Snapshot {
	s.mu.Lock()
	inflight, queued := s.inflight, s.queue.waiting
	s.mu.Unlock()
	ready, _ := s.ready()
	out := Snapshot{KVMatched: s.kvMatched.Load(), KVPrompt: s.kvPrompt.Load(), Inflight: inflight, Queued: queued, Handoffs: s.handoffs.Load(), Ready: ready, Routers: map[string]RouterState{}}
	for role, r := range s.routers {
		out.Routers[string(role)] = RouterState{r.Kind(), r.Stats()}
	}
	st := s.reg.Status()
	for _, w := range st.Context {
		out.Instances = append(out.Instances, InstanceState{RoleContext, w.ID, w.Routable})
	}
	for _, w := range st.Gen {
		out.Instances = append(out.Instances, InstanceState{RoleGeneration, w.ID, w.Routable})
	}
	out.Warnings = map[string]int{}
	for _, w := range s.findings(&st) {
		out.Warnings[w.Code]++
	}
	return out
}
