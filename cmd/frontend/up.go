package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tandem/engine/executor"
	"tandem/engine/hub"
	"tandem/engine/model"
	"tandem/engine/runner"
	"tandem/engine/scheduler"
	"tandem/engine/tensor"
	"tandem/serve/config"
)

// upFlags are the flags of `frontend up`.
type upFlags struct {
	model, config, level    string
	ctx, gen, port, threads int
}

// maxWorkers bounds a mistyped --ctx or --gen.
const maxWorkers = 64

func upCommand() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster on this machine: ctx and gen workers and the frontend before them",
		Long: `Start ctx and gen workers and the frontend on this machine, and keep them running:
a worker that crashes is started again. One interrupt drains and stops all of it,
a second one does not wait for running requests.`,
		Example: `  frontend up
  frontend up --model ./model.gguf --ctx 1 --gen 2 --port 9000
  frontend up -c cluster.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, hurry, release := signals(cmd.Context())
			defer release()
			c, err := prepare(f, cmd.Flags().Changed)
			if err != nil {
				return err
			}
			c.out = cmd.OutOrStdout()
			return c.run(stop, hurry)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", hub.DefaultModel, "GGUF file, model folder, Hugging Face id or alias")
	fs.IntVar(&f.ctx, "ctx", 1, "number of ctx workers")
	fs.IntVar(&f.gen, "gen", 1, "number of gen workers")
	fs.IntVar(&f.port, "port", 8000, "port of the frontend, 0 = any free one; beats the file")
	fs.IntVar(&f.threads, "threads", 0, "compute threads of the ctx workers together, and of the gen workers, 0 = one per physical core")
	fs.StringVarP(&f.config, "config", "c", "", "YAML file like configs/cluster.yaml, without urls; worker keys in it go to the workers")
	fs.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// cluster is a local cluster that is about to run.
type cluster struct {
	cfg      config.Frontend
	log      *slog.Logger
	level    string
	out      io.Writer // the ready line
	errOut   io.Writer // the workers' logs
	bin      string    // of the engine
	env      []string  // added to the workers' environment
	model    string    // as the user named it
	ctx, gen int
	threads  int
	pools    map[string]int // KV tokens of each rank by role, 0 = the worker decides
	listener net.Listener
	tune     func(*supervisor) // test hook
}

// prepare checks all that can be checked before anything starts.
func prepare(f upFlags, changed func(string) bool) (*cluster, error) {
	log, err := logger(f.level)
	if err != nil {
		return nil, err
	}
	src := config.Source{File: f.config, Flags: map[string]any{}}
	if changed("port") && f.port != 0 {
		src.Flags["port"] = f.port
	}
	cfg, warnings, err := config.LoadFrontend(src)
	if err != nil {
		return nil, err
	}
	if cfg.Joining() {
		return nil, errors.New("config: disagg_cluster, metadata_server: frontend up knows the workers it starts: remove them, or use frontend serve")
	}
	if len(cfg.Context.URLs)+len(cfg.Generation.URLs) > 0 {
		return nil, errors.New("config: urls name running workers, but frontend up starts its own: remove urls, or use frontend serve")
	}
	for _, w := range warnings {
		log.Warn(w)
	}
	c := &cluster{cfg: cfg, log: log, level: f.level, errOut: os.Stderr, model: f.model, threads: f.threads}
	if name := cfg.Model(); name != "" && !changed("model") {
		c.model = name
	}
	if c.ctx, err = count("ctx", f.ctx, changed("ctx"), cfg.Context.NumInstances); err != nil {
		return nil, err
	}
	if c.gen, err = count("gen", f.gen, changed("gen"), cfg.Generation.NumInstances); err != nil {
		return nil, err
	}
	if f.threads < 0 {
		return nil, fmt.Errorf("--threads %d is negative", f.threads)
	}
	if c.threads == 0 {
		c.threads = runner.DefaultThreads()
	}
	if c.bin, err = engineBinary(); err != nil {
		return nil, err
	}
	if err := c.workers(); err != nil {
		return nil, err
	}
	port := cfg.Port
	if changed("port") {
		port = f.port
	}
	c.listener, err = listen(cfg.Hostname, port)
	return c, err
}

// count takes the number of workers of a role: flag, then file, then 1.
func count(flag string, val int, given bool, file *int) (int, error) {
	if !given && file != nil {
		val = *file
	}
	if val < 1 || val > maxWorkers {
		return 0, fmt.Errorf("--%s %d is outside 1..%d", flag, val, maxWorkers)
	}
	return val, nil
}

// engineBinary finds the engine beside this program, else in PATH.
func engineBinary() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), "engine")
		if info, err := os.Stat(beside); err == nil && !info.IsDir() {
			return beside, nil
		}
	}
	path, err := exec.LookPath("engine")
	if err != nil {
		return "", errors.New("the engine program is neither beside frontend nor in PATH: build it with make")
	}
	return path, nil
}

// The roles of workers as flags name them.
const (
	roleCtx = "ctx"
	roleGen = "gen"
)

// workers checks what the workers will read, and opens the model, so that a wrong key or a missing file is found before
// any of them starts. It divides the memory for KV among them.
func (c *cluster) workers() error {
	path, err := hub.Locate(c.model)
	if err != nil {
		return err
	}
	ck, err := model.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = ck.Close() }() // read only
	c.pools = map[string]int{}
	for _, s := range []struct {
		flag string
		role executor.Role
		file map[string]any
	}{
		{roleCtx, executor.Ctx, c.cfg.WorkerFile(c.cfg.Context)},
		{roleGen, executor.Gen, c.cfg.WorkerFile(c.cfg.Generation)},
	} {
		text, err := json.Marshal(s.file) // JSON is YAML
		if err != nil {
			return fmt.Errorf("configuration of %s workers: %w", s.flag, err)
		}
		w, _, err := config.LoadWorker(s.role, config.Source{Data: text}) // the workers warn
		if err != nil {
			return fmt.Errorf("%s workers: %w", s.flag, err)
		}
		c.pools[s.flag] = poolTokens(ck.Config, c.ctx+c.gen, w)
	}
	return nil
}

// poolTokens divides the memory for KV among workers and the ranks of each: the tokens of one rank's pool. 0 leaves it to
// the worker, whose configuration says it.
func poolTokens(m model.Config, workers int, w config.Worker) int {
	if w.KVCache.MaxTokens > 0 {
		return 0
	}
	free := float64(runner.AvailableMemory()) * runner.MemoryShare() / float64(workers)
	perToken := m.KVBytesPerToken(tensor.BF16) * w.TensorParallelSize
	if !w.EnableAttentionDP { // each rank keeps some of the heads
		perToken = perToken * ((m.KVHeads + w.TensorParallelSize - 1) / w.TensorParallelSize) / m.KVHeads
	}
	if free <= 0 || perToken <= 0 {
		return 0
	}
	length := w.MaxSeqLen
	if length < 1 {
		length = m.Context
	}
	return max(1, min(w.MaxBatchSize*length, int(free)/perToken))
}

// run starts the workers, serves until stop ends, and stops the workers.
func (c *cluster) run(stop, hurry context.Context) error {
	defer c.listener.Close()
	dir, release, err := newScratch(os.TempDir())
	if err != nil {
		return err
	}
	defer release()
	children, err := c.children(dir)
	if err != nil {
		return err
	}
	sup := newSupervisor(c.bin, children, c.errOut, c.log)
	sup.env, sup.hurry = c.env, hurry
	if c.tune != nil {
		c.tune(sup)
	}
	workers, stopWorkers := context.WithCancel(context.WithoutCancel(stop))
	defer sup.wait()
	defer stopWorkers()
	c.log.Info("starting", "model", c.model, "ctx", c.ctx, "gen", c.gen, "threads", c.threads)
	// Until the cluster is up an interrupt stops the workers; afterwards they outlive it until requests have ended.
	disarm := context.AfterFunc(stop, stopWorkers)
	urls, err := sup.start(workers)
	disarm()
	if err != nil {
		if stop.Err() != nil {
			return nil
		}
		return err
	}
	return c.serve(stop, hurry, urls)
}

// optimistic lets workers admit by what requests hold rather than by what they
// might grow to, unless the file says otherwise: chats without max_tokens could
// each grow to the whole context, and a local pool has room for few of those.
func optimistic(file map[string]any) {
	const key = "capacity_scheduler_policy"
	sched := map[string]any{key: string(scheduler.MaxUtilization)}
	if own, ok := file["scheduler_config"].(map[string]any); ok {
		maps.Copy(sched, own)
	}
	file["scheduler_config"] = sched
}

// children describes the workers and writes their configuration files.
func (c *cluster) children(dir string) ([]child, error) {
	var out []child
	total := c.ctx + c.gen
	used := 0 // threads of the workers before
	for i := range total {
		role, n, of, sec := roleCtx, i, c.ctx, c.cfg.Context
		if i >= c.ctx {
			role, n, of, sec = roleGen, i-c.ctx, c.gen, c.cfg.Generation
		}
		name := role + strconv.Itoa(n)
		file := c.cfg.WorkerFile(sec)
		if pool := c.pools[role]; pool > 0 {
			kv := map[string]any{"max_tokens": pool}
			if own, ok := file["kv_cache_config"].(map[string]any); ok {
				for k, v := range own {
					kv[k] = v
				}
			}
			file["kv_cache_config"] = kv
		}
		optimistic(file)
		threads, own := file["threads"]
		if pinned, _ := file["pin_threads"].(bool); pinned && !own {
			threads = share(c.threads, total, i)
		} else if !own {
			threads = share(c.threads, of, n)
			if _, own := file["threads_nice"]; !own && role == roleCtx {
				file["threads_nice"] = ctxNice
			}
		}
		delete(file, "threads")
		if _, own := file["pin_threads_skip"]; !own {
			file["pin_threads_skip"] = used
		}
		if n, ok := threads.(int); ok {
			used += n
		}
		admin, own := file["admin_addr"].(string)
		if !own {
			admin = "127.0.0.1:0" // TANDEM_ADMIN_ADDR is the frontend's
		}
		delete(file, "admin_addr")
		text, err := json.Marshal(file) // JSON is YAML
		if err != nil {
			return nil, fmt.Errorf("configuration of %s: %w", name, err)
		}
		path := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, fmt.Errorf("configuration of %s: %w", name, err)
		}
		out = append(out, child{name: name, args: func(port int) []string {
			return []string{
				"serve", c.model, "--role", role, "--host", "127.0.0.1", "--port", strconv.Itoa(port), "-c", path,
				"--threads", fmt.Sprint(threads), "--admin-addr", admin, "--log-level", c.level,
			}
		}})
	}
	return out, nil
}

// ctxNice lets gen workers go first where all roles have all cores: a prefill that has
// them alone takes half the time of one that has half of them, and one that meets
// a decode gets a quarter of a core, so that tokens come as evenly as from cores of
// their own.
const ctxNice = 5

// share divides threads among workers, at least one each, the first ones getting the rest.
func share(threads, workers, i int) int {
	n := threads / workers
	if i < threads%workers {
		n++
	}
	return max(1, n)
}

// serve runs the frontend over the workers' addresses.
func (c *cluster) serve(stop, hurry context.Context, urls []string) error {
	c.cfg.Context.URLs, c.cfg.Generation.URLs = urls[:c.ctx], urls[c.ctx:]
	n := &node{cfg: c.cfg, log: c.log, listener: c.listener, model: c.model}
	if err := n.build(); err != nil {
		return err
	}
	return n.run(stop, hurry, func() {
		name := c.model
		if models, _ := n.registry.Models(); len(models) > 0 {
			name = models[0].ID
		}
		at := c.cfg.TLS.Scheme() + "://" + reachable(c.listener.Addr().String())
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"What is the capital of France?"}]}`, name)
		_, _ = fmt.Fprintf(c.out, "Tandem is ready at %s (%d ctx + %d gen, %s). Try: curl -s %s/v1/chat/completions -H 'Content-Type: application/json' -d '%s'\n",
			at, c.ctx, c.gen, name, at, strings.ReplaceAll(body, "'", `'\''`))
	})
}

// reachable turns a listener on all addresses into one that a client can use.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return addr
}
