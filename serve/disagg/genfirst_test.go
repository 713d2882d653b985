package disagg

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

type legScript = func(int, seen, http.ResponseWriter, *http.Request)

// arrivals are the gen legs that have reached a worker, by id.
type arrivals struct {
	mu   sync.Mutex
	came map[int64]chan struct{}
}

func (a *arrivals) of(id int64) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.came[id] == nil {
		a.came[id] = make(chan struct{})
	}
	return a.came[id]
}

// gen notes a leg that came.
func (a *arrivals) gen(then legScript) legScript {
	return func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if came := a.of(q.params.DisaggRequestID); !isClosed(came) { // one leg of a request runs at a time
			close(came)
		}
		then(n, q, w, r)
	}
}

// ctx lets a script wait for the gen leg of its request. Both legs are on their way at once, over two connections: without
// this the ctx worker may have answered, and the gen leg be cut, before the gen worker has seen anything.
func (a *arrivals) ctx(then legScript) legScript {
	return func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if strings.Contains(string(q.body["disaggregated_params"]), openai.GenerationFirst) {
			after(a.of(q.params.DisaggRequestID), then)(n, q, w, r)
			return
		}
		then(n, q, w, r)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// early makes a generation-first rig whose ctx workers act when the gen leg has come.
func early(t *testing.T, ctx, gen []legScript, opts ...rigOption) *rig {
	t.Helper()
	a := &arrivals{came: map[int64]chan struct{}{}}
	wrap := func(list []legScript, with func(legScript) legScript) (out []legScript) {
		for _, f := range list {
			out = append(out, with(f))
		}
		return out
	}
	return anyOrder(t, wrap(ctx, a.ctx), wrap(gen, a.gen), opts...)
}

// anyOrder makes a generation-first rig whose workers act at once.
func anyOrder(t *testing.T, ctx, gen []legScript, opts ...rigOption) *rig {
	t.Helper()
	var cs, gs []*stub
	for _, f := range ctx {
		s := newStub(t, discovery.Context, f)
		s.info.Disagg = []byte(`{"ctx_info_endpoint":["tcp://10.0.0.1:5000","tcp://10.0.0.1:5001"],"encoded_opaque_state":"dGVtcGxhdGU=","ctx_dp_rank":3}`)
		cs = append(cs, s)
	}
	for _, f := range gen {
		gs = append(gs, newStub(t, discovery.Generation, f))
	}
	opts = append([]rigOption{withConfig(func(c *Config) { c.GenerationFirst = true })}, opts...)
	return newRig(t, cs, gs, opts...)
}

// after lets a script wait for a channel or the end of its request.
func after(ready <-chan struct{}, then legScript) legScript {
	return func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		select {
		case <-ready:
			then(n, q, w, r)
		case <-r.Context().Done():
		}
	}
}

// never answers until its request ends.
func never(ended chan<- struct{}) legScript {
	return func(_ int, _ seen, _ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		if ended != nil {
			ended <- struct{}{}
		}
	}
}

func aborted(t *testing.T, s *stub) int64 {
	t.Helper()
	select {
	case id := <-s.aborts:
		return id
	case <-time.After(30 * time.Second):
		t.Fatal("no abort came")
		return 0
	}
}

func status(code int, text string) legScript {
	return func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = fmt.Fprintf(w, `{"error":{"message":%q,"type":"x"}}`, text)
	}
}

