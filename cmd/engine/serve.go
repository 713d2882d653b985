package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/engine/cuda"
	"tandem/engine/executor"
	"tandem/engine/hub"
	"tandem/engine/runner"
	"tandem/engine/tokenizer/chat"
	"tandem/engine/transfer/wire"
	"tandem/serve/config"
	"tandem/serve/metrics"
	"tandem/serve/openai"
	"tandem/serve/trace"
	"tandem/serve/worker"
)

// serveFlags are the flags of `engine serve`.
type serveFlags struct {
	role, config, host, backend, name, admin, level string
	group, ranks                                    string
	port, threads                                   int
}

func serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve [MODEL]",
		Short: "Serve a model as a ctx, gen or mixed worker",
		Long: `Serve a model as one worker of a cluster (--role ctx or gen), or as a complete OpenAI server (--role mixed).
MODEL is a GGUF file, a model folder, a Hugging Face id or an alias (` + strings.Join(hub.Aliases(), ", ") + `), the default.
Names must be fetched before: engine model pull NAME.
Flags beat the environment, which beats the file; docs/configuration.md describes the keys.`,
		Example: `  engine serve
  engine serve ./model.gguf --port 8001
  engine serve ./model.gguf --role ctx --host 0.0.0.0 --port 8001 -c configs/worker.yaml
  engine serve ./moe.gguf -c ranks.yaml --rank-group 10.0.0.1:7000 --ranks 4-7`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := hub.DefaultModel
			if len(args) == 1 {
				name = args[0]
			}
			return serve(cmd.Context(), name, f, func(flag string) bool { return cmd.Flags().Changed(flag) })
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return config.UnknownFlag[config.Worker](err, unknown.GetSpecifiedName())
		}
		return err
	})
	fs := cmd.Flags()
	fs.StringVar(&f.role, "role", "mixed", "ctx (prefill), gen (decode) or mixed (both)")
	fs.StringVarP(&f.config, "config", "c", "", "YAML file of worker keys (see configs/worker.yaml)")
	fs.StringVar(&f.config, "extra_llm_api_options", "", "the same as --config, for scripts of other engines")
	fs.StringVar(&f.host, "host", "127.0.0.1", "address to listen on, also for KV transfer; 0.0.0.0 = all addresses")
	fs.IntVar(&f.port, "port", 8000, "port to listen on, 0 = any free one")
	fs.StringVar(&f.backend, "backend", "auto", "auto, cpu or cuda; auto takes a CUDA device if there is one")
	fs.IntVar(&f.threads, "threads", 0, "compute threads, 0 = one per physical core")
	fs.StringVar(&f.name, "served-model-name", "", "name that clients use, default from the model")
	fs.StringVar(&f.admin, "admin-addr", "127.0.0.1:0", "host:port of the listener for pprof and engine debug, or off")
	fs.StringVar(&f.group, "rank-group", "", "host:port where the process of rank 0 listens for those of the other ranks; with --ranks")
	fs.StringVar(&f.ranks, "ranks", "", "ranks of this process, as 0-3; without --rank-group all of tensor_parallel_size are here")
	fs.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// source collects the flags that override the file.
func (f serveFlags) source(changed func(string) bool) config.Source {
	over := map[string]any{}
	for flag, kv := range map[string]struct {
		key string
		val any
	}{
		"backend": {"backend", f.backend}, "threads": {"threads", f.threads},
		"served-model-name": {"served_model_name", f.name}, "admin-addr": {"admin_addr", f.admin},
	} {
		if changed(flag) {
			over[kv.key] = kv.val
		}
	}
	return config.Source{Flags: over, File: f.config}
}

func parseRole(s string) (executor.Role, error) {
	switch s {
	case "ctx", "context":
		return executor.Ctx, nil
	case "gen", "generation":
		return executor.Gen, nil
	case "mixed":
		return executor.Mixed, nil
	}
	return "", fmt.Errorf("--role %q is not one of ctx, gen, mixed", s)
}

