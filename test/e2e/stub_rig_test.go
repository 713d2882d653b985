//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// scenario marks an acceptance scenario; they run beside each other.
func scenario(t *testing.T) {
	t.Helper()
	t.Parallel()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// rig is a frontend over stub workers.
type rig struct {
	*process
	farm     *farm
	ctx, gen []*stub
}

// rigOf is what tests vary: numbers of stubs, router blocks, and more YAML.
type rigOf struct {
	ctx, gen             int // 0 = 1
	ctxRouter, genRouter string
	yaml                 string
	before               func(*rig) // with the stubs, before the frontend starts
	noRetries            bool
	busy                 bool   // the end of the test is no idle moment
	bin                  string // of the frontend, empty = the product's
}

func newRig(t *testing.T, o rigOf) *rig {
	t.Helper()
	r := &rig{farm: &farm{}}
	for i := range max(1, o.ctx) {
		r.ctx = append(r.ctx, r.farm.newStub(t, "ctx"+strconv.Itoa(i), "context"))
	}
	for i := range max(1, o.gen) {
		r.gen = append(r.gen, r.farm.newStub(t, "gen"+strconv.Itoa(i), "generation"))
	}
	if o.before != nil {
		o.before(r)
	}
	retries := 1
	if o.noRetries {
		retries = 0
	}
	file := writeFile(t, "cluster.yaml", fmt.Sprintf(`
hostname: 127.0.0.1
expose_routing_headers: true
max_retries: %d
context_servers: {urls: [%s], router: %s}
generation_servers: {urls: [%s], router: %s}
%s
`, retries, ids(r.ctx), or(o.ctxRouter, "{}"), ids(r.gen), or(o.genRouter, "{}"), o.yaml))
	r.process = start(t, "frontend", or(o.bin, frontendBin), "serve", "--port", "0", "-c", file)
	t.Cleanup(func() { // before the frontend is stopped
		if !o.busy {
			r.waitIdle(t)
		}
	})
	return r
}

func ids(stubs []*stub) string {
	var list []string
	for _, s := range stubs {
		list = append(list, strconv.Quote(s.id))
	}
	return strings.Join(list, ", ")
}

// waitIdle waits until the frontend keeps nothing open.
func (r *rig) waitIdle(t *testing.T) {
	t.Helper()
	select {
	case <-r.done:
		return
	default:
	}
	var open []string
	if !eventually(settleLimit, func() bool { open = r.open(t); return len(open) == 0 }) {
		t.Errorf("the idle frontend says %q", open)
	}
}

// open lists the gauges of what is open and should be zero.
func (r *rig) open(t *testing.T) (open []string) {
	t.Helper()
	for line := range strings.Lines(get(t, r.url+"/metrics")) {
		for _, name := range []string{"tandem_handoffs_open", "tandem_reservations_open", "tandem_inflight_requests"} {
			if strings.HasPrefix(line, name) && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				open = append(open, strings.TrimSpace(line))
			}
		}
	}
	return open
}

// count reads a counter of /metrics, 0 if it is not there.
func (r *rig) count(t *testing.T, name string) float64 {
	t.Helper()
	n, _ := strconv.ParseFloat(metric(get(t, r.url+"/metrics"), name), 64)
	return n
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	raw    string
	body   reply
	events []string // data of a stream's events
	err    error    // how reading ended
}

const (
	helloText = `{"model":"tiny","prompt":"hello","max_tokens":3}`
	helloChat = `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":8,"stream":true,"stream_options":{"include_usage":true}}`
)

func (r *rig) ask(t *testing.T, path, body string, headers ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	return send(ctx, r.url+path, body, headers...)
}

// send posts a body and reads the answer to its end, whatever it is.
func send(ctx context.Context, url, body string, headers ...string) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	data, err := io.ReadAll(resp.Body)
	a.raw, a.err = string(data), err
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		_ = json.Unmarshal(data, &a.body)
		return a
	}
	lines := bufio.NewScanner(strings.NewReader(a.raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			a.events = append(a.events, d)
		}
	}
	return a
}

// wantOK checks a whole answer's status and text.
func (a answer) wantOK(t *testing.T, text string) {
	t.Helper()
	if a.status != http.StatusOK || a.err != nil || len(a.body.Choices) != 1 || a.body.Choices[0].Text+a.body.Choices[0].Message.Content != text {
		t.Fatalf("status %d, %v, %s; want text %q", a.status, a.err, a.raw, text)
	}
}

// wantUsage checks the counts of a whole answer.
func (a answer) wantUsage(t *testing.T, prompt, completion, cached int) {
	t.Helper()
	u := a.body.Usage
	if u == nil || u.PromptTokens != prompt || u.CompletionTokens != completion || u.TotalTokens != prompt+completion || u.Details.Cached != cached {
		t.Errorf("usage in %s; want %d/%d cached %d", a.raw, prompt, completion, cached)
	}
}

// wantError checks a failed answer: its status, and what its body says.
func (a answer) wantError(t *testing.T, status int, parts ...string) {
	t.Helper()
	if a.status != status || a.body.Error == nil {
		t.Fatalf("status %d, %v, %s; want an error %d", a.status, a.err, a.raw, status)
	}
	for _, p := range parts {
		if !strings.Contains(a.raw, p) {
			t.Errorf("%s lacks %q", a.raw, p)
		}
	}
	if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && a.header.Get("Retry-After") == "" {
		t.Errorf("%d without Retry-After", status)
	}
}

// wantParam checks a 400 that blames a field.
func (a answer) wantParam(t *testing.T, param string) {
	t.Helper()
	a.wantError(t, http.StatusBadRequest)
	if p := a.body.Error.Param; p == nil || *p != param {
		t.Errorf("%s does not blame %s", a.raw, param)
	}
}

// wantRoute checks the routing headers; "-" is a leg that was not used.
func (a answer) wantRoute(t *testing.T, path, ctx, gen string) {
	t.Helper()
	h := a.header
	got := [3]string{h.Get("X-Disagg-Path"), h.Get("X-Disagg-Ctx-Server"), h.Get("X-Disagg-Gen-Server")}
	if got != [3]string{path, ctx, gen} {
		t.Errorf("routing headers %q, want %s %s %s", got, path, ctx, gen)
	}
}

// legIDs are the attempts' ids.
func legIDs(legs []leg) (ids []int64) {
	for i := range legs {
		ids = append(ids, legs[i].params.ID)
	}
	return ids
}

// wantLegs checks how many legs a stub got and returns them.
func wantLegs(t *testing.T, s *stub, n int) []leg {
	t.Helper()
	legs := s.legs()
	if len(legs) != n {
		t.Fatalf("%s got %d legs, want %d", s.name, len(legs), n)
	}
	return legs
}

// within fails unless ok holds before a busy machine would have managed it, too.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !eventually(settleLimit, ok) {
		t.Errorf("not within %v: %s", settleLimit, what)
	}
}