func TestGenerationFirst(t *testing.T) { // scenario 10
	for _, inPieces := range []bool{false, true} {
		came := make(chan struct{})
		gen := func(n int, q seen, w http.ResponseWriter, r *http.Request) {
			close(came)
			genReply{}.script(n, q, w, r)
		}
		r := early(t, []legScript{after(came, ctxReply{}.script)}, []legScript{gen})
		body := hello
		if inPieces {
			body = strings.Replace(hello, "}", `,"stream":true,"stream_options":{"include_usage":true}}`, 1)
		}
		a := r.post(completions, body)
		c, g := r.ctx[0].requests(), r.gen[0].requests()
		if a.status != 200 || len(c) != 1 || len(g) != 1 {
			t.Fatalf("%d %s, %d and %d legs", a.status, a.raw, len(c), len(g))
		}
		id := c[0].params.DisaggRequestID
		want := fmt.Sprintf(`{"request_type":"generation_only","schedule_style":"generation_first","disagg_request_id":%d,"ctx_request_id":%d,`+
			`"ctx_dp_rank":3,"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":"dGVtcGxhdGU="}`, id, id)
		if got := string(g[0].body["disaggregated_params"]); got != want {
			t.Errorf("gen leg has %s, want %s", got, want)
		}
		if string(g[0].body["prompt"]) != `"hello"` || !strings.Contains(string(c[0].body["disaggregated_params"]), `"schedule_style":"generation_first"`) {
			t.Errorf("gen leg %s, ctx leg %s", g[0].body["prompt"], c[0].body["disaggregated_params"])
		}
		if a.header.Get("X-Disagg-Path") != "gen_ctx" || a.header.Get("X-Disagg-Ctx-Server") != r.ctx[0].id || a.header.Get("X-Disagg-Gen-Server") != r.gen[0].id {
			t.Errorf("headers %v", a.header)
		}
		if !inPieces {
			a.wantOK(t, "ABC")
			if u := a.body.Usage; u.PromptTokens != 5 || u.CompletionTokens != 3 || u.Cached() != 0 {
				t.Errorf("usage %+v", u)
			}
		} else if len(a.events) != 6 || !strings.Contains(a.events[4], `"cached_tokens":0`) || strings.Count(a.raw, `"text":"A"`) != 1 {
			t.Errorf("events %q", a.events)
		}
	}
}

// TestGenerationFirstUsage holds back what bears usage, and nothing else (scenario 13).
func TestGenerationFirstUsage(t *testing.T) {
	shown := make(chan struct{})
	gen := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		stream(w, chunkText("A"), chunkText("B"), `{"choices":[],"usage":{"prompt_tokens":128,"completion_tokens":5,"total_tokens":133,"prompt_tokens_details":{"cached_tokens":128}}}`, "[DONE]")
	}
	r := early(t, []legScript{after(shown, ctxReply{usage: `{"prompt_tokens":128,"completion_tokens":0,"total_tokens":128,"prompt_tokens_details":{"cached_tokens":9}}`}.script)}, []legScript{gen})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+completions, strings.NewReader(inEvents(hello)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4096)
	n := 0
	for !strings.Contains(string(buf[:n]), `"B"`) { // both tokens come without the ctx worker
		k, err := resp.Body.Read(buf[n:])
		if n += k; err != nil {
			t.Fatalf("%v after %s", err, buf[:n])
		}
	}
	if strings.Contains(string(buf[:n]), "usage") {
		t.Errorf("usage came too early: %s", buf[:n])
	}
	close(shown)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), `"prompt_tokens":128,"completion_tokens":5,"total_tokens":133,"prompt_tokens_details":{"cached_tokens":9}`) ||
		!strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("%v %s", err, rest)
	}
}

