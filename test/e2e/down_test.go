//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net/http"
	"syscall"
	"testing"
)

// refusal sends a request that must be refused and returns how.
func refusal(t *testing.T, p *process) *statusError {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	s := sampleOf("", chatPath, user("Hello!"), "max_tokens", 4)
	_, err := ask(ctx, p.url, s.path, s.body)
	var refused *statusError
	if !errors.As(err, &refused) || refused.Message == "" || refused.Type == "" {
		t.Fatalf("%s answers %v, not with an error object", p.name, err)
	}
	return refused
}

func health(t *testing.T, p *process) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/health", nil)
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestNoGen kills the only gen worker for good: at first requests fail with
// 502, once the loss is known with 503, and then ctx computes nothing.
func TestNoGen(t *testing.T) {
	c := startCluster(t, workerConfig{}, "")
	normal(t, c.url, 1)
	c.gen.signal(t, syscall.SIGKILL)
	c.gen.wait(t, stopLimit)
	if e := refusal(t, c.process); e.status != http.StatusBadGateway && e.status != http.StatusServiceUnavailable {
		t.Errorf("status %d: %s", e.status, e.Message)
	}
	waitClean(t, settleLimit, c.ctx) // long before the lease of a minute
	if !eventually(settleLimit, func() bool { return health(t, c.process) == http.StatusServiceUnavailable }) {
		t.Fatal("/health does not tell that gen is gone")
	}
	before := get(t, c.ctx.url+"/metrics")
	e := refusal(t, c.process)
	if e.status != http.StatusServiceUnavailable || e.header.Get("Retry-After") == "" || e.Type != "service_unavailable" {
		t.Errorf("status %d, %s, Retry-After %q", e.status, e.Type, e.header.Get("Retry-After"))
	}
	const name = `tandem_batch_tokens_total{kind="prefill"}`
	if was, is := metric(before, name), metric(get(t, c.ctx.url+"/metrics"), name); was == "" || was != is {
		t.Errorf("ctx worked for a refused request: %s was %q, is %q", name, was, is)
	}
}

// TestWorkerDrains sends SIGTERM to a worker in mid-stream: it refuses new
// requests, finishes the running one, and ends with 0.
func TestWorkerDrains(t *testing.T) { drains(t, startWorker(t, "mixed", workerConfig{})) }

// TestFrontendDrains does the same with a frontend.
func TestFrontendDrains(t *testing.T) {
	c := startCluster(t, workerConfig{}, "")
	drains(t, c.process)
	waitClean(t, settleLimit, c.ctx, c.gen)
}

func drains(t *testing.T, p *process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	s := sampleOf("", chatPath, user("Count to fifty."), "max_tokens", 400, "ignore_eos", true)
	resp, err := post(ctx, p.url+s.path, s.streamed(true))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	tokens, signalled := 0, false
	err = streamOf(resp, func(a *reply) error {
		for i := range a.Choices {
			tokens += len(a.Choices[i].TokenIDs)
		}
		if tokens > 0 && !signalled {
			signalled = true
			p.signal(t, syscall.SIGTERM)
			if !eventually(settleLimit, func() bool { return health(t, p) == http.StatusServiceUnavailable }) {
				t.Errorf("%s: /health is not 503 while draining", p.name)
			}
			if e := refusal(t, p); e.status != http.StatusServiceUnavailable || e.header.Get("Retry-After") == "" {
				t.Errorf("%s: status %d while draining, Retry-After %q", p.name, e.status, e.header.Get("Retry-After"))
			}
		}
		return nil
	})
	if err != nil || tokens != 400 {
		t.Errorf("%s: the stream ended after %d tokens with %v", p.name, tokens, err)
	}
	if code := p.wait(t, stopLimit); code != 0 {
		t.Errorf("%s: exit code %d", p.name, code)
	}
}

// TestGraceEnds lets the grace pass: what still runs ends with an error event.
func TestGraceEnds(t *testing.T) {
	t.Run("worker", func(t *testing.T) {
		t.Setenv("TANDEM_SHUTDOWN_GRACE_SEC", "1")
		outlives(t, startWorker(t, "mixed", workerConfig{}))
	})
	t.Run("frontend", func(t *testing.T) {
		c := startCluster(t, workerConfig{}, "shutdown_grace_sec: 1\n")
		outlives(t, c.process)
		waitClean(t, settleLimit, c.ctx, c.gen)
	})
}

func outlives(t *testing.T, p *process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	err := follow(ctx, p.url, 1, func() { p.signal(t, syscall.SIGTERM) })
	var event *eventError
	if !errors.As(err, &event) || event.Message == "" {
		t.Errorf("%s: a stream beyond the grace ended with %v", p.name, err)
	}
	if code := p.wait(t, stopLimit); code != 0 {
		t.Errorf("%s: exit code %d", p.name, code)
	}
}