// loadConfig loads over the defaults of the device that the engine will run on.
func loadConfig(role executor.Role, src config.Source) (config.Worker, []string, error) {
	cfg, warnings, err := config.LoadWorker(role, src)
	if err != nil || cfg.Backend == "cpu" || cuda.Probe() != nil {
		return cfg, warnings, err
	}
	src.GPU = true
	return config.LoadWorker(role, src)
}

func serve(ctx context.Context, modelName string, f serveFlags, changed func(string) bool) error {
	log, err := logger(f.level)
	if err != nil {
		return err
	}
	role, err := parseRole(f.role)
	if err != nil {
		return err
	}
	cfg, warnings, err := loadConfig(role, f.source(changed))
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Warn(w)
	}
	group, err := cfg.Group(f.group, f.ranks)
	if err != nil {
		return err
	}
	path, err := hub.Locate(modelName)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(f.host, strconv.Itoa(f.port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--port %d: %w (is another server running? choose another --port, or 0 for any free one)", f.port, err)
	case err != nil:
		return fmt.Errorf("cannot listen on --host %s --port %d: %w", f.host, f.port, err)
	}
	defer ln.Close()
	if secure, err := cfg.TLS.Server(); err != nil {
		return err
	} else if secure != nil {
		ln = tls.NewListener(ln, secure)
	}
	p := &process{log: log, cfg: cfg, role: role, group: group, host: f.host, listener: ln, model: modelName}
	return p.run(ctx, path)
}

// process is a running worker.
type process struct {
	log      *slog.Logger
	cfg      config.Worker
	role     executor.Role
	group    *config.RankGroup // nil: all ranks are in this process
	host     string            // as the user gave it
	listener net.Listener
	model    string // as the user named it
	loaded   *runner.Loaded
	member   atomic.Pointer[membership]
	debug    atomic.Pointer[http.Handler]
}

func (p *process) run(ctx context.Context, path string) error {
	admin, err := p.startAdmin()
	if err != nil {
		return err
	}
	defer admin.close()
	face, err := p.cfg.HTTP(loopback(p.listener.Addr()))
	if err != nil {
		return err
	}
	dialects, err := metrics.ParseDialects(p.cfg.MetricsCompat)
	if err != nil {
		return err
	}
	reg := metrics.NewRegistry()
	ready := make(chan struct{})
	observer := metrics.NewWorker(reg, p.stats(ready, face.Stall), dialects...)
	if p.cfg.Cluster.On() && p.group.Leads() {
		metrics.RegisterMembership(reg, p.registration)
	}
	face.Version, face.AdminAddr, face.Logger = version, admin.addr, p.log
	if p.group != nil {
		face.Ranks, face.Remote = p.group.String(), !p.group.Leads()
	}
	if face.Tracer, err = trace.NewTracer(p.cfg.Spans("tandem-"+string(p.role), version, p.log)); err != nil {
		return err
	}
	defer p.lastSpans(face.Tracer)
	face.Observer, face.Metrics = observer, metrics.Handler(reg)
	handler := worker.New(face)
	pages := handler.Debug()
	p.debug.Store(&pages)
	server := &http.Server{
		Handler: openai.BoundBodies(handler), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(p.listener) }()
	defer func() { _ = server.Close() }() // it ends whatever the drain left

	start := time.Now()
	if p.loaded, err = p.load(ctx, path, []byte(face.Key)); err != nil {
		if ctx.Err() != nil {
			return nil // interrupted while it waited for other ranks
		}
		return err
	}
	defer p.loaded.Close()
	died := make(chan error, 1)
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngine()
	go func() { died <- p.loaded.Engine.Run(engineCtx) }()
	close(ready)
	handler.Attach(p.backend())
	member, err := p.register([]byte(face.Key))
	if err != nil {
		return err
	}
	defer member.leave() // also when the engine died
	p.announce(admin.addr, time.Since(start))

	select {
	case err := <-served:
		return fmt.Errorf("http: %w", err)
	case err := <-died:
		// Clients of the requests that ended with the engine are told so first.
		last, end := context.WithTimeout(context.Background(), time.Second)
		defer end()
		_ = server.Shutdown(last)
		return p.dead(err)
	case <-ctx.Done():
	}
	return p.drain(server, handler, stopEngine, died)
}

