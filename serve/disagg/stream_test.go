package disagg

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tandem/serve/discovery"
)

const streamed = `{"model":"tiny","prompt":"hello","max_tokens":8,"stream":true,"stream_options":{"include_usage":true}}`

func TestStreamIsRelayedExactly(t *testing.T) {
	// Comments, CRLF and odd spacing pass untouched; usage gets the ctx worker's counts (scenarios 13 and 14).
	parts := []string{
		": keep-alive\n\n", "data: {\"choices\":[{\"index\":0,\"text\":\"A\"}]}\n\n", "event: x\r\ndata:{\"odd\" : 1}\r\n\r\n",
		": ids 5,6\n\n", "data: {\"choices\":[{\"text\":\"say \\\"usage\\\"\"}]}\n\n",
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":101,\"completion_tok", "ens\":13,\"total_tokens\":114,\"prompt_tokens_details\":{\"cached_tokens\":101,\"x\":1},",
		"\"y\":2}}\n\n", "data: [DONE]\n\n",
	}
	gen := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, p := range parts {
			_, _ = io.WriteString(w, p)
			w.(http.Flusher).Flush()
		}
	})
	c := ctxReply{usage: `{"prompt_tokens":101,"completion_tokens":1,"total_tokens":102,"prompt_tokens_details":{"cached_tokens":7}}`}
	r := newRig(t, []*stub{newStub(t, discovery.Context, c.script)}, []*stub{gen})
	a := r.post(completions, streamed)
	want := strings.Replace(strings.Join(parts, ""), `"cached_tokens":101`, `"cached_tokens":7`, 1)
	if a.raw != want || a.err != nil {
		t.Errorf("got %v\n%s\nwant\n%s", a.err, a.raw, want)
	}
}

// A whole answer comes at once, so that its arrival is no time to first token.
func TestFirstTokenIsTimedInStreamsOnly(t *testing.T) {
	for body, known := range map[string]bool{hello: false, streamed: true} {
		r := one(t, ctxReply{}, genReply{})
		if a := r.post(completions, body); a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", body, a.status, a.raw)
		}
		if name := fmt.Sprintf("generation leg, first token known %t", known); r.obs.count(name) != 1 || r.obs.count("context leg, first token known true") != 1 {
			t.Errorf("%s: %v", body, r.obs.seen)
		}
	}
}

func TestUsage(t *testing.T) { // scenarios 14, 15
	cases := []struct{ name, ctx, gen, want string }{
		{
			"ctx counts win", `{"prompt_tokens":101,"completion_tokens":1,"total_tokens":102,"prompt_tokens_details":{"cached_tokens":7}}`,
			`{"prompt_tokens":101,"completion_tokens":13,"total_tokens":114,"prompt_tokens_details":{"cached_tokens":101}}`,
			`"usage":{"prompt_tokens":101,"completion_tokens":13,"total_tokens":114,"prompt_tokens_details":{"cached_tokens":7}}`,
		},
		{
			"no details is 0", `{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}`,
			`{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}`,
			`"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0}}`,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := one(t, ctxReply{usage: c.ctx}, genReply{usage: c.gen})
			if a := r.post(completions, hello); !strings.Contains(a.raw, c.want) || int(a.header.Get("Content-Length")[0]) == 0 {
				t.Errorf("whole: %s", a.raw)
			}
			a := r.post(completions, streamed)
			if n := len(a.events); n < 2 || !strings.Contains(a.events[n-2], c.want) || a.events[n-1] != "[DONE]" {
				t.Errorf("streamed: %q", a.events)
			}
		})
	}
}

func TestEarlyFirstToken(t *testing.T) {
	release := make(chan struct{})
	gen := newStub(t, discovery.Generation, func(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
		if !q.params.FirstTokenEmitted {
			t.Error("gen was not told that the first token is out")
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush() // accepted; the blocks are still on their way
		<-release
		stream(w, `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
			`{"choices":[{"index":0,"delta":{"content":"BC"},"finish_reason":"stop"}]}`, "[DONE]")
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{extra: `"first_delta":{"content":"A"},`}.script)}, []*stub{gen})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+chats,
		strings.NewReader(`{"model":"tiny","messages":[{"role":"user","content":"x"}],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("X-Disagg-Gen-Server") != gen.id {
		t.Errorf("headers %v", resp.Header)
	}
	buf := make([]byte, 4096)
	var got string
	for !strings.Contains(got, `{"content":"A"}`) { // arrives while gen is blocked
		n, err := resp.Body.Read(buf)
		got += string(buf[:n])
		if err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	close(release)
	rest, err := io.ReadAll(resp.Body)
	got += string(rest)
	if err != nil || strings.Count(got, `"role":"assistant"`) != 1 || strings.Index(got, `"BC"`) < strings.Index(got, `"A"`) || !strings.HasSuffix(got, "data: [DONE]\n\n") {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestEarlyFirstTokenSurvivesGenRetry(t *testing.T) {
	dies := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	good := newStub(t, discovery.Generation, genReply{}.script)
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{extra: `"first_delta":{"text":"A"},`}.script)}, []*stub{dies, good})
	a := r.post(completions, streamed)
	var text []string
	for _, e := range a.events {
		for _, l := range []string{"A", "B", "C"} {
			if strings.Contains(e, `"text":"`+l+`"`) {
				text = append(text, l)
			}
		}
	}
	if !slices.Equal(text, []string{"A", "B", "C"}) || a.events[len(a.events)-1] != "[DONE]" || a.err != nil {
		t.Errorf("%q, %v", a.events, a.err)
	}
	if len(r.ctx[0].requests()) != 1 {
		t.Errorf("ctx saw %d requests", len(r.ctx[0].requests()))
	}
}

func TestLogprobs(t *testing.T) { // scenario 16, stub part
	const ask = `{"model":"tiny","prompt":"hello","max_tokens":3,"logprobs":2}`
	const logs = `[[{"token_id":65,"logprob":-0.1,"rank":1},{"token_id":66,"logprob":-2.3,"rank":2}]]`
	var lp string
	gen := newStub(t, discovery.Generation, func(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
		if got := string(q.body["disaggregated_params"]); !strings.Contains(got, `"first_gen_log_probs":`+logs) {
			t.Errorf("gen got %s", got)
		}
		_, _ = io.WriteString(w, `{"choices":[{"text":"ABC","logprobs":{"tokens":[`+lp+`]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}`)
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{logprobs: logs}.script)}, []*stub{gen})
	lp = `"A","B","C"`
	r.post(completions, ask).wantOK(t, "ABC")
	lp = `"B","C"`
	r.post(completions, ask).wantError(t, 502, "2 of 3")
	<-gen.aborts // the answer was unusable: gen and ctx are told

	none := one(t, ctxReply{}, genReply{})
	none.post(completions, ask).wantError(t, 502, "logprobs")
	if len(none.gen[0].requests()) != 0 {
		t.Error("gen was asked although the first token has no logprobs")
	}
	<-none.ctx[0].aborts
}
