package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"tandem/test/gpucheck/report"
	"tandem/test/tinymodel"
)

// stand is what a burst is sent to: a model, workers, how many requests of what length.
type stand struct {
	name            string
	size            tinymodel.Size
	requests        int
	every           time.Duration // from one request to the next
	prompt, answer  int           // tokens
	tokens          int           // of a worker's KV pool
	rows, sequences int
}

func chosenStand() stand {
	if tiny() {
		return stand{
			name: "tiny", requests: 4, every: 5 * time.Millisecond, prompt: 24, answer: 4, tokens: 2048, rows: 128, sequences: 4,
			size: tinymodel.Size{Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Inter: 64, Vocab: 512, Context: 256},
		}
	}
	return stand{
		name: "1B, bf16", requests: 32, every: 20 * time.Millisecond, prompt: 1024, answer: 128, tokens: 131072, rows: 8192, sequences: 64,
		size: tinymodel.Size{Hidden: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, Inter: 8192, Vocab: 32000, Context: 8192},
	}
}

// serveCommand starts a ctx and a gen worker on one device and a frontend, and sends a burst.
func serveCommand(out io.Writer, args []string) (err error) {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	bin := fs.String("bin", ".", "folder of the programs engine and frontend")
	backend := fs.String("backend", "cuda", "of the workers")
	limit := fs.Duration("limit", time.Minute, "time for everything")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "gpucheck-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := chosenStand()
	if err := tinymodel.WriteSized(dir, 1, s.size); err != nil {
		return err
	}
	c := &cluster{ctx: ctx, bin: *bin, dir: dir}
	defer func() { err = errors.Join(err, c.stop()) }()
	url, err := c.start(s, *backend)
	if err != nil {
		return err
	}
	if _, err := s.burst(ctx, url); err != nil { // compiles kernels, captures graphs, and is not counted
		return fmt.Errorf("first burst: %w", err)
	}
	seen, err := s.burst(ctx, url)
	if err != nil {
		return err
	}
	return report.Line{Step: report.Serve, Model: s.name, Latency: seen}.Write(out)
}

// cluster is the processes of a stand.
type cluster struct {
	ctx      context.Context
	bin, dir string
	running  []*exec.Cmd
	done     []chan struct{}
}

// start returns the frontend's URL.
func (c *cluster) start(s stand, backend string) (string, error) {
	worker := fmt.Sprintf("max_num_tokens: %d\nmax_batch_size: %d\nmax_seq_len: %d\nkv_cache_config: {max_tokens: %d}\n",
		s.rows, s.sequences, min(s.size.Context, s.tokens), s.tokens)
	file, err := c.file("worker.yaml", worker)
	if err != nil {
		return "", err
	}
	var urls []string
	for _, role := range []string{"ctx", "gen"} {
		url, err := c.process("engine", "serve", c.dir, "--served-model-name", "check", "--role", role, "--backend", backend, "--port", "0", "-c", file)
		if err != nil {
			return "", fmt.Errorf("%s worker: %w", role, err)
		}
		urls = append(urls, url)
	}
	file, err = c.file("cluster.yaml", fmt.Sprintf(
		"hostname: 127.0.0.1\nexpose_routing_headers: true\ncontext_servers: {urls: [%q]}\ngeneration_servers: {urls: [%q]}\n", urls[0], urls[1]))
	if err != nil {
		return "", err
	}
	return c.process("frontend", "serve", "--port", "0", "-c", file)
}

func (c *cluster) file(name, text string) (string, error) {
	path := filepath.Join(c.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// process starts a program and returns the URL of its ready line.
func (c *cluster) process(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(c.ctx, filepath.Join(c.bin, name), args...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ready, done := make(chan string, 1), make(chan struct{})
	c.running, c.done = append(c.running, cmd), append(c.done, done)
	go func() {
		follow(stdout, ready)
		_ = cmd.Wait() // most are interrupted
		close(done)
	}()
	select {
	case line, ok := <-ready:
		if ok {
			return line, nil
		}
		return "", fmt.Errorf("%s ended before it was ready", name)
	case <-c.ctx.Done():
		return "", fmt.Errorf("%s was not ready in time: %w", name, c.ctx.Err())
	}
}

// follow reads to the end and hands over the URL of the ready line.
func follow(stdout io.Reader, ready chan<- string) {
	defer close(ready)
	in := bufio.NewScanner(stdout)
	told := false
	for in.Scan() {
		rest, ok := strings.CutPrefix(in.Text(), "TANDEM_READY ")
		if !ok || told {
			continue
		}
		for _, f := range strings.Fields(rest) {
			if url, ok := strings.CutPrefix(f, "url="); ok {
				told = true
				ready <- strings.TrimSuffix(url, "/")
			}
		}
	}
}

// stop ends the processes, the last one first.
func (c *cluster) stop() (err error) {
	for i := len(c.running) - 1; i >= 0; i-- {
		_ = c.running[i].Process.Signal(syscall.SIGINT)
		select {
		case <-c.done[i]:
		case <-time.After(10 * time.Second):
			_ = c.running[i].Process.Kill()
			err = errors.Join(err, fmt.Errorf("%s did not end when told to", c.running[i].Path))
		}
	}
	return err
}