// stats returns what metrics read of the engine, once ready is closed.
func (p *process) stats(ready <-chan struct{}, stall time.Duration) func() (runner.Stats, runner.Info, bool) {
	return func() (runner.Stats, runner.Info, bool) {
		select {
		case <-ready:
			st := p.loaded.Engine.Stats(stall)
			if !p.group.Leads() {
				st.Ranks = nil // those of other processes are not known here
			}
			return st, p.loaded.Engine.Info(), true
		default:
			return runner.Stats{}, runner.Info{}, false
		}
	}
}

// backend is the loaded engine as the HTTP face takes it.
func (p *process) backend() worker.Backend {
	b := worker.Backend{
		Engine: worker.FromRunner(p.loaded.Engine), Tokenizer: p.loaded.Tokenizer, EOS: p.loaded.EOS,
		Defaults: worker.Defaults(p.loaded.Config.Sampling),
	}
	if p.loaded.Template != nil {
		b.Template = chatTemplate{p.loaded.Template}
		b.Format = p.loaded.Template.Format()
	}
	b.Format = p.cfg.Format(b.Format)
	if p.cfg.AllowChatTemplate {
		b.Foreign = newSandbox(p.loaded.Template, p.loaded.Tokenizer).render
	}
	return b
}

// lastSpans sends what the tracer has left.
func (p *process) lastSpans(t *trace.Tracer) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := t.Shutdown(ctx); err != nil {
		p.log.Warn("the last spans were not exported", "error", err)
	}
}

// drain ends the process in good order: refuse new requests, let the running
// ones finish within the grace, cancel the rest.
func (p *process) drain(server *http.Server, handler *worker.Server, stop context.CancelFunc, died chan error) error {
	p.log.Info("draining", "grace", p.cfg.Grace())
	handler.Drain()
	p.member.Load().leave()
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Grace())
	defer cancel()
	var err error
	if p.group.Leads() {
		p.loaded.Engine.Shutdown(ctx)
		err = <-died
	} else {
		err = p.follow(ctx, stop, died)
	}
	last, end := context.WithTimeout(context.Background(), 2*time.Second)
	defer end()
	_ = server.Shutdown(last) // the rest is closed by the caller
	return err
}

