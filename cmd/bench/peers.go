package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tandem/engine/hub"
	"tandem/test/bench/cluster"
)

// peer is a server that was started for a comparison.
type peer struct {
	name, url, model string           // model is the file that it serves
	process          *cluster.Process // nil = it was there
}

// presets are servers that can be started by name, as NAME:MODEL.
var presets = map[string]func(ctx context.Context, f *peerFlags, path string) (*peer, error){
	"tandem":           startTandem,
	"llama-server":     startLlamaServer,
	"llama-cpp-python": startPython,
}

// peerFlags are what starting needs.
type peerFlags struct {
	python     string // with llama-cpp-python
	server     string // program llama-server
	serverArgs string
	threads    int
	wait       time.Duration
}

// start returns the server that an argument names: one that is there, or one of the presets, which it starts.
func (f *peerFlags) start(ctx context.Context, arg string, log io.Writer) (*peer, error) {
	kind, model, ok := strings.Cut(arg, ":")
	begin := presets[kind]
	if !ok || begin == nil {
		if _, err := strconv.ParseUint(model, 10, 16); ok && err != nil && !strings.Contains(arg, "/") && !strings.Contains(arg, "]") {
			return nil, fmt.Errorf("%s: want the URL of a server, or one of %s before a model", arg, strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
		}
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
	if p != nil {
		p.process.Stop()
	}
}

// startTandem starts one mixed worker, from the folder of this program.
func startTandem(ctx context.Context, f *peerFlags, path string) (*peer, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	w, err := cluster.Worker(ctx, cluster.Options{Bin: bin, Model: path, Threads: f.threads, Wait: f.wait})
	if err != nil {
		return nil, err
	}
	return &peer{url: w.URL, process: w}, nil
}

// programs is the folder of this program, where the others are.
func programs() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Dir(self), nil
}

// startPython starts the server of llama-cpp-python.
func startPython(ctx context.Context, f *peerFlags, path string) (*peer, error) {
	if err := exec.CommandContext(ctx, f.python, "-c", "import llama_cpp.server.app").Run(); err != nil {
		return nil, fmt.Errorf("%s cannot import llama_cpp.server (%w): install it with test/bench/llama-cpp-python, or name a Python that has llama-cpp-python[server] with --python", f.python, err)
	}
	p, err := cluster.Foreign(ctx, f.wait, f.python, func(port string) []string {
		args := []string{"-m", "llama_cpp.server", "--model", path, "--host", "127.0.0.1", "--port", port, "--n_ctx", "8192", "--interrupt_requests", "false"} // else a second request would cut the first one off
		if f.threads > 0 {
			args = append(args, "--n_threads", strconv.Itoa(f.threads), "--n_threads_batch", strconv.Itoa(f.threads))
		}
		return args
	})
	if err != nil {
		return nil, err
	}
	return &peer{url: p.URL, process: p}, nil
}

// startLlamaServer starts llama.cpp's own server.
func startLlamaServer(ctx context.Context, f *peerFlags, path string) (*peer, error) {
	if _, err := exec.LookPath(f.server); err != nil {
		return nil, fmt.Errorf("%w: install it with test/bench/llama-server, or name the program with --llama-server", err)
	}
	p, err := cluster.LlamaServer{Program: f.server, Model: path, Threads: f.threads, Args: strings.Fields(f.serverArgs), Wait: f.wait}.Start(ctx)
	if err != nil {
		return nil, err
	}
	return &peer{url: p.URL, process: p}, nil
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
