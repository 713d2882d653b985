package worker

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
)

func TestBadInput(t *testing.T) {
	e := newEngine(executor.Mixed, "hello")
	srv := serveFake(t, e, nil)
	long := strings.Repeat("x", 200)
	for _, tc := range []struct {
		name, path, body  string
		status            int
		param, code, says string
	}{
		{"malformed", "chat", `{"messages":`, 400, "", "invalid_request", "not valid JSON"},
		{"wrong type", "chat", chatHi + `,"temperature":"x"}`, 400, "temperature", "invalid_request", "must be a number"},
		{"unknown model", "chat", strings.Replace(chatHi, "tiny", "gpt-9", 1) + `}`, 404, "model", "model_not_found", `use "tiny"`},
		{"empty messages", "chat", `{"messages":[]}`, 400, "messages", "invalid_request", "at least one message"},
		{"template refuses", "chat", `{"messages":[{"role":"user","content":"refuse me"}]}`, 400, "messages", "invalid_request", "roles must alternate"},
		{"template refuses variables", "chat", chatHi + `,"chat_template_kwargs":{"messages":[]}}`, 400, "chat_template_kwargs", "invalid_request", "own request field"},
		{"foreign id in place of messages", "chat", `{"prompt_token_ids":[1048576]}`, 400, "prompt_token_ids", "invalid_request", "outside the vocabulary"},
		{"request template", "chat", chatHi + `,"chat_template":"{{ 1 }}"}`, 400, "chat_template", "not_supported", "leave chat_template out"},
		{"long prompt", "text", `{"prompt":"` + long + `"}`, 400, "prompt", "context_length_exceeded", "200 tokens and the context length is 128"},
		{"long chat", "chat", `{"messages":[{"role":"user","content":"` + long + `"}]}`, 400, "messages", "context_length_exceeded", "shorten the prompt by 80 tokens"},
		{"max_tokens 0", "text", `{"prompt":"x","max_tokens":0}`, 400, "max_tokens", "invalid_request", "at least 1"},
		{"max_tokens negative", "text", `{"prompt":"x","max_tokens":-1}`, 400, "max_tokens", "invalid_request", "at least 1"},
		{"temperature", "text", `{"prompt":"x","temperature":3}`, 400, "temperature", "invalid_request", "between 0 and 2"},
		{"n", "text", `{"prompt":"x","n":129}`, 400, "n", "invalid_request", "at most 128"},
		{"huge body", "text", `{"prompt":"` + strings.Repeat("x", 50<<20) + `"}`, 413, "", "request_too_large", "limit of 1048576 bytes"},
		{"invalid utf8", "text", "{\"prompt\":\"\xc3\x28\"}", 400, "", "invalid_request", "UTF-8"},
		{"bias key", "text", `{"prompt":"x","logit_bias":{"a":1}}`, 400, "logit_bias", "invalid_request", "token ids"},
		{"bias vocabulary", "text", `{"prompt":"x","logit_bias":{"257":1}}`, 400, "logit_bias", "invalid_request", "vocabulary of 257"},
		{"prompt id vocabulary", "text", `{"prompt":[257]}`, 400, "prompt", "invalid_request", "vocabulary of 257"},
		{"null body", "text", `null`, 400, "", "invalid_request", "not null"},
		{"no body", "text", ``, 400, "", "invalid_request", "empty"},
		{"json mode", "chat", chatHi + `,"response_format":{"type":"xml"}}`, 400, "response_format", "not_supported", "not supported"},
		{"no such path", "/v2/x", ``, 404, "", "not_found", "/v2/x"},
		{"method", "/v1/models", ``, 405, "", "method_not_allowed", "use GET"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := map[string]string{"chat": "/v1/chat/completions", "text": "/v1/completions"}[tc.path]
			if path == "" {
				path = tc.path
			}
			status, h, text := post(t, srv.URL+path, tc.body)
			got := wireErr(t, status, text)
			if status != tc.status || got.Param != tc.param || got.Code != tc.code || !strings.Contains(got.Message, tc.says) {
				t.Errorf("got %d %+v", status, got)
			}
			if got.Type != openai.TypeOf(status) || h.Get("X-Request-ID") == "" || h.Get("Content-Type") != "application/json" {
				t.Errorf("type %q headers %v", got.Type, h)
			}
		})
	}
	if n, _ := e.count(); n != 0 {
		t.Errorf("%d bad requests reached the engine", n)
	}
}