// TestGenerationFirstFailures: whichever leg fails first ends both, tells both workers, and decides what the client hears.
func TestGenerationFirstFailures(t *testing.T) {
	dies := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, tc := range map[string]struct {
		ctx, gen legScript // nil = never answers
		stream   bool
		status   int
		text     string
	}{
		"ctx answers 500":                    {status(500, "prefill broke"), nil, false, 502, "prefill broke"},
		"ctx answers 500, streamed":          {status(500, "prefill broke"), nil, true, 502, "prefill broke"},
		"ctx refuses the prompt":             {status(400, "context length exceeded"), nil, true, 400, "context length exceeded"},
		"ctx has no room":                    {status(429, "busy"), nil, true, 429, "busy"},
		"ctx replies nonsense":               {func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }, nil, false, 502, "choices"},
		"gen dies before a byte":             {nil, dies, true, 502, "generation worker"},
		"gen answers 500":                    {nil, status(500, "pull broke"), false, 502, "pull broke"},
		"gen says 200 and role, ctx refuses": {status(400, "too long"), roleThenNothing, true, 400, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{}, 2)
			ctx, gen := tc.ctx, tc.gen
			if ctx == nil { // gen fails while it prefills
				came := make(chan struct{})
				ctx, gen = func(n int, q seen, w http.ResponseWriter, r *http.Request) {
					close(came)
					never(ended)(n, q, w, r)
				}, after(came, gen)
			}
			if gen == nil {
				gen = never(ended)
			}
			r := early(t, []legScript{ctx}, []legScript{gen}, withConfig(func(c *Config) { c.MaxRetries = 0 }))
			body := chatHello
			if tc.stream {
				body = inEvents(chatHello)
			}
			begun := time.Now()
			a := r.post(chats, body)
			a.wantError(t, tc.status, tc.text)
			if a.err != nil {
				t.Error(a.err)
			}
			if d := time.Since(begun); d > 20*time.Second {
				t.Errorf("it took %v", d)
			}
			if tc.ctx == nil || tc.gen == nil {
				<-ended // the other leg's connection is closed
			}
			id := r.gen[0].requests()[0].params.DisaggRequestID
			if tc.ctx != nil {
				if got := aborted(t, r.gen[0]); got != id {
					t.Errorf("gen got an abort of %d, not %d", got, id)
				}
			} else if got := aborted(t, r.ctx[0]); got != id {
				t.Errorf("ctx got an abort of %d, not %d", got, id)
			}
		})
	}
}

func inEvents(body string) string { return strings.TrimSuffix(body, "}") + `,"stream":true}` }

const chatHello = `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":3}`

func roleThenNothing(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
	stream(w, `{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}`)
	<-r.Context().Done()
}

// TestGenerationFirstRetries: another attempt is one of both legs, under another id.
func TestGenerationFirstRetries(t *testing.T) {
	for name, tc := range map[string]struct {
		ctx, gen int // which of them fails in its first leg
	}{"ctx": {1, 0}, "gen": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			failing := func(first int, then legScript) legScript {
				return func(n int, q seen, w http.ResponseWriter, r *http.Request) {
					if n < first {
						status(500, "broke")(n, q, w, r)
						return
					}
					then(n, q, w, r)
				}
			}
			waits := func(n int, q seen, w http.ResponseWriter, r *http.Request) {
				if n == 0 && tc.ctx == 1 {
					<-r.Context().Done()
					return
				}
				genReply{}.script(n, q, w, r)
			}
			r := early(t, []legScript{failing(tc.ctx, ctxReply{}.script)}, []legScript{failing(tc.gen, waits)})
			r.post(completions, hello).wantOK(t, "ABC")
			c, g := r.ctx[0].requests(), r.gen[0].requests()
			if len(g) != 2 || g[0].params.DisaggRequestID == g[1].params.DisaggRequestID ||
				!slices.ContainsFunc(c, func(q seen) bool { return q.params.DisaggRequestID == g[1].params.DisaggRequestID }) {
				t.Errorf("legs %+v and %+v", c, g)
			}
			if got := r.obs.count("retry_requests " + map[int]string{1: "context", 0: "generation"}[tc.ctx]); got != 1 {
				t.Errorf("%d retries: %v", got, r.obs.seen)
			}
		})
	}
}

// TestGenerationFirstAdmission: a gen worker that has no room is replaced once, under the same id.
func TestGenerationFirstAdmission(t *testing.T) {
	for _, code := range []int{429, 503} {
		r := early(t, []legScript{ctxReply{}.script}, []legScript{status(code, "full"), genReply{}.script})
		r.post(completions, hello).wantOK(t, "ABC")
		if a, b := r.gen[0].requests(), r.gen[1].requests(); len(a) != 1 || len(b) != 1 || a[0].params.DisaggRequestID != b[0].params.DisaggRequestID {
			t.Errorf("legs %+v and %+v", a, b)
		}
		if c := r.ctx[0].requests(); len(c) != 1 {
			t.Errorf("%d ctx legs", len(c))
		}
		both := early(t, []legScript{never(nil)}, []legScript{status(code, "full"), status(code, "full too")})
		both.post(completions, hello).wantError(t, code, "full too")
		if n := len(both.gen[0].requests()) + len(both.gen[1].requests()); n != 2 {
			t.Errorf("%d gen legs", n)
		}
	}
}

