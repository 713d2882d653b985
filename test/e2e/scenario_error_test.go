//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestScenario20(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{ctx: 2})
	for _, s := range r.ctx {
		s.setScript(func(c *call) { c.status(400, `{"error":{"message":"context length exceeded"}}`) })
	}
	for i, path := range []string{textPath, chatPath} {
		body := helloText
		if path == chatPath {
			body = helloChat
		}
		r.ask(t, path, body).wantError(t, http.StatusBadRequest, "context length exceeded")
		if n := len(r.ctx[0].legs()) + len(r.ctx[1].legs()); n != i+1 {
			t.Errorf("%d ctx legs after %d requests", n, i+1)
		}
	}
	wantLegs(t, r.gen[0], 0)
}

func TestScenario21(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(func(c *call) {
		if c.n == 0 {
			c.reset()
			return
		}
		ctxReply{}.script(c)
	})
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
	ids := legIDs(wantLegs(t, r.ctx[0], 2))
	if ids[0] == ids[1] {
		t.Errorf("both attempts have the id %d", ids[0])
	}
	if g := wantLegs(t, r.gen[0], 1)[0]; g.params.ID != ids[1] {
		t.Errorf("gen got %d, want the second attempt's %d", g.params.ID, ids[1])
	}
	within(t, "abort of the first attempt", func() bool { return slices.Contains(r.ctx[0].aborted(), ids[0]) })
	if n := r.count(t, "tandem_ctx_retry_requests"); n != 1 {
		t.Errorf("ctx_retry_requests is %v", n)
	}
}

func TestScenario22(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{ctx: 2})
	r.ctx[0].kill()
	for range 3 {
		a := r.ask(t, textPath, helloText)
		a.wantOK(t, "ABC")
		a.wantRoute(t, "ctx_gen", r.ctx[1].id, r.gen[0].id)
	}
}

func TestScenario23(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{gen: 2, yaml: "resume_broken_streams: false"})
	for _, s := range r.gen {
		s.setScript(func(c *call) {
			c.send(events(textChunk(c.leg, "A")))
			c.wait(50 * time.Millisecond)
			c.reset()
		})
	}
	a := r.ask(t, textPath, strings.Replace(helloText, "}", `,"stream":true}`, 1))
	if len(a.events) != 2 || !strings.Contains(a.events[0], `"text":"A"`) || !strings.HasPrefix(a.events[1], `{"error":`) {
		t.Errorf("events %q", a.events)
	}
	if a.err == nil {
		t.Error("the body ended as a complete one does")
	}
	if n := len(r.gen[0].legs()) + len(r.gen[1].legs()); n != 1 {
		t.Errorf("%d gen legs, want 1", n)
	}
}

func TestScenario24(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{gen: 2})
	r.gen[0].setScript(func(c *call) { c.status(503, `{"error":{"message":"full"}}`) })
	a := r.ask(t, textPath, helloText)
	a.wantOK(t, "ABC")
	a.wantRoute(t, "ctx_gen", r.ctx[0].id, r.gen[1].id)
	c := wantLegs(t, r.ctx[0], 1)[0]
	if ids := append(legIDs(r.gen[0].legs()), legIDs(r.gen[1].legs())...); !slices.Equal(ids, []int64{c.params.ID, c.params.ID}) {
		t.Errorf("gen legs %d of the hand-over %d", ids, c.params.ID)
	}
}

func TestScenario25(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{gen: 2})
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
	before := len(r.ctx[0].legs())
	for _, s := range r.gen {
		s.kill()
	}
	// A probe sees that nothing listens there; until it ran, a client may wait for a ctx leg in vain.
	within(t, "not ready", func() bool { return healthOf(r.url) == http.StatusServiceUnavailable })
	before = max(before, len(r.ctx[0].legs()))
	begin := time.Now()
	r.ask(t, textPath, helloText).wantError(t, http.StatusServiceUnavailable, "service_unavailable")
	if took := time.Since(begin); took > noWait {
		t.Errorf("503 took %v", took)
	}
	wantLegs(t, r.ctx[0], before)
	for _, s := range r.gen {
		s.restart(t)
	}
	within(t, "ready again", func() bool { return healthOf(r.url) == http.StatusOK })
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
}