// A leg has token ids beside the text, so one of a request that the frontend takes may be larger than any request.
func TestLegsMayBeLarger(t *testing.T) {
	for role, limit := range map[executor.Role]string{executor.Ctx: "4194304", executor.Gen: "4194304", executor.Mixed: "1048576"} {
		srv := serveFake(t, newEngine(role, "hi"), nil) // with requests of 1 MiB
		for size, fits := range map[int]bool{1<<20 + 1: role != executor.Mixed, 4<<20 + 1: false} {
			body := chatHi + `,"x":"` + strings.Repeat("y", size-len(chatHi)-len(`,"x":""}`)) + `"}`
			status, _, text := post(t, srv.URL+"/v1/chat/completions", body)
			if (status != 413) != fits || !fits && !strings.Contains(text, limit) {
				t.Errorf("%s, %d bytes: %d, %.200s", role, size, status, text)
			}
		}
	}
}

func TestEngineErrors(t *testing.T) {
	want := map[request.Code]struct {
		status int
		typ    string
		retry  bool
	}{
		request.InvalidRequest:   {400, openai.TypeInvalidRequest, false},
		request.CapacityNever:    {400, openai.TypeInvalidRequest, false},
		request.QueueFull:        {429, openai.TypeOverloaded, true},
		request.Cancelled:        {499, openai.TypeCancelled, false},
		request.BadLogits:        {500, openai.TypeInternal, false},
		request.StepFailed:       {500, openai.TypeInternal, false},
		request.Internal:         {500, openai.TypeInternal, false},
		request.TransferFailed:   {502, openai.TypeUpstream, false},
		request.LayoutMismatch:   {502, openai.TypeUpstream, false},
		request.UnknownTransfer:  {502, openai.TypeUpstream, false},
		request.Capacity:         {503, openai.TypeUnavailable, true},
		request.QueueTimeout:     {503, openai.TypeUnavailable, true},
		request.EngineDead:       {503, openai.TypeUnavailable, true},
		request.TransferTimeout:  {504, openai.TypeTimeout, false},
		request.DeadlineExceeded: {504, openai.TypeTimeout, false},
	}
	for code, w := range want {
		for _, late := range []bool{false, true} { // refused at once, or failed before an answer
			e := newEngine(executor.Mixed, "hello")
			cause := &request.Error{Code: code, Param: "prompt", Message: "why"}
			if late {
				e.failAfter, e.err = 1, cause
			} else {
				e.submitErr = cause
			}
			srv := serveFake(t, e, nil)
			status, h, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x"}`)
			got := wireErr(t, status, text)
			if status != w.status || got.Code != string(code) || got.Type != w.typ || got.Message != "why" || got.Param != "prompt" || (h.Get("Retry-After") != "") != w.retry {
				t.Errorf("%s late %v: %d %s %v", code, late, status, text, h)
			}
		}
	}
	e := newEngine(executor.Mixed, "")
	e.submitErr = runner.ErrStopped
	if status, _, text := post(t, serveFake(t, e, nil).URL+"/v1/completions", `{"prompt":"x"}`); status != 503 {
		t.Errorf("stopped engine: %d %s", status, text)
	}
}

func TestStreamBreaks(t *testing.T) {
	e := newEngine(executor.Mixed, "hello")
	e.failAfter, e.err = 2, request.Errorf(request.BadLogits, "not a number")
	srv := serveFake(t, e, nil)
	status, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x","stream":true}`)
	data, _ := eventsOf(t, text)
	last := data[len(data)-1]
	if status != 200 || len(data) != 3 || !strings.Contains(last, `"code":"bad_logits"`) || strings.Contains(text, "[DONE]") {
		t.Errorf("%d %s", status, text)
	}
	if !strings.Contains(text, "<<unexpected EOF>>") {
		t.Errorf("the encoding ended as if the reply were whole: %s", text)
	}
	e = newEngine(executor.Mixed, "hello")
	e.submitErr = request.Errorf(request.QueueFull, "full")
	srv = serveFake(t, e, nil)
	if status, h, _ := post(t, srv.URL+"/v1/completions", `{"prompt":"x","stream":true}`); status != 429 || h.Get("Retry-After") != "1" {
		t.Errorf("a stream that is refused answered %d", status)
	}
}

