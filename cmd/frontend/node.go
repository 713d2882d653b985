package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tandem/serve/config"
	"tandem/serve/disagg"
	"tandem/serve/discovery"
	"tandem/serve/h1"
	"tandem/serve/metrics"
	"tandem/serve/openai"
	"tandem/serve/router"
	"tandem/serve/trace"
)

// node is a running frontend: registry, server, public and admin listeners.
type node struct {
	cfg      config.Frontend
	log      *slog.Logger
	listener net.Listener
	admin    string // URL of the admin listener, or off
	model    string // of the workers, where the configuration names none; empty = unknown
	ids      struct{ node, process int }

	server      *disagg.Server
	registry    *discovery.Registry
	discovered  *discovered    // nil: the workers are listed
	coordinated *coordinated   // nil: conversations are not shared with other frontends
	tracer      *trace.Tracer  // nil: no spans
	capture     *trace.Capture // nil: no trace for replay
	perf        *trace.Lines   // nil: no perf records in files
}

// listen opens the public port; the error names what to change.
func listen(host string, port int) (net.Listener, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is already in use: stop the other server, or choose another with --port", port)
	}
	var name *net.DNSError
	switch {
	case errors.As(err, &name), errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("hostname: %q is no address of this machine: use localhost, 0.0.0.0 for all addresses, or one of its own", host)
	case err != nil:
		return nil, fmt.Errorf("cannot listen (--port %d): %w", port, err)
	}
	return h1.Direct(ln, openai.Unreadable), nil
}

// encrypt puts TLS on the public listener if the file says so.
func (n *node) encrypt() error {
	conf, err := n.cfg.TLS.Server()
	if err == nil && conf != nil {
		n.listener = tls.NewListener(n.listener, conf)
	}
	return err
}

// build makes the parts; nothing runs yet.
func (n *node) build() error {
	dc, err := n.cfg.Disagg(version)
	if err != nil {
		return err
	}
	n.ids.node, n.ids.process = dc.NodeID, dc.ProcessID
	if dc.WorkerTLS, err = n.cfg.TLS.Workers.Client("tls.workers"); err != nil {
		return err
	}
	if err := n.encrypt(); err != nil {
		return err
	}
	ctxRouter, genRouter, err := n.routers(&dc)
	if err != nil {
		return err
	}
	dialects, err := metrics.ParseDialects(n.cfg.MetricsCompat)
	if err != nil {
		return err
	}
	if err := n.records(); err != nil {
		return err
	}
	reg := metrics.NewRegistry()
	var server atomic.Pointer[disagg.Server]
	observer := metrics.NewFrontend(reg, func() (disagg.Snapshot, bool) {
		if s := server.Load(); s != nil {
			return s.Snapshot(), true
		}
		return disagg.Snapshot{}, false
	}, dialects...)
	prompts, err := n.prompts()
	if err != nil {
		return err
	}
	if n.coordinated, err = n.coordinate(dc.AuthKey); err != nil {
		return err
	}
	parts := disagg.Parts{
		Homes:    n.coordinated.store(),
		Tracer:   n.tracer,
		Capture:  n.capture,
		Registry: n.registry, Context: ctxRouter, Generation: genRouter, Observer: observer, Log: n.log, Metrics: metrics.Handler(reg),
		Prompts: prompts,
	}
	if n.cfg.Diagnostics() {
		parts.Diag = os.Stderr
	}
	if n.perf != nil {
		parts.PerfFile = n.perf
	}
	n.server, err = disagg.New(dc, parts)
	server.Store(n.server)
	if err != nil {
		return err
	}
	n.discovered, err = n.discover(dc.AuthKey)
	return err
}

// hooked is what a build with the tag testhooks changes about a router.
var hooked = func(r router.Router) router.Router { return r }

// routers makes both routers, and the registry that tells them of workers.
func (n *node) routers(dc *disagg.Config) (ctxRouter, genRouter router.Router, err error) {
	ctxRouter, err = router.NewRouter(n.cfg.Context.RouterConfig())
	if err != nil {
		return nil, nil, fmt.Errorf("context_servers: %w", err)
	}
	genRouter, err = router.NewRouter(n.cfg.Generation.RouterConfig())
	if err != nil {
		return nil, nil, fmt.Errorf("generation_servers: %w", err)
	}
	ctxRouter, genRouter = hooked(ctxRouter), hooked(genRouter)
	client := &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: dc.ConnectTimeout}).DialContext, IdleConnTimeout: time.Second, TLSClientConfig: dc.WorkerTLS,
	}}
	n.registry, err = discovery.New(n.cfg.Discovery(), discovery.Options{
		Prober: discovery.HTTPProber{Client: client}, Log: n.log,
		// A new process has an empty cache: nothing is lost by placing its conversations anew.
		OnRestart: func(id string) { ctxRouter.Forget(id); genRouter.Forget(id) },
		OnGone:    func(id string) { ctxRouter.Forget(id); genRouter.Forget(id) },
		OnReport: func(id string, requests int) {
			for _, r := range []router.Router{ctxRouter, genRouter} {
				if to, ok := r.(router.Reporter); ok {
					to.Report(id, requests)
				}
			}
		},
	})
	return ctxRouter, genRouter, err
}

