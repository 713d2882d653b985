package discovery

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeProber answers from a table that a test edits.
type fakeProber struct {
	mu     sync.Mutex
	report map[string]report
	calls  map[string]int
}

func (f *fakeProber) set(url string, r report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report[url] = r
}

func (f *fakeProber) Probe(_ context.Context, url string) (Health, ServerInfo, []Model, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[url]++
	r, ok := f.report[url]
	if !ok {
		return Health{}, ServerInfo{}, nil, ErrGone
	}
	return r.health, r.info, r.models, r.err
}

func startRegistry(t *testing.T, f *fakeProber, cfg Config) (*Registry, func()) {
	t.Helper()
	r, err := New(cfg, Options{Prober: f})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	return r, func() { cancel(); <-done }
}

func newFake() *fakeProber { return &fakeProber{report: map[string]report{}, calls: map[string]int{}} }

func TestRegistryLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", good(Context, "a"))
		r, stop := startRegistry(t, f, Config{Context: []string{"c:1"}, Generation: []string{"g:1"}, MinContext: 1, MinGen: 1})
		defer stop()
		synctest.Wait()
		if r.Status().Ready || len(r.Candidates(Context, "")) != 0 {
			t.Error("without gen nothing is ready, and ctx is no candidate without a partner")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if err := r.WaitStart(ctx, true); err == nil || !strings.Contains(err.Error(), "g:1") || strings.Contains(err.Error(), "\n") {
			t.Errorf("WaitStart names the missing worker in one line: %v", err)
		}
		f.set("http://g:1", good(Generation, "a"))
		if err := r.WaitStart(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if got := ids(r.Candidates(Context, "tiny")); got != "c:1" {
			t.Errorf("candidates %q", got)
		}
		if got := r.Candidates(Context, "other"); len(got) != 0 {
			t.Errorf("another model: %v", ids(got))
		}
		down := r.Down("g:1")
		f.set("http://g:1", report{err: ErrGone})
		r.LegEnded("g:1", false)
		<-down
		synctest.Wait()
		if r.Status().Ready {
			t.Error("a failed leg asks for a probe at once")
		}
	})
}

func TestRegistryRestartCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", good(Mixed, "a"))
		restarted := make(chan string, 1)
		r, err := New(Config{Context: []string{"c:1"}, Generation: []string{"c:1"}, MinContext: 1, MinGen: 1},
			Options{Prober: f, OnRestart: func(id string) { restarted <- id }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		synctest.Wait()
		f.set("http://c:1", good(Mixed, "b"))
		if id := <-restarted; id != "c:1" {
			t.Errorf("restarted %q", id)
		}
		if got := ids(r.Candidates(Context, "")); got != "" {
			t.Errorf("a single mixed worker has no partner: %q", got)
		}
		if got := ids(r.Alone("tiny")); got != "c:1" {
			t.Errorf("it serves alone: %q", got)
		}
		if models, open := r.Models(); len(models) != 1 || models[0].ID != "tiny" || open {
			t.Errorf("models %+v, open %v", models, open)
		}
		cancel()
		<-done
	})
}

// The load that a worker tells is handed on with each good probe, and with no other.
func TestRegistryReportsLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", report{err: errors.New("health is 503"), health: Health{RequestsActive: 9}})
		reports := make(chan int, 8)
		r, err := New(Config{Context: []string{"c:1"}, MinContext: 1}, Options{Prober: f, OnReport: func(id string, n int) { reports <- n }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		synctest.Wait()
		rep := good(Context, "a")
		rep.health.RequestsActive = 3
		f.set("http://c:1", rep)
		if n := <-reports; n != 3 {
			t.Errorf("%d requests, want 3", n)
		}
		cancel()
		<-done
	})
}

func TestNewRejects(t *testing.T) {
	if _, err := New(Config{Context: []string{"a:1", "A:1"}}, Options{Prober: newFake()}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("duplicate: %v", err)
	}
	if _, err := New(Config{Context: []string{"nope"}}, Options{Prober: newFake()}); err == nil {
		t.Error("bad address accepted")
	}
}

