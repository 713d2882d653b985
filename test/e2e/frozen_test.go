//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net/http"
	"syscall"
	"testing"
	"time"

	"tandem/serve/openai"
)

// TestFrozenGen stops the gen worker's process without ending it, so that its
// connections stay open and silent. Streams must end with an error event, new
// requests with an error status, and after it thaws nothing may be left.
func TestFrozenGen(t *testing.T) {
	const silence = 2 * time.Second
	c := startCluster(t, workerConfig{lease: 3 * time.Second}, "stream_idle_timeout_sec: 2\nrequest_timeout_sec: 8\nhandoff_lease_sec: 4\n")
	normal(t, c.url, 2)
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	thaw := func() { c.gen.signal(t, syscall.SIGCONT) }
	defer thaw()

	var frozen time.Time
	err := follow(ctx, c.url, 3, func() {
		frozen = time.Now()
		c.gen.signal(t, syscall.SIGSTOP)
	})
	var event *eventError
	if !errors.As(err, &event) {
		t.Errorf("the stream ended with %v", err)
	}
	if d := time.Since(frozen); d > silence+20*time.Second {
		t.Errorf("the stream ended after %v", d)
	}
	e := refusal(t, c.process)
	switch e.status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		t.Errorf("status %d while gen is frozen: %s", e.status, e.Message)
	}
	waitClean(t, settleLimit, c.ctx)
	thaw()
	if !eventually(settleLimit, func() bool { return health(t, c.process) == http.StatusOK }) {
		t.Fatal("the frontend is not ready again")
	}
	waitClean(t, settleLimit, c.ctx, c.gen)
	normal(t, c.url, 4)
	waitClean(t, settleLimit, c.ctx, c.gen)
	idleGauges(t, c.process)
}

// TestInternalKey signs what frontend and workers tell each other; a worker with
// another key serves nobody, and says so as an error of the inside.
func TestInternalKey(t *testing.T) {
	const key = "internal_request_auth_key: 0123456789abcdef\n"
	t.Setenv("TANDEM_INTERNAL_REQUEST_AUTH_KEY", "0123456789abcdef")
	ctxWorker, gen := startWorker(t, "ctx", workerConfig{}), startWorker(t, "gen", workerConfig{})
	t.Setenv("TANDEM_INTERNAL_REQUEST_AUTH_KEY", "another key of 32 characters, oh")
	stranger := startWorker(t, "gen", workerConfig{})
	t.Setenv("TANDEM_INTERNAL_REQUEST_AUTH_KEY", "0123456789abcdef")
	good := startFrontend(t, []*process{ctxWorker}, []*process{gen}, key)
	bad := startFrontend(t, []*process{ctxWorker}, []*process{stranger}, key)

	normal(t, good.url, 2)
	if e := refusal(t, bad); e.status != http.StatusBadGateway || e.Type != "internal_auth_error" {
		t.Errorf("with another key: status %d, %s: %s", e.status, e.Type, e.Message)
	}
	// Unsigned protected fields are refused even from this machine.
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	s := sampleOf("", chatPath, user("Hello!"), "max_tokens", 4)
	params, ids := contextLeg(ctx, t, ctxWorker, s, 1<<50)
	_, err := generationLeg(ctx, gen, s, params, ids)
	var refused *statusError
	if !errors.As(err, &refused) || refused.status != http.StatusUnauthorized {
		t.Errorf("an unsigned gen leg: %v", err)
	}
	abort := object{"disagg_request_id": int64(1 << 50)}
	if _, err := post(ctx, ctxWorker.url+"/disagg/abort", abort); !errors.As(err, &refused) || refused.status != http.StatusUnauthorized {
		t.Errorf("an unsigned abort: %v", err)
	}
	signature := openai.Key("0123456789abcdef").SignAbort(1 << 50)
	if _, err := post(ctx, ctxWorker.url+"/disagg/abort", abort, openai.HeaderAuth, signature); err != nil {
		t.Error(err)
	}
	waitClean(t, settleLimit, ctxWorker, gen, stranger)
}
