//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestScenario01(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	a := r.ask(t, textPath, helloText)
	a.wantOK(t, "ABC")
	a.wantUsage(t, 5, 3, 0)
	a.wantRoute(t, "ctx_gen", r.ctx[0].id, r.gen[0].id)
	c, g := wantLegs(t, r.ctx[0], 1)[0], wantLegs(t, r.gen[0], 1)[0]
	if c.params.Type != "context_only" || c.stream() || c.body["stream_options"] != nil {
		t.Errorf("ctx leg %s", c.raw)
	}
	if g.params.Type != "generation_only" || string(g.body["prompt"]) != "[1,2,3,4,5]" || !slices.Equal(g.params.First, []int{65}) {
		t.Errorf("gen leg %s", g.raw)
	}
	if c.params.ID < 1<<40 || g.params.ID != c.params.ID || g.params.CtxID != c.params.ID {
		t.Errorf("ids %d, then %d of %d", c.params.ID, g.params.ID, g.params.CtxID)
	}
	if g.params.State != "b3BhcXVl" || g.params.Address != "tcp://10.0.0.1:5000" {
		t.Errorf("the state was not relayed: %s", g.raw)
	}
	if got := a.header.Get("X-Disagg-Request-ID"); got != fmt.Sprint(c.params.ID) || a.header.Get("X-Request-ID") == "" {
		t.Errorf("headers %v", a.header)
	}
}

func TestScenario02(t *testing.T) {
	scenario(t)
	const id = 687865856000134148
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(ctxReply{echo: id}.script)
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
	if g := wantLegs(t, r.gen[0], 1)[0]; g.params.ID != id || g.params.CtxID != id {
		t.Errorf("gen got %d and %d, want %d", g.params.ID, g.params.CtxID, int64(id))
	}
}

func TestScenario03(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(ctxReply{finish: "length"}.script)
	a := r.ask(t, textPath, `{"model":"tiny","prompt":"hello","max_tokens":1}`)
	a.wantOK(t, "A")
	a.wantUsage(t, 5, 1, 0)
	a.wantRoute(t, "ctx_only", r.ctx[0].id, "-")
	if a.body.Choices[0].FinishReason != "length" || strings.Contains(a.raw, "disaggregated_params") || strings.Contains(a.raw, "prompt_token_ids") {
		t.Errorf("reply %s", a.raw)
	}
	wantLegs(t, r.gen[0], 0)
}

func TestScenario04(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(ctxReply{finish: "stop", text: "-"}.script)
	a := r.ask(t, textPath, `{"model":"tiny","prompt":"hello","max_tokens":8}`)
	a.wantOK(t, "")
	a.wantUsage(t, 5, 1, 0)
	if a.body.Choices[0].FinishReason != "stop" {
		t.Errorf("reply %s", a.raw)
	}
	wantLegs(t, r.gen[0], 0)
	if n := r.count(t, `tandem_gen_skipped_total{reason="stop"}`); n != 1 {
		t.Errorf("gen_skipped_total is %v", n)
	}
}

func TestScenario05(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(ctxReply{finish: "stop", text: "-"}.script)
	a := r.ask(t, chatPath, helloChat)
	if a.status != http.StatusOK || a.err != nil || len(a.events) != 4 {
		t.Fatalf("status %d, %v, %s", a.status, a.err, a.raw)
	}
	for i, part := range []string{`"role":"assistant"`, `"finish_reason":"stop"`, `"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6`, "[DONE]"} {
		if !strings.Contains(a.events[i], part) {
			t.Errorf("event %d is %s, want %s in it", i, a.events[i], part)
		}
	}
	wantLegs(t, r.gen[0], 0)
}

func TestScenario06(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(ctxReply{finish: "length"}.script)
	a := r.ask(t, textPath, `{"model":"tiny","prompt":"hello","max_tokens":8}`)
	a.wantOK(t, "ABC")
	a.wantRoute(t, "ctx_gen", r.ctx[0].id, r.gen[0].id)
}

func TestScenario07(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	prompt := func(raw string) answer { return r.ask(t, textPath, `{"model":"tiny","prompt":`+raw+`,"max_tokens":3}`) }
	for _, raw := range []string{`["a","b"]`, `[]`, `[[]]`, `[[1],[2]]`, `["a",1]`, `[1,"a"]`} {
		prompt(raw).wantParam(t, "prompt")
	}
	wantLegs(t, r.ctx[0], 0)
	for _, raw := range []string{`"a"`, `["a"]`, `[1,2,3]`, `[[1,2,3]]`} {
		prompt(raw).wantOK(t, "ABC")
	}
	wantLegs(t, r.ctx[0], 4)
}

func TestScenario08(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	a := r.ask(t, textPath, `{"model":"tiny","prompt":"hello","disaggregated_params":{"request_type":"generation_only","ctx_info_endpoint":"tcp://evil:1"}}`)
	a.wantParam(t, "disaggregated_params")
	wantLegs(t, r.ctx[0], 0)
	wantLegs(t, r.gen[0], 0)
	// Internal headers of clients are dropped.
	r.ask(t, textPath, helloText, "X-Disagg-DP-Rank", "3", "X-Disagg-Tenant", "evil", "X-Disagg-Auth", "sha256=00").wantOK(t, "ABC")
	for _, l := range append(r.ctx[0].legs(), r.gen[0].legs()...) {
		for _, name := range []string{"X-Disagg-Dp-Rank", "X-Disagg-Tenant", "X-Disagg-Auth"} {
			if v := l.header.Get(name); v != "" {
				t.Errorf("%s: %s was forwarded", name, v)
			}
		}
	}
}