func TestHTTPProber(t *testing.T) {
	status, models := http.StatusOK, `{"data":[{"id":"m1","x":1},{"id":""}]}`
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"status":"draining","requests_active":2}`))
	})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"role":"context","model":"served","incarnation":"i","kv_layout":{"layers":3},"future":1}`))
	})
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(models)) })
	srv := httptest.NewServer(mux)
	client := srv.Client()
	defer client.CloseIdleConnections()
	p := HTTPProber{Client: client}
	_, info, list, err := p.Probe(t.Context(), srv.URL)
	if err != nil || info.Layout.Layers != 3 || len(list) != 1 || string(list[0].Raw) != `{"id":"m1","x":1}` {
		t.Errorf("%+v %+v %v", info, list, err)
	}
	models = `{"data":[]}`
	if _, _, list, _ = p.Probe(t.Context(), srv.URL); len(list) != 1 || list[0].ID != "served" {
		t.Errorf("fallback to the info's model: %+v", list)
	}
	status = http.StatusServiceUnavailable
	if _, _, _, err = p.Probe(t.Context(), srv.URL); err == nil || !strings.Contains(err.Error(), "draining") || errors.Is(err, ErrGone) {
		t.Errorf("unhealthy: %v", err)
	}
	srv.Close()
	if _, _, _, err = p.Probe(t.Context(), srv.URL); !errors.Is(err, ErrGone) {
		t.Errorf("closed listener: %v", err)
	}
}

// TestProberNamesTheScheme: a worker that serves TLS and is listed without https:// says "400", which helps nobody.
func TestProberNamesTheScheme(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	srv.StartTLS()
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	_, _, _, err := HTTPProber{Client: client}.Probe(t.Context(), strings.Replace(srv.URL, "https:", "http:", 1))
	if err == nil || !strings.Contains(err.Error(), "https://") {
		t.Errorf("a TLS worker listed without https: %v", err)
	}
}

// TestWaitStartTellsWhy: the error of a start that takes too long has what the last probes found, though they woke nobody.
func TestWaitStartTellsWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", good(Generation, "a"))
		f.set("http://g:1", report{err: errors.New("nothing listens there")})
		r, stop := startRegistry(t, f, Config{Context: []string{"c:1"}, Generation: []string{"g:1"}, MinContext: 1, MinGen: 1})
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		err := r.WaitStart(ctx, true) // begins before the first probe
		for _, want := range []string{`c:1 is listed among the context servers but says its role is "generation"`, "g:1: nothing listens there"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %v", want, err)
			}
		}
	})
}

// TestWaitStartIsNotSilent: who starts a frontend and forgets a worker reads its name in the log long before the start fails.
func TestWaitStartIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", good(Context, "a"))
		f.set("http://g:1", report{err: errors.New("nothing listens there")})
		var log strings.Builder
		r, err := New(Config{Context: []string{"c:1"}, Generation: []string{"g:1"}, MinContext: 1, MinGen: 1},
			Options{Prober: f, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		_ = r.WaitStart(ctx, true)
		<-done
		var told []string
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "waiting for workers") {
				told = append(told, line)
			}
		}
		if len(told) != 2 || !strings.Contains(told[0], "g:1: nothing listens there") || strings.Contains(told[0], "c:1") {
			t.Errorf("told %q", told)
		}
	})
}

// TestMisfitIsLogged: workers that will never be paired are told about when they come up.
func TestMisfitIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		other := good(Generation, "a")
		other.info.Fingerprint = "another model"
		f.set("http://c:1", good(Context, "a"))
		f.set("http://g:1", other)
		var log strings.Builder
		r, err := New(Config{Context: []string{"c:1"}, Generation: []string{"g:1"}, MinContext: 1, MinGen: 1},
			Options{Prober: f, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		synctest.Wait()
		cancel()
		<-done
		if n := strings.Count(log.String(), "is never selected"); n != 1 {
			t.Errorf("%d warnings in %s", n, &log)
		}
	})
}

func (f *fakeProber) count(url string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[url]
}