func TestPanicEndsOneRequest(t *testing.T) {
	e := newEngine(executor.Mixed, "hello")
	e.panics = true
	srv := serveFake(t, e, nil)
	if status, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x"}`); status != 500 || wireErr(t, status, text).Code != "internal" {
		t.Errorf("%d %s", status, text)
	}
	broken := newEngine(executor.Mixed, "hello")
	broken.brokenAt = 2
	srv = serveFake(t, broken, nil)
	if _, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x","stream":true}`); !strings.Contains(text, "<<unexpected EOF>>") || strings.Contains(text, "internal") {
		t.Errorf("a panic within a stream gave %s", text)
	}
	if status, _, _ := post(t, srv.URL+"/v1/completions", `{"prompt":"x","max_tokens":1}`); status != 200 {
		t.Errorf("the next request got %d", status)
	}
}

func TestDisconnectCancels(t *testing.T) {
	for _, body := range []string{`{"prompt":"x"}`, `{"prompt":"x","stream":true}`} {
		e := newEngine(executor.Mixed, "hello")
		e.gate = make(chan struct{})
		done := make(chan Observation, 1)
		srv := serveFake(t, e, func(c *Config) { c.Observer = observer{done: done} })
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			e.gate <- struct{}{} // the engine works on it, so the request has arrived
			cancel()
		}()
		if res, err := http.DefaultClient.Do(req); err == nil {
			for r := bufio.NewReader(res.Body); err == nil; {
				_, err = r.ReadByte()
			}
			res.Body.Close()
		}
		ob := <-done
		if _, canceled := e.count(); canceled != 1 || ob.Status != openai.StatusClientClosed {
			t.Errorf("%s: %d cancels, status %d", body, canceled, ob.Status)
		}
	}
}

type observer struct {
	done   chan Observation
	tokens chan int
}

func (o observer) FirstToken(time.Duration)   { o.token(1) }
func (o observer) Gap(_ time.Duration, n int) { o.token(n) }
func (o observer) Done(ob Observation)        { o.done <- ob }
func (o observer) token(n int) {
	if o.tokens != nil {
		o.tokens <- n
	}
}

func TestObserver(t *testing.T) {
	e := newEngine(executor.Mixed, "hello")
	o := observer{done: make(chan Observation, 1), tokens: make(chan int, 10)}
	srv := serveFake(t, e, func(c *Config) { c.Observer = o })
	post(t, srv.URL+"/v1/completions", `{"prompt":"x","stream":true}`)
	ob := <-o.done
	if ob.Kind != "full" || !ob.Stream || ob.Status != 200 || ob.Finish != "stop" || ob.Output != 6 || ob.Prompt != 1 || len(o.tokens) != 6 {
		t.Errorf("%+v, %d tokens", ob, len(o.tokens))
	}
	post(t, srv.URL+"/v1/completions", `{}`)
	if ob := <-o.done; ob.Kind != "refused" || ob.Status != 400 {
		t.Errorf("%+v", ob)
	}
}

// What a worker cancels at its own end is refused as it refuses what comes then: its sender is there and can go elsewhere. A
// cancelled request is what somebody asked for.
func TestEndOfADrainIsNoCancellation(t *testing.T) {
	for _, draining := range []bool{false, true} {
		e := newEngine(executor.Mixed, "hello")
		e.failAfter, e.err = 1, request.Errorf(request.Cancelled, "the request was cancelled")
		s := New(Config{Version: "1.2.3"})
		s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t), Template: fakeTemplate{}})
		e.gate = make(chan struct{})
		srv := httptest.NewServer(s)
		for _, stream := range []string{"false", "true"} {
			go func() {
				e.gate <- struct{}{}
				if draining {
					s.Drain()
				}
				e.gate <- struct{}{}
			}()
			status, h, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x","stream":`+stream+`}`)
			want, code, wait := 499, `"code":"cancelled"`, ""
			if draining {
				want, code, wait = 503, `"code":"draining"`, "1"
			}
			if stream == "true" {
				want, wait = 200, "" // it had begun
			}
			if status != want || !strings.Contains(text, code) || h.Get("Retry-After") != wait {
				t.Errorf("draining %v, stream %s: %d, %s", draining, stream, status, text)
			}
			s.draining.Store(false)
		}
		srv.Close()
	}
}