// healthOf is the status of /health, 0 if there is none.
func healthOf(url string) int {
	resp, err := client.Get(url + "/health")
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestWorkersThatMisbehave has what lies between the scenarios: whatever a
// worker sends, the client gets an answer or a clean error, and nothing stays.
func TestWorkersThatMisbehave(t *testing.T) {
	t.Parallel()
	patient := newRig(t, rigOf{yaml: "disagg_no_retry: true"})
	hasty := newRig(t, rigOf{yaml: "request_timeout_sec: 2\nadmission_timeout_sec: 1\nstream_idle_timeout_sec: 1\ndisagg_no_retry: true"})
	stream := strings.Replace(helloText, "}", `,"stream":true}`, 1)
	body := func(text string) script {
		return func(c *call) { c.status(200, text) }
	}
	for _, w := range []struct {
		name     string
		ctx, gen script
		status   int // of a whole answer; the stream of a broken gen may have begun
	}{
		{"ctx 500", func(c *call) { c.status(500, `{"error":{"message":"boom"}}`) }, nil, 502},
		{"ctx 401", func(c *call) { c.status(401, `{"error":{"message":"who are you"}}`) }, nil, 502},
		{"ctx 429", func(c *call) { c.status(429, `{"error":{"message":"busy"}}`) }, nil, 429},
		{"ctx no JSON", body(`hello`), nil, 502},
		{"ctx empty", body(``), nil, 502},
		{"ctx no choices", body(`{"choices":[]}`), nil, 502},
		{"ctx two choices", body(`{"choices":[{"finish_reason":"not_finished"},{}]}`), nil, 502},
		{"ctx without params", body(`{"choices":[{"index":0,"finish_reason":"not_finished","text":"A"}]}`), nil, 502},
		{"ctx cancelled", ctxReply{finish: "cancelled"}.script, nil, 499},
		{"ctx error", ctxReply{finish: "error"}.script, nil, 502},
		{"ctx streams", func(c *call) { c.send(events("{}")) }, nil, 502},
		{"ctx hangs", func(c *call) { c.wait(time.Minute) }, nil, 504},
		{"ctx half a reply", func(c *call) { c.send(`{"choices":[{"index":`); c.reset() }, nil, 502},
		{"gen 422", nil, func(c *call) { c.status(422, `{"error":{"message":"bad template"}}`) }, 422},
		{"gen 500", nil, func(c *call) { c.status(500, `{"error":{"message":"boom"}}`) }, 502},
		{"gen hangs", nil, func(c *call) { c.wait(time.Minute) }, 504},
		{"gen no JSON", nil, body(`hello`), 502},
		{"gen resets", nil, func(c *call) { c.reset() }, 502},
		{"gen stops within an event", nil, func(c *call) { c.send(`data: {"choices":[{"index":0,"te`) }, 502},
	} {
		r := patient
		if w.status == http.StatusGatewayTimeout {
			r = hasty
		}
		r.ctx[0].setScript(ctxReply{}.script)
		r.gen[0].setScript(genReply{}.script)
		if w.ctx != nil {
			r.ctx[0].setScript(w.ctx)
		}
		if w.gen != nil {
			r.gen[0].setScript(w.gen)
		}
		for _, b := range []string{helloText, stream} {
			a := r.ask(t, textPath, b)
			if a.status != w.status || a.body.Error == nil {
				t.Errorf("%s: status %d, %v, %s; want %d", w.name, a.status, a.err, a.raw, w.status)
			}
			if strings.Contains(a.raw, "10.0.0.1") {
				t.Errorf("%s: the client was told an address: %s", w.name, a.raw)
			}
			within(t, w.name+": nothing pinned", func() bool { return r.ctx[0].clean() && r.gen[0].clean() })
		}
		if len(r.open(t)) > 0 && !eventually(settleLimit, func() bool { return len(r.open(t)) == 0 }) {
			t.Errorf("%s: open: %q", w.name, r.open(t))
		}
		// A worker that was suspected is looked at before it serves again.
		within(t, w.name+": ready again", func() bool { return healthOf(r.url) == http.StatusOK })
	}
}

// TestStreamCutAnywhere cuts a gen stream at every byte: the pieces give the
// same answer, and a stream that ends there is an error and no short answer.
func TestStreamCutAnywhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOf{yaml: "disagg_no_retry: true"})
	var whole string
	r.gen[0].setScript(func(c *call) {
		whole = genReply{usage: ctxUsage}.stream(c.leg)
		c.send(whole)
	})
	want := r.ask(t, chatPath, helloChat).raw
	step := 7
	for at := 1; at < len(whole); at += step {
		r.gen[0].setScript(func(c *call) { c.send(whole, at) })
		if got := r.ask(t, chatPath, helloChat); got.raw != want || got.err != nil {
			t.Fatalf("cut at %d: %v\n%s\nwant\n%s", at, got.err, got.raw, want)
		}
	}
	for at := 1; at < strings.Index(whole, "data: [DONE]"); at += 5 * step {
		r.gen[0].setScript(func(c *call) {
			c.send(whole[:at])
			c.reset()
		})
		got := r.ask(t, chatPath, helloChat)
		complete := strings.HasSuffix(whole[:at], "\n\n")
		last := fmt.Sprint(got.events)
		if strings.Contains(last, "[DONE]") || !strings.Contains(got.raw, `"error"`) || got.err == nil && got.status == http.StatusOK {
			t.Fatalf("ended at %d (whole event: %t): status %d, %v, %s", at, complete, got.status, got.err, got.raw)
		}
		within(t, "ready again", func() bool { return healthOf(r.url) == http.StatusOK })
	}
}

// TestEventsComeAtOnce sends an event, with something behind it that is no
// event yet or none for clients, and waits until the client has it.
func TestEventsComeAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOf{})
	seen := make(chan string, 8)
	r.gen[0].setScript(func(c *call) {
		for i, behind := range []string{"", ": ids 7\n\n", "\n\n", "data: {\"choi"} {
			c.send(events(textChunk(c.leg, "A")) + events(textChunk(c.leg, fmt.Sprint("B", i))) + behind)
			for _, want := range []string{"A", fmt.Sprint("B", i)} {
				select {
				case got := <-seen:
					if !strings.Contains(got, `"text":"`+want+`"`) {
						t.Errorf("the client got %s, want %s", got, want)
					}
				case <-time.After(settleLimit):
					t.Errorf("%s with %q behind it did not come", want, behind)
					return
				}
			}
		}
		c.send("ces\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})
	resp, err := client.Post(r.url+textPath, "application/json", strings.NewReader(strings.Replace(helloText, "}", `,"stream":true}`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	last := ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			last = lines.Text()
			seen <- last
		}
	}
	if last != "data: [DONE]" {
		t.Errorf("the last event is %s", last)
	}
}