// TestGenerationFirstEndsInPrefill: the ctx worker's answer is the client's, whole or streamed, and gen is told.
func TestGenerationFirstEndsInPrefill(t *testing.T) {
	for _, body := range []string{hello, inEvents(chatHello)} {
		ended := make(chan struct{}, 1)
		path, gen := completions, never(ended)
		if body != hello {
			path, gen = chats, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
				roleThenNothing(n, q, w, r)
				ended <- struct{}{}
			}
		}
		r := early(t, []legScript{ctxReply{finish: "stop"}.script}, []legScript{gen})
		a := r.post(path, body)
		if body == hello {
			a.wantOK(t, "A")
		} else if len(a.events) != 4 || strings.Count(a.raw, `"role"`) != 1 || strings.Count(a.raw, `"content":"A"`) != 1 || !strings.Contains(a.events[2], `"stop"`) {
			t.Errorf("events %q", a.events)
		}
		if a.header.Get("X-Disagg-Path") != "ctx_only" {
			t.Errorf("path %s", a.header.Get("X-Disagg-Path"))
		}
		aborted(t, r.gen[0])
		<-ended
	}
}

// TestGenerationFirstShowsTheFirstTokenOnce: both legs end with the first token at about the same time, in any order.
func TestGenerationFirstShowsTheFirstTokenOnce(t *testing.T) {
	gen := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		stream(w, `{"choices":[{"index":0,"text":"A","finish_reason":"length"}]}`, "[DONE]")
	}
	for range 100 {
		r := anyOrder(t, []legScript{ctxReply{finish: "stop"}.script}, []legScript{gen})
		for range 5 {
			a := r.post(completions, inEvents(hello))
			if a.status != 200 || strings.Count(a.raw, `"text":"A"`) != 1 || !strings.HasSuffix(a.raw, "data: [DONE]\n\n") {
				t.Fatalf("%d %s", a.status, a.raw)
			}
		}
		if testing.Short() {
			break
		}
	}
}

// TestGenerationFirstClientLeaves: both workers hear of it.
func TestGenerationFirstClientLeaves(t *testing.T) {
	came := make(chan struct{}, 2)
	wait := func(_ int, _ seen, _ http.ResponseWriter, r *http.Request) { came <- struct{}{}; <-r.Context().Done() }
	r := early(t, []legScript{wait}, []legScript{wait})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-came; <-came; cancel() }()
	if a := r.postCtx(ctx, completions, hello); a.err == nil {
		t.Errorf("an answer: %s", a.raw)
	}
	if a, b := aborted(t, r.ctx[0]), aborted(t, r.gen[0]); a != b {
		t.Errorf("aborts of %d and %d", a, b)
	}
}