// load packs the model and reports progress at most every two seconds.
func (p *process) load(ctx context.Context, path string, key []byte) (*runner.Loaded, error) {
	p.log.Info("loading", "model", p.model, "role", p.role)
	o := runner.LoadOptions{
		Path: path, ServedName: p.cfg.ServedModelName, DefaultName: p.servedName(), Core: p.cfg.Core(p.role),
		Backend: p.cfg.Backend, F32: p.cfg.DType == "float32", Activations: p.cfg.Activations, Threads: p.cfg.Threads, Nice: p.cfg.ThreadsNice, PinThreads: p.cfg.PinThreads, PinSkip: p.cfg.PinSkip,
		Tiers: runner.TierOptions{
			HostBytes: p.cfg.KVCache.HostCacheSize, DiskDir: p.cfg.KVCache.DiskCacheDir, DiskBytes: p.cfg.KVCache.DiskCacheSize,
		},
		PoolTokens: p.cfg.KVCache.MaxTokens, KVDType: p.cfg.KVCache.Type(), Memory: p.cfg.KVCache.MemoryFraction,
		Graphs: p.cfg.CUDAGraph.Sizes(p.cfg.MaxBatchSize), Deterministic: p.cfg.Deterministic, Incarnation: uuid.NewString(), Logger: p.log,
	}
	if o.PackedDir = p.cfg.PackedDir; o.PackedDir == "off" {
		o.PackedDir = ""
	} else if home, err := hub.Home(); o.PackedDir == "" && err == nil {
		o.PackedDir = filepath.Join(home, "packed")
	}
	if off := p.cfg.DisableOverlap; off != nil {
		on := !*off
		o.Overlap = &on
	}
	p.spread(&o, key)
	if t := p.cfg.Transceiver; t != nil {
		o.Wire = &wire.Config{
			Host: wireHost(p.host, p.listener.Addr()), Port: t.ControlPort, DataPort: t.DataPort, Advertise: t.AdvertiseHost,
			Key: key, Logger: p.log, AttachTimeout: time.Duration(t.Attach) * time.Millisecond, NoShared: t.Backend == "TCP",
		}
	}
	last, tensors, bytes := time.Now(), 0, 0
	o.Loaded = func(_ string, n int) {
		tensors, bytes = tensors+1, bytes+n
		if time.Since(last) > 2*time.Second {
			last = time.Now()
			p.log.Info("loading", "tensors", tensors, "MiB", bytes>>20)
		}
	}
	return runner.Load(ctx, o)
}

// wireHost is where KV transfer listens: where HTTP does. A wildcard stays as the user gave it, because the listener's
// own address turns 0.0.0.0 into ::, whose first usable address may be of the wrong family.
func wireHost(host string, at net.Addr) string {
	if host == "" {
		return "0.0.0.0"
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return host
	}
	own, _, err := net.SplitHostPort(at.String())
	if err != nil {
		return host
	}
	return own
}

// servedName is what the user typed when that is a name and not a path.
func (p *process) servedName() string {
	if _, err := os.Stat(p.model); err == nil {
		return ""
	}
	return p.model
}

// announce prints the line that supervisors wait for, and one for people.
func (p *process) announce(admin string, took time.Duration) {
	info := p.loaded.Engine.Info()
	mem := p.loaded.Memory()
	ready := []any{
		"model", info.Model, "role", info.Role, "backend", info.Backend, "took", took.Round(time.Millisecond),
		"weights_MiB", mem.WeightBytes >> 20, "kv_MiB", mem.KVBytes >> 20, "kv_tokens", p.loaded.KVTokens(), "max_seq_len", info.MaxSeqLen,
	}
	switch {
	case info.Ranks > 1:
		ready = append(ready, "attention_dp_ranks", info.Ranks, "ranks_here", len(p.loaded.Backends), "router", info.Router)
	case info.TensorRanks > 1:
		ready = append(ready, "tensor_parallel_ranks", info.TensorRanks)
	}
	p.log.Info("ready", ready...)
	ranks := ""
	if p.group != nil {
		ranks = " ranks=" + p.group.String()
	}
	role := map[executor.Role]string{executor.Ctx: "ctx", executor.Gen: "gen", executor.Mixed: "mixed"}[info.Role]
	fmt.Printf("TANDEM_READY url=%s://%s role=%s admin=%s%s\n", p.cfg.TLS.Scheme(), reachable(p.listener.Addr().String()), role, admin, ranks)
}

// chatTemplate adapts the template to what the worker asks for.
type chatTemplate struct{ t *chat.Template }

func (c chatTemplate) Render(messages, tools, kwargs json.RawMessage) (string, error) {
	text, err := c.t.Render(chat.Input{Messages: messages, Tools: tools, AddGenerationPrompt: true, Extra: kwargs})
	var refused *chat.RenderError
	if errors.As(err, &refused) {
		return "", openai.Invalid(refused.Param, "%s", openai.Cut(err.Error(), openai.MaxErrorText))
	}
	return text, err
}

// reachable turns a listener on all addresses into one that a client can use.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return addr
}

func loopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

func logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q is not one of debug, info, warn, error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