// records opens what requests leave behind: files and spans.
func (n *node) records() (err error) {
	if n.capture, err = trace.NewCapture(n.cfg.Capture.Options(n.log), time.Now()); err != nil {
		return fmt.Errorf("trace_capture.dir: %w", err)
	}
	if n.perf, err = trace.NewLines(n.cfg.PerfDir, "perf", time.Now()); err != nil {
		return fmt.Errorf("perf_metrics_output_dir: %w", err)
	}
	if n.tracer, err = trace.NewTracer(n.cfg.Spans("tandem-frontend", version, n.log)); err != nil {
		return err
	}
	return nil
}

// run serves until stop ends, then drains until the grace or hurry ends. ready is called once the cluster is up.
func (n *node) run(stop, hurry context.Context, ready func()) error {
	admin, err := n.startAdmin()
	if err != nil {
		return err
	}
	defer admin()
	background, cancel := context.WithCancel(context.WithoutCancel(stop))
	var wg sync.WaitGroup
	wg.Go(func() { n.registry.Run(background) })
	n.follow(background, &wg)
	n.coordinated.start(background, &wg)
	defer func() { cancel(); wg.Wait() }()

	srv := &http.Server{
		Handler: openai.BoundBodies(n.coordinated.handler(n.discovered.handler(n.server.Handler()))), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(n.listener) }()
	defer n.close(srv)

	if err := n.waitStart(stop, served); err != nil {
		if stop.Err() != nil {
			return nil
		}
		return err
	}
	n.server.SetStarted()
	ready()
	select {
	case err := <-served:
		return fmt.Errorf("http: %w", err)
	case <-stop.Done():
	}
	grace := time.Duration(n.cfg.ShutdownGrace * float64(time.Second))
	n.log.Info("draining: a second interrupt stops at once", "requests", n.server.Snapshot().Inflight, "grace", grace)
	dctx, end := context.WithTimeout(hurry, grace)
	defer end()
	n.server.Drain(dctx)
	return nil
}

// close ends what still runs and waits for it.
func (n *node) close(srv *http.Server) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	n.server.Drain(now)
	last, end := context.WithTimeout(context.Background(), 2*time.Second)
	defer end()
	if srv.Shutdown(last) != nil {
		_ = srv.Close() // it ends whatever stays open
	}
	n.server.Close()
	n.coordinated.end()
	if err := n.perf.Close(); err != nil {
		n.log.Warn("the end of the perf records is lost", "error", err)
	}
	if err := n.capture.Close(); err != nil {
		n.log.Warn("the end of the trace capture is lost", "error", err)
	}
	if err := n.tracer.Shutdown(last); err != nil {
		n.log.Warn("the last spans were not exported", "error", err)
	}
}

func (n *node) waitStart(stop context.Context, served <-chan error) error {
	limit := time.Duration(n.cfg.StartTimeout * float64(time.Second))
	if err := n.waitCoordinator(stop, limit); err != nil {
		return err
	}
	if err := n.takeNumbers(stop); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stop)
	defer cancel()
	up := make(chan error, 1) // never blocks its sender, which ends with ctx
	go func() {
		for {
			lctx, end := context.WithTimeout(ctx, limit)
			err := n.registry.WaitStart(lctx, n.cfg.StrictStartup && n.discovered == nil)
			end()
			if err == nil || n.discovered == nil || ctx.Err() != nil {
				up <- err
				return
			}
			n.log.Warn("still waiting for workers to register", "error", err)
		}
	}()
	select {
	case err := <-served:
		return fmt.Errorf("http: %w", err)
	case err := <-up:
		if err != nil {
			return fmt.Errorf("after %v (server_start_timeout_sec): %w", limit, err)
		}
		return nil
	}
}

// startAdmin serves pprof on a listener of its own and returns how to close it.
func (n *node) startAdmin() (func(), error) {
	n.admin = "off"
	if n.cfg.AdminAddr == "off" {
		return func() {}, nil
	}
	ln, err := net.Listen("tcp", n.cfg.AdminAddr)
	if err != nil {
		return nil, fmt.Errorf("admin_addr %s: %w (choose another, or off)", n.cfg.AdminAddr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	n.admin = "http://" + ln.Addr().String()
	return func() { _ = srv.Close(); <-done }, nil
}