// TestGenerationFirstLostReply: the stream goes on when the ctx worker is lost after its blocks were fetched; it does not
// when that worker says that it failed, and an answer without the ctx worker's is none.
func TestGenerationFirstLostReply(t *testing.T) {
	body := inEvents(hello)
	shown, failed := make(chan struct{}), make(chan struct{})
	gen := func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, chunkText("A"))
		select {
		case <-failed:
		case <-r.Context().Done():
		}
		stream(w, chunkText("B"), `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":5}}}`, "[DONE]")
	}
	lost := after(shown, func(int, seen, http.ResponseWriter, *http.Request) { close(failed); panic(http.ErrAbortHandler) })
	a := early(t, []legScript{lost}, []legScript{gen}).postSeen(body, `"A"`, func() { close(shown) })
	if len(a.events) != 4 || !strings.Contains(a.events[2], `"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}`) {
		t.Errorf("%q %v", a.events, a.err)
	}

	shown2 := make(chan struct{})
	gen = func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, chunkText("A"))
		<-r.Context().Done()
	}
	a = early(t, []legScript{after(shown2, status(500, "broke"))}, []legScript{gen}).postSeen(body, `"A"`, func() { close(shown2) })
	if len(a.events) != 2 || !strings.Contains(a.events[1], "broke") || strings.Contains(a.raw, "[DONE]") {
		t.Errorf("%q", a.events)
	}

	r := early(t, []legScript{never(nil)}, []legScript{genReply{}.script}, withConfig(func(c *Config) { c.AbortGrace, c.MaxRetries = 300*time.Millisecond, 0 }))
	for _, body := range []string{hello, streamed} { // gen has computed all of it by itself
		a = r.post(completions, body)
		if text, _ := textOf(t, a); a.status != 200 || !strings.Contains(a.raw, `"cached_tokens":0`) || text != "ABC" && body != hello {
			t.Errorf("%d %s", a.status, a.raw)
		}
		if id := aborted(t, r.ctx[0]); id != r.ctx[0].requests()[len(r.ctx[0].requests())-1].params.DisaggRequestID {
			t.Errorf("aborted %d", id)
		}
	}
}

// postSeen posts and calls then when the client has been told text.
func (r *rig) postSeen(body, text string, then func()) (a answer) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.front.URL+completions, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	for sc := bufio.NewScanner(resp.Body); ; {
		if !sc.Scan() {
			a.err = sc.Err()
			break
		}
		a.raw += sc.Text() + "\n"
		if d, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			a.events = append(a.events, d)
		}
		if then != nil && strings.Contains(sc.Text(), text) {
			then()
			then = nil
		}
	}
	if then != nil {
		r.t.Errorf("%q was never told: %s", text, a.raw)
		then()
	}
	return a
}

// TestGenerationFirstLossAtFirstToken: a ctx worker that is lost at the moment of the first token costs no answer. Either the
// gen leg has it and goes on, or another attempt begins before the client has heard anything.
func TestGenerationFirstLossAtFirstToken(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 20
	}
	gen := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		stream(w, chunkText("A"), chunkText("B"), `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`, "[DONE]")
	}
	var legs atomic.Int64
	ctx := func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if legs.Add(1)%3 != 0 { // an attempt after one that failed succeeds
			ctxReply{}.script(n, q, w, r)
			return
		}
		panic(http.ErrAbortHandler)
	}
	r := early(t, []legScript{ctx}, []legScript{gen})
	for range n {
		a := r.post(completions, inEvents(hello))
		if a.status != 200 || strings.Count(a.raw, `"text":"A"`) != 1 || strings.Count(a.raw, `"text":"B"`) != 1 || !strings.HasSuffix(a.raw, "data: [DONE]\n\n") {
			t.Fatalf("%d %s", a.status, a.raw)
		}
	}
}

// TestGenerationFirstNeedsHosts: a ctx worker that cannot be found early gets nothing, and there is a warning.
func TestGenerationFirstNeedsHosts(t *testing.T) {
	r := one(t, ctxReply{}, genReply{}, withConfig(func(c *Config) { c.GenerationFirst = true }))
	r.post(completions, hello).wantError(t, 503, "generation_first needs")
	if w := r.s.lateOnly(); len(w) != 1 || w[0].Code != WarnGenFirst {
		t.Errorf("warnings %+v", w)
	}
	if n := len(r.ctx[0].requests()) + len(r.gen[0].requests()); n != 0 {
		t.Errorf("%d legs", n)
	}
}

