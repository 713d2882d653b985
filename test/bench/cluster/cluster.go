package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Options are mixed workers, all alike.
type Options struct {
	Bin     string // folder with the programs engine and frontend
	Model   string // file or folder
	Workers int
	Threads int            // compute threads of each, 0 = its own choice
	Keys    map[string]any // of the workers' configuration
	Wait    time.Duration  // how long each program may take to start
}

// Cluster is workers of this machine, and frontends before them.
type Cluster struct {
	Workers []*Process
	o       Options
	fronts  []*Process
	dir     string
}

// Up starts the workers, one after the other. Call Down at the end, also of a Cluster that came with an error.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{o: o}
	var err error
	if c.dir, err = os.MkdirTemp("", "bench-cluster-"); err != nil {
		return c, fmt.Errorf("scratch folder: %w", err)
	}
	for i := range o.Workers {
		w, err := Worker(ctx, o)
		if err != nil {
			return c, fmt.Errorf("worker %d: %w", i+1, err)
		}
		c.Workers = append(c.Workers, w)
	}
	return c, nil
}

// Down stops everything.
func (c *Cluster) Down() {
	for _, p := range append(c.fronts, c.Workers...) {
		p.Stop()
	}
	_ = os.RemoveAll(c.dir) // scratch
}

// Admins are the URLs of the workers for debugging.
func (c *Cluster) Admins() (out []string) {
	for _, w := range c.Workers {
		out = append(out, w.Admin)
	}
	return out
}

// Frontend starts one before all workers, with routers of a type, and returns its URL.
func (c *Cluster) Frontend(ctx context.Context, router string) (string, error) {
	var urls []string
	for _, w := range c.Workers {
		urls = append(urls, strings.TrimPrefix(w.URL, "http://"))
	}
	role := map[string]any{"urls": urls, "router": map[string]any{"type": router}}
	path, err := write(c.dir, fmt.Sprintf("frontend%d.yaml", len(c.fronts)), map[string]any{
		"hostname": "127.0.0.1", "expose_routing_headers": true, "return_perf_metrics": true, "server_start_timeout_sec": int(c.o.Wait.Seconds()),
		"context_servers": role, "generation_servers": role, // a worker of both lists serves requests alone
	})
	if err != nil {
		return "", err
	}
	p, err := Start(ctx, nil, filepath.Join(c.o.Bin, "frontend"), "serve", "-c", path, "--port", "0", "--log-level", "warn")
	if err == nil {
		c.fronts = append(c.fronts, p)
		err = p.Ready(ctx, c.o.Wait)
	}
	if err != nil {
		return "", fmt.Errorf("frontend with %s: %w", router, err)
	}
	return p.URL, nil
}

// Worker starts one of the workers without a frontend.
func Worker(ctx context.Context, o Options) (*Process, error) {
	args := []string{"serve", o.Model, "--port", "0", "--log-level", "warn"}
	if o.Threads > 0 {
		args = append(args, "--threads", strconv.Itoa(o.Threads))
	}
	if len(o.Keys) > 0 {
		dir, err := os.MkdirTemp("", "bench-worker-")
		if err != nil {
			return nil, fmt.Errorf("scratch folder: %w", err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // scratch, read at the start
		path, err := write(dir, "worker.yaml", o.Keys)
		if err != nil {
			return nil, err
		}
		args = append(args, "-c", path)
	}
	p, err := Start(ctx, nil, filepath.Join(o.Bin, "engine"), args...)
	if err != nil {
		return nil, err
	}
	return p, p.Ready(ctx, o.Wait)
}

// write writes keys as a configuration file: JSON is YAML.
func write(dir, name string, keys map[string]any) (string, error) {
	text, err := json.Marshal(keys)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return path, nil
}
