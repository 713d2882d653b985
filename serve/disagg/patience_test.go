package disagg

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// A client's own limit shortens the configured one, reaches the workers, and ends what takes longer.
func TestClientsLimitTheirRequests(t *testing.T) {
	r := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.RequestTimeout = 20 * time.Second }))
	told := func(limit string) int {
		t.Helper()
		r.post(completions, hello, openai.HeaderTimeout, limit).wantOK(t, "ABC")
		list := r.ctx[0].requests()
		ms, err := strconv.Atoi(list[len(list)-1].header.Get(openai.HeaderDeadline))
		if err != nil {
			t.Fatal(err)
		}
		return ms
	}
	if ms := told("9000"); ms > 9000 || ms < 1000 {
		t.Errorf("the worker was told %d ms", ms)
	}
	if ms := told("90000"); ms > 20000 || ms <= 9000 {
		t.Errorf("beyond the configuration: %d ms", ms)
	}
	if ms := told("9000000000000000000"); ms > 20000 || ms <= 9000 {
		t.Errorf("far beyond the configuration: %d ms", ms)
	}
	for _, bad := range []string{"0", "-1", "1.5", "soon"} {
		r.post(completions, hello, openai.HeaderTimeout, bad).wantError(t, 400, openai.HeaderTimeout)
	}
	began := make(chan struct{}, 2)
	slow := newRig(t, []*stub{newStub(t, discovery.Context, block(began))},
		[]*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(func(c *Config) { c.MaxInflight, c.MaxQueued = 1, 8 }))
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan answer, 1)
	go func() { first <- slow.postCtx(ctx, completions, hello) }()
	<-began
	slow.post(completions, hello, openai.HeaderTimeout, "50").wantError(t, 503)
	leave()
	<-first
	if n := len(slow.ctx[0].requests()); n != 1 {
		t.Errorf("%d prefills; the one that was late in the queue must cost none", n)
	}
	for slow.s.Snapshot().Inflight > 0 { // its place is free again
		time.Sleep(time.Millisecond)
	}
	slow.post(completions, hello, openai.HeaderTimeout, "100").wantError(t, http.StatusGatewayTimeout, openai.HeaderTimeout)
}