// TestGenerationFirstWithChoices: what forks off the ctx worker's sampling goes context-first.
func TestGenerationFirstWithChoices(t *testing.T) {
	r := early(t, []legScript{status(500, "as asked")}, []legScript{genReply{}.script}, withConfig(func(c *Config) { c.MaxRetries = 0 }), func(r *rig, _ *Parts) {
		for _, s := range append(r.ctx, r.gen...) {
			s.info.Fork = true
		}
	})
	r.post(completions, strings.TrimSuffix(hello, "}")+`,"n":2}`).wantError(t, 502, "as asked")
	if c, g := r.ctx[0].requests(), r.gen[0].requests(); len(c) != 1 || len(g) != 0 || !strings.Contains(string(c[0].body["disaggregated_params"]), "context_first") {
		t.Errorf("%d gen legs, ctx leg %s", len(g), c[0].body["disaggregated_params"])
	}
}

// TestGenerationFirstResumes: a stream that breaks goes on at another gen worker.
func TestGenerationFirstResumes(t *testing.T) {
	breaks := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": ids 65\n\ndata: "+chunkText("A")+"\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	goesOn := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		stream(w, chunkText("B"), `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`, "[DONE]")
	}
	r := early(t, []legScript{ctxReply{}.script}, []legScript{breaks, goesOn}, func(r *rig, _ *Parts) {
		for _, s := range r.gen {
			s.info.Resume = true
		}
	})
	a := r.post(completions, inEvents(hello))
	if len(a.events) != 4 || strings.Count(a.raw, `"text":"A"`) != 1 || strings.Count(a.raw, `"text":"B"`) != 1 {
		t.Errorf("%q %v", a.events, a.err)
	}
	if g := r.gen[1].requests(); len(g) != 1 || len(g[0].params.FirstGenTokens) != 1 || string(g[0].body["prompt"]) != "[1,2,3,4,5]" {
		t.Errorf("the second gen worker got %+v", g)
	}
}

// TestGenerationFirstResumesAnEnd: a stream that breaks behind a first token which ended the request goes on elsewhere, though
// the ctx worker says no more of the request than its answer.
func TestGenerationFirstResumesAnEnd(t *testing.T) {
	shown := make(chan struct{})
	ctx := after(shown, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"A","finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`)
	})
	breaks := func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": ids 65\n\ndata: "+chunkText("A")+"\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-shown:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	ends := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		stream(w, `{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`, "[DONE]")
	}
	r := early(t, []legScript{ctx}, []legScript{breaks, ends}, ableToResume)
	a := r.postSeen(inEvents(hello), `"A"`, func() { close(shown) })
	if len(a.events) != 3 || a.events[2] != "[DONE]" {
		t.Errorf("%q %v", a.events, a.err)
	}
	if g := r.gen[1].requests(); len(g) != 1 || string(g[0].body["prompt"]) != `"hello"` {
		t.Errorf("the second gen worker got %+v", g)
	}
}

// TestGenerationFirstPerfRecord: the legs overlap, and the stages still sum to the whole time.
func TestGenerationFirstPerfRecord(t *testing.T) {
	for _, body := range []string{`{"prompt":"hi","max_tokens":8}`, `{"prompt":"hi","max_tokens":8,"stream":true}`} {
		r, _ := perfRig(t, nil, withConfig(func(c *Config) { c.GenerationFirst = true }), func(r *rig, _ *Parts) {
			r.ctx[0].info.Disagg = []byte(`{"ctx_info_endpoint":"tcp://10.0.0.1:5000"}`)
		})
		r.post(completions, body)
		list := r.perf()
		if len(list) == 0 {
			list = r.perf() // the gen worker's part came later
		}
		if len(list) != 1 {
			t.Fatalf("%d records", len(list))
		}
		p := &list[0]
		checkSum(t, p)
		if p.Path != PathGenCtx || p.Outcome != "ok" || len(p.Ctx) < 10 || len(p.Gen) < 10 || p.CtxSent == nil || p.GenSent == nil || *p.GenSent > *p.CtxSent ||
			p.CtxServer != r.ctx[0].id || p.GenServer != r.gen[0].id || p.First == nil {
			t.Errorf("%+v", p)
		}
	}
}
