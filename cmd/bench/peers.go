package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tandem/engine/hub"
	"tandem/test/bench/load"
)

// peer is a server that was started for a comparison.
type peer struct {
	name, url, model string // model is the file that it serves
	cmd              *exec.Cmd
	log              *os.File
}

// presets are servers that can be started by name, as NAME:MODEL.
var presets = map[string]func(ctx context.Context, f *peerFlags, path string) (*peer, error){
	"tandem":           startTandem,
	"llama-cpp-python": startLlama,
}

// peerFlags are what starting needs.
type peerFlags struct {
	python  string
	threads int
	wait    time.Duration
}

// start returns the server that an argument names: one that is there, or one of the presets, which it starts.
func (f *peerFlags) start(ctx context.Context, arg string, log io.Writer) (*peer, error) {
	kind, model, ok := strings.Cut(arg, ":")
	begin := presets[kind]
	if !ok || begin == nil {
		return &peer{name: arg, url: arg}, nil
	}
	path, err := hub.Locate(model)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", arg, err)
	}
	_, _ = fmt.Fprintf(log, "starting %s\n", arg)
	p, err := begin(ctx, f, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", arg, err)
	}
	p.name, p.model = kind, path
	return p, nil
}

// stop ends a server that was started.
func (p *peer) stop() {
	if p == nil || p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	t := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait() // it was told to end
	t.Stop()
	_ = p.log.Close()
	_ = os.Remove(p.log.Name())
}

// run starts a program whose words go to a file, from which the last are told if it fails.
func run(ctx context.Context, name string, args ...string) (*peer, error) {
	log, err := os.CreateTemp("", "bench-peer-*.log")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close(), os.Remove(log.Name()))
	}
	return &peer{cmd: cmd, log: log}, nil
}

// until polls for a condition; when it does not come, the last words of the program are the error.
func (p *peer) until(ctx context.Context, limit time.Duration, ready func() bool) error {
	deadline := time.Now().Add(limit)
	for !ready() {
		if time.Now().After(deadline) || ctx.Err() != nil || !alive(p.cmd.Process.Pid) {
			words := p.words()
			p.stop()
			return fmt.Errorf("it does not get ready; its last words: %s", words)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// alive tells whether a child runs: one that has ended is a zombie until it is waited for.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// words are the last lines of the program's output.
func (p *peer) words() string {
	data, _ := os.ReadFile(p.log.Name())
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// startTandem starts one mixed worker, from the folder of this program.
func startTandem(ctx context.Context, f *peerFlags, path string) (*peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"serve", path, "--port", "0"}
	if f.threads > 0 {
		args = append(args, "--threads", strconv.Itoa(f.threads))
	}
	p, err := run(ctx, filepath.Join(filepath.Dir(self), "engine"), args...)
	if err != nil {
		return nil, err
	}
	return p, p.until(ctx, f.wait, func() bool {
		file, err := os.Open(p.log.Name())
		if err != nil {
			return false
		}
		defer file.Close()
		for sc := bufio.NewScanner(file); sc.Scan(); {
			if rest, ok := strings.CutPrefix(sc.Text(), "TANDEM_READY url="); ok {
				p.url, _, _ = strings.Cut(rest, " ")
				return true
			}
		}
		return false
	})
}

// startLlama starts llama.cpp's server of llama-cpp-python.
func startLlama(ctx context.Context, f *peerFlags, path string) (*peer, error) {
	if err := exec.CommandContext(ctx, f.python, "-c", "import llama_cpp.server.app").Run(); err != nil {
		return nil, fmt.Errorf("%s cannot import llama_cpp.server (%w): install it with test/bench/llama-server, or name a Python that has llama-cpp-python[server] with --python", f.python, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	if err := ln.Close(); err != nil {
		return nil, err
	}
	args := []string{"-m", "llama_cpp.server", "--model", path, "--host", "127.0.0.1", "--port", port, "--n_ctx", "8192", "--interrupt_requests", "false"} // else a second request would cut the first one off
	if f.threads > 0 {
		args = append(args, "--n_threads", strconv.Itoa(f.threads), "--n_threads_batch", strconv.Itoa(f.threads))
	}
	p, err := run(ctx, f.python, args...)
	if err != nil {
		return nil, err
	}
	p.url = "http://127.0.0.1:" + port
	return p, p.until(ctx, f.wait, func() bool {
		_, err := (&load.Client{URL: p.url}).Models(ctx)
		return err == nil
	})
}

// noEnd forbids the tokens that end an answer to a server that does not know ignore_eos.
func (p *peer) noEnd(s *server) error {
	if p.name != "llama-cpp-python" || !s.prompts.IgnoreEOS {
		return nil
	}
	tok, err := openTokenizer(p.model)
	if err != nil {
		return err
	}
	bias := map[string]float64{}
	for _, id := range tok.EOS() {
		bias[strconv.Itoa(int(id))] = -100
	}
	raw, err := json.Marshal(bias)
	if err != nil {
		return err
	}
	if s.prompts.Extra == nil {
		s.prompts.Extra = map[string]json.RawMessage{}
	}
	if _, set := s.prompts.Extra["logit_bias"]; !set && len(bias) > 0 {
		s.prompts.Extra["logit_bias"] = raw
	}
	return nil
}
