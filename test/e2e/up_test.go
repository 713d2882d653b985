//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// upYAML is a local cluster with short leases.
const upYAML = `
expose_routing_headers: true
max_num_tokens: 512
kv_cache_config: {max_tokens: 32768}
cache_transceiver_config: {lease_ms: 3000}
`

// local is a cluster that frontend up started.
type local struct{ *process }

func startUp(t *testing.T) local {
	t.Helper()
	needModel(t)
	file := writeFile(t, "up.yaml", upYAML)
	t.Setenv("TMPDIR", t.TempDir()) // a killed up cannot tidy up
	return local{start(t, "up", frontendBin, "up", "--model", modelName, "--port", "0", "-c", file)}
}

// child finds a worker's process by its role; 0 = it does not run now.
func (l local) child(role string) int {
	for _, pid := range descendants(l.pid()) {
		if strings.Contains(cmdline(pid), "--role "+role+" ") {
			return pid
		}
	}
	return 0
}

// worker makes a handle for questions to a worker's own port.
func (l local) worker(t *testing.T, role string) *process {
	t.Helper()
	var info struct {
		Lists map[string][]string `json:"server_lists"`
	}
	getJSON(t, l.url+"/cluster_info", &info)
	list := info.Lists[map[string]string{"ctx": "context", "gen": "generation"}[role]]
	if len(list) != 1 {
		t.Fatalf("/cluster_info lists %v", info.Lists)
	}
	return &process{name: role, url: "http://" + list[0]}
}

// kill ends a worker the hard way.
func (l local) kill(t *testing.T, role string) (pid int) {
	t.Helper()
	if pid = l.child(role); pid == 0 {
		t.Fatalf("no %s worker runs", role)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return pid
}

// recovers waits until the cluster answers again, with another process than dead.
func (l local) recovers(t *testing.T, role string, dead int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	s := sampleOf("", chatPath, user("What is the capital of France?"))
	var last error
	ok := eventually(startLimit, func() bool {
		r, err := ask(ctx, l.url, s.path, s.body)
		last = err
		return err == nil && r.Text == "The capital of France is Paris." && r.header.Get("X-Disagg-Path") == "ctx_gen"
	})
	if !ok {
		t.Fatalf("the cluster does not recover: %v", last)
	}
	if pid := l.child(role); pid == 0 || pid == dead {
		t.Errorf("the %s worker has the process id %d, %d was killed", role, pid, dead)
	}
}

// endless is a request that runs until somebody ends it.
func endless(stream bool) object {
	return sampleOf("", chatPath, user("Count to a thousand."), "max_tokens", 4000, "ignore_eos", true).streamed(stream)
}

// TestGenDiesInMidStream kills the gen worker under six streams.
func TestGenDiesInMidStream(t *testing.T) {
	t.Setenv("TANDEM_RESUME_BROKEN_STREAMS", "false") // else they go on at the worker that is started anew
	l := startUp(t)
	ctxWorker := l.worker(t, "ctx")
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()

	const streams = 6
	started := make(chan int, streams)
	ends := make([]error, streams)
	at := make([]time.Time, streams)
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			ends[i] = follow(ctx, l.url, 3, func() { started <- i })
			at[i] = time.Now()
			if ends[i] == nil {
				started <- i
			}
		})
	}
	for range streams {
		select {
		case <-started:
		case <-ctx.Done():
			t.Fatal("the streams do not start")
		}
	}
	dead := l.kill(t, "gen")
	killed := time.Now()
	wg.Wait()
	for i, err := range ends {
		var event *eventError
		if !errors.As(err, &event) || event.Message == "" || event.Type == "" {
			t.Errorf("stream %d ended with %v, not with an error event", i, err)
		}
		if d := at[i].Sub(killed); d > settleLimit {
			t.Errorf("stream %d learned of it after %v", i, d)
		}
	}
	waitClean(t, settleLimit, ctxWorker)
	l.recovers(t, "gen", dead)
	waitClean(t, settleLimit, ctxWorker, l.worker(t, "gen"))
}

// follow reads an endless stream; after n events with text it calls begun once.
func follow(ctx context.Context, url string, n int, begun func()) error {
	resp, err := post(ctx, url+chatPath, endless(true))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return streamOf(resp, func(a *reply) error {
		if len(a.Choices) > 0 && a.Choices[0].Delta.Content != "" {
			if n--; n == 0 {
				begun()
			}
		}
		return nil
	})
}

// TestCtxDiesInMidPrefill kills the ctx worker while it computes long prompts.
func TestCtxDiesInMidPrefill(t *testing.T) {
	l := startUp(t)
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	long := sampleOf("", chatPath, user(prose(1, 6000)), "max_tokens", 4)
	type end struct {
		r   *result
		err error
	}
	ends := make(chan end, 2)
	for _, stream := range []bool{false, true} {
		go func() {
			r, err := ask(ctx, l.url, long.path, long.streamed(stream))
			ends <- end{r, err}
		}()
	}
	waitBusy(t, l.worker(t, "ctx"))
	dead := l.kill(t, "ctx")
	for range 2 {
		e := <-ends
		var refused *statusError
		switch {
		case e.err == nil: // a retry met the new worker
			if e.r.Completion != 4 {
				t.Errorf("an answer of %d tokens after the retry", e.r.Completion)
			}
		case !errors.As(e.err, &refused):
			t.Errorf("the request ended with %v", e.err)
		case refused.status != http.StatusBadGateway && refused.status != http.StatusServiceUnavailable || refused.Message == "":
			t.Errorf("the request ended with %v", refused)
		}
	}
	l.recovers(t, "ctx", dead)
	waitClean(t, settleLimit, l.worker(t, "ctx"), l.worker(t, "gen"))
}

// TestUpEnds stops a local cluster in the ways that happen, and leaves no worker.
func TestUpEnds(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(fmt.Sprint(sig), func(t *testing.T) {
			l := startUp(t)
			family := descendants(l.pid())
			if len(family) < 2 {
				t.Fatalf("children: %v", family)
			}
			l.signal(t, sig)
			code := l.wait(t, stopLimit)
			if want := map[bool]int{true: -1, false: 0}[sig == syscall.SIGKILL]; code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			for _, pid := range family {
				if !gone(pid, settleLimit) {
					t.Errorf("worker %d (%s) still runs", pid, cmdline(pid))
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		})
	}
}