func TestScenario09(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	for _, c := range []struct{ field, val string }{{"n", "2"}, {"best_of", "2"}, {"use_beam_search", "true"}} {
		r.ask(t, textPath, `{"model":"tiny","prompt":"hello","`+c.field+`":`+c.val+`}`).wantParam(t, c.field)
	}
	wantLegs(t, r.ctx[0], 0)
}

func TestScenario14(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	usage := func(prompt, completion, cached int) string {
		return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
			prompt, completion, prompt+completion, cached)
	}
	r.ctx[0].setScript(ctxReply{usage: usage(101, 1, 7)}.script)
	gen := genReply{usage: usage(101, 13, 101)}
	r.gen[0].setScript(gen.script)
	a := r.ask(t, textPath, helloText)
	a.wantOK(t, "ABC")
	a.wantUsage(t, 101, 13, 7)
	if u := wantLegs(t, r.gen[0], 1)[0].params.Usage; u == nil || u.Prompt != 101 || u.cached() != 7 {
		t.Errorf("ctx_usage %+v", u)
	}

	// The same in a stream that arrives byte by byte where it hurts: only the event with the usage is another.
	var sent string
	r.gen[0].setScript(func(c *call) {
		sent = gen.stream(c.leg)
		at := strings.Index(sent, `"cached_tokens"`)
		c.send(sent, at-20, at+3, at+15, len(sent)-8, len(sent)-1)
	})
	s := r.ask(t, chatPath, helloChat)
	want := strings.Replace(sent, usage(101, 13, 101), usage(101, 13, 7), 1)
	if s.raw != want {
		t.Errorf("the client got\n%s\nwant\n%s", s.raw, want)
	}
}

func TestScenario15(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(ctxReply{usage: `{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}`}.script)
	a := r.ask(t, textPath, helloText)
	a.wantOK(t, "ABC")
	a.wantUsage(t, 5, 3, 0)
	if !strings.Contains(a.raw, `"cached_tokens":0`) {
		t.Errorf("reply %s", a.raw)
	}
}

func TestScenario16(t *testing.T) {
	scenario(t)
	const logs = `[[{"token_id":65,"logprob":-0.1,"rank":1},{"token_id":66,"logprob":-2.3,"rank":2}]]`
	const body = `{"model":"tiny","prompt":"hello","max_tokens":3,"logprobs":2}`
	r := newRig(t, rigOf{})
	r.ctx[0].setScript(ctxReply{logprobs: logs}.script)
	r.gen[0].setScript(genReply{logprobs: `{"tokens":["A","B","C"],"token_logprobs":[-0.1,-0.2,-0.3],"top_logprobs":[{"A":-0.1},{"B":-0.2},{"C":-0.3}],"text_offset":[0,1,2]}`}.script)
	a := r.ask(t, textPath, body)
	a.wantOK(t, "ABC")
	if got := string(wantLegs(t, r.gen[0], 1)[0].params.Logs); got != logs {
		t.Errorf("first_gen_log_probs %s", got)
	}
	entries, err := logprobEntries(a.body.Choices[0].Logprobs)
	if err != nil || len(entries) != 3 || !strings.Contains(entries[0], `A`) {
		t.Errorf("logprobs %q, %v", entries, err)
	}
	// Never silently shifted by one: the entry of the first token is missing.
	r.gen[0].setScript(genReply{logprobs: `{"tokens":["B","C"],"token_logprobs":[-0.2,-0.3],"top_logprobs":[{"B":-0.2},{"C":-0.3}],"text_offset":[0,1]}`}.script)
	r.ask(t, textPath, body).wantError(t, http.StatusBadGateway)
	r.ctx[0].setScript(ctxReply{}.script)
	r.ask(t, textPath, body).wantError(t, http.StatusBadGateway, "logprobs")
}

// TestScenario17 needs the real model: split answers are those of one worker.
func TestScenario17(t *testing.T) {
	scenario(t)
	c := startCluster(t, workerConfig{threads: 1}, "")
	together := startFrontend(t, []*process{c.ctx}, []*process{c.gen}, genFirst)
	mixed := startWorker(t, "mixed", workerConfig{threads: 1})
	for i := range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		s := sampleOf("", chatPath, user(prose(uint64(100+i), 10+5*i)), "max_tokens", 12, "temperature", 0)
		want, err := ask(ctx, mixed.url, s.path, s.body)
		if err != nil {
			t.Fatal(err)
		}
		for _, stream := range []bool{false, true} {
			for path, url := range map[string]string{"ctx_gen": c.url, "gen_ctx": together.url} {
				got, err := ask(ctx, url, s.path, s.streamed(stream))
				if err != nil || !same(got, want) || got.header.Get("X-Disagg-Path") != path {
					t.Errorf("prompt %d, %s, stream %t: %v\n got %s\nwant %s", i, path, stream, err, show(got), show(want))
				}
			}
		}
		cancel()
	}
	waitClean(t, settleLimit, c.ctx, c.gen)
}
