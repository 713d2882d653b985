package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tandem/test/bench/cluster"
	"tandem/test/bench/page"
)

// target is something that answers chats.
type target struct {
	name    string
	url     string
	auth    string
	process *cluster.Process // nil = the direct one

	paced rounds
	burst rounds
	took  float64 // processor seconds of the bursts
	bytes float64 // of memory for one more open stream
	all   float64 // bytes of memory with open streams
	open  int
}

// startStubs runs this program as the workers and returns their addresses.
func startStubs() (addrs map[string]string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, "-stub")
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, nil, fmt.Errorf("start stubs: %w", err)
	}
	stop = func() { in.Close(); _ = cmd.Wait() }
	addrs = map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != ""; {
		role, addr, _ := strings.Cut(lines.Text(), " ")
		addrs[role] = addr
	}
	if len(addrs) != len(roles) {
		stop()
		return nil, nil, errors.New("the stubs did not start")
	}
	return addrs, stop, nil
}

// launch starts a proxy and waits until it answers chats.
func launch(ctx context.Context, name, auth string, port int, env []string, bin string, args ...string) (*target, error) {
	p, err := cluster.Start(ctx, env, bin, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t := &target{name: name, auth: auth, url: "http://127.0.0.1:" + strconv.Itoa(port), process: p}
	l := t.loader()
	err = p.Until(ctx, time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := l.chat(ctx, "ready", 4, nil)
		return err == nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

func (t *target) loader() *loader {
	l := newLoader(t.url)
	l.auth = t.auth
	return l
}

// usage sums processor seconds and resident bytes of the process group.
func (t *target) usage() (seconds, bytes float64) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		if len(f) < 22 || f[2] != strconv.Itoa(t.process.Group()) {
			continue
		}
		const hz = 100 // USER_HZ, the same on all Linux systems that Go runs on
		user, _ := strconv.ParseFloat(f[11], 64)
		system, _ := strconv.ParseFloat(f[12], 64)
		pages, _ := strconv.ParseFloat(f[21], 64)
		seconds += (user + system) / hz
		bytes += pages * float64(os.Getpagesize())
	}
	return seconds, bytes
}

// freePort finds a port for a proxy that must be told one.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("port: %w", err)
	}
	defer ln.Close()
	_, text, _ := net.SplitHostPort(ln.Addr().String())
	return strconv.Atoi(text)
}

// launcher starts one proxy in front of the stubs.
type launcher struct {
	name  string
	start func(ctx context.Context, dir string, addrs map[string]string, port int) (*target, error)
}

// tandem starts our frontend over the stubs of two roles; the same one twice is a mixed worker.
func tandem(bin, name, prefill, decode string) launcher {
	return launcher{name, func(ctx context.Context, dir string, addrs map[string]string, port int) (*target, error) {
		file := filepath.Join(dir, prefill+".yaml")
		yaml := fmt.Sprintf("hostname: 127.0.0.1\ncontext_servers: {urls: [%q]}\ngeneration_servers: {urls: [%q]}\n", addrs[prefill], addrs[decode])
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			return nil, fmt.Errorf("configuration of %s: %w", name, err)
		}
		return launch(ctx, name, "", port, nil, bin, "serve", "-c", file, "--port", strconv.Itoa(port), "--log-level", "warn")
	}}
}

// named adds the version that is installed.
func named(name, bin string) string { return strings.TrimSpace(name + " " + page.Version(bin)) }

func sglang(bin string) launcher {
	name := named("sglang-router", bin)
	return launcher{name, func(ctx context.Context, _ string, addrs map[string]string, port int) (*target, error) {
		metrics, err := freePort()
		if err != nil {
			return nil, err
		}
		return launch(ctx, name, "", port, nil, bin, "launch", "--worker-urls", "http://"+addrs["mixed"], "--host", "127.0.0.1",
			"--port", strconv.Itoa(port), "--policy", "round_robin", "--prometheus-port", strconv.Itoa(metrics), "--log-level", "warn",
			"--max-concurrent-requests", "8192", "--queue-size", "8192")
	}}
}

func litellm(bin string) launcher {
	name := named("litellm", bin)
	return launcher{name, func(ctx context.Context, dir string, addrs map[string]string, port int) (*target, error) {
		file := filepath.Join(dir, "litellm.yaml")
		yaml := fmt.Sprintf("model_list:\n- model_name: %s\n  litellm_params: {model: openai/%s, api_base: \"http://%s/v1\", api_key: none}\n"+
			"litellm_settings: {num_retries: 0, telemetry: false}\ngeneral_settings: {master_key: sk-bench}\n", modelName, modelName, addrs["mixed"])
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			return nil, fmt.Errorf("configuration of %s: %w", name, err)
		}
		env := []string{"LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"}
		return launch(ctx, name, "sk-bench", port, env, bin, "--config", file, "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--num_workers", "1")
	}}
}

// live tells whether something answers at an address.
func live(url string) bool {
	resp, err := http.Get(url + "/health") //nolint:noctx,gosec // our own stub
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
