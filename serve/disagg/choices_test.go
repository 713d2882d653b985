package disagg

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// chooser is a pair of workers that say the same tokens to everybody, other ones
// in each choice. The gen worker's connections break after cut bytes.
type chooser struct {
	choices [][]string
	best    int   // > 0: the answer that is not streamed has this many choices
	early   []int // choices whose first token can be shown early
	cut     []int
	seen    atomic.Int32
}

func (c *chooser) rig(t *testing.T, gens int, opts ...rigOption) *rig {
	t.Helper()
	ctx := newStub(t, discovery.Context, c.context)
	ctx.info.Fork = true
	all := []*stub{}
	for range gens {
		g := newStub(t, discovery.Generation, c.generation)
		g.info.Fork, g.info.Resume = true, true
		all = append(all, g)
	}
	return newRig(t, []*stub{ctx}, all, opts...)
}

func (c *chooser) text(q seen, i int, text string) string {
	if strings.Contains(q.path, "chat") {
		return fmt.Sprintf(`"index":%d,"message":{"role":"assistant","content":%q}`, i, text)
	}
	return fmt.Sprintf(`"index":%d,"text":%q`, i, text)
}

// ended tells how a choice stands after k tokens.
func (c *chooser) ended(i, k int) string {
	if k == len(c.choices[i]) {
		return "stop"
	}
	return "not_finished"
}

func (c *chooser) context(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
	goesOn, list, ids := false, []string{}, []int32{}
	for i, tokens := range c.choices {
		goesOn = goesOn || len(tokens) > 1
		ids = append(ids, int32(100*i))
	}
	first, _ := json.Marshal(ids)
	for i, tokens := range c.choices {
		more := ""
		for _, k := range c.early {
			if k == i && c.ended(i, 1) != "stop" {
				more = fmt.Sprintf(`,"first_delta":{"text":%q}`, tokens[0])
				if strings.Contains(q.path, "chat") {
					more = fmt.Sprintf(`,"first_delta":{"content":%q}`, tokens[0])
				}
			}
		}
		if i == 0 {
			state := `,"encoded_opaque_state":"b3BhcXVl"`
			if !goesOn {
				state = ""
			}
			more += fmt.Sprintf(`,"disaggregated_params":{"request_type":"context_only","disagg_request_id":%d,"ctx_request_id":%d%s,"first_gen_tokens":%s}`,
				q.params.DisaggRequestID, q.params.DisaggRequestID, state, first)
		}
		text := tokens[0]
		if more == "" && c.ended(i, 1) != "stop" {
			text = "" // held back
		}
		list = append(list, fmt.Sprintf(`{%s,"logprobs":null,"finish_reason":%q%s}`, c.text(q, i, text), c.ended(i, 1), more))
	}
	if c.best > 0 && !goesOn {
		list = list[:c.best]
	}
	_, _ = fmt.Fprintf(w, `{"id":"x","created":7,"model":"tiny","prompt_token_ids":[1,2,3],"choices":[%s],"usage":{"prompt_tokens":3,"completion_tokens":%d,"total_tokens":9}}`,
		strings.Join(list, ","), len(c.choices))
}

func (c *chooser) generation(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
	n := int(c.seen.Add(1)) - 1
	if string(q.body["stream"]) != "true" {
		list, tokens := []string{}, 0
		for i, t := range c.choices {
			tokens += len(t)
			list = append(list, fmt.Sprintf(`{%s,"logprobs":null,"finish_reason":"stop"}`, c.text(q, i, strings.Join(t, ""))))
		}
		if c.best > 0 {
			list = list[:c.best]
		}
		_, _ = fmt.Fprintf(w, `{"model":"tiny","choices":[%s],"usage":{"prompt_tokens":3,"completion_tokens":%d,"total_tokens":9}}`, strings.Join(list, ","), tokens)
		return
	}
	out := c.stream(q)
	w.Header().Set("Content-Type", "text/event-stream")
	cutHere := n < len(c.cut) && c.cut[n] < len(out)
	if cutHere {
		out = out[:c.cut[n]]
	}
	_, _ = w.Write(out)
	w.(http.Flusher).Flush()
	if cutHere {
		panic(http.ErrAbortHandler)
	}
}

// stream is what the gen worker says, in turns.
func (c *chooser) stream(q seen) []byte {
	var p openai.DisaggParams
	_ = json.Unmarshal(q.body["disaggregated_params"], &p)
	var b bytes.Buffer
	event := func(format string, args ...any) { fmt.Fprintf(&b, "data: "+format+"\n\n", args...) }
	chat, at, total := strings.Contains(q.path, "chat"), make([]int, len(c.choices)), 0
	for i, tokens := range c.choices {
		total += len(tokens)
		switch {
		case p.ChoiceTokens != nil:
			at[i] = len(p.ChoiceTokens[i])
		case p.FirstTokenEmitted:
			at[i] = 1
		case chat:
			event(`{"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, i)
		}
		if at[i] == len(tokens) { // it learns of the end again
			event(`{"choices":[{"index":%d,"%s,"finish_reason":"stop"}]}`, i, map[bool]string{true: `delta":{}`, false: `text":""`}[chat])
		}
	}
	for left := true; left; {
		left = false
		for i, tokens := range c.choices {
			if at[i] >= len(tokens) {
				continue
			}
			text, finish := tokens[at[i]], "null"
			b.Write(openai.AppendIDsComment(nil, i, []int32{int32(100*i + at[i])}))
			if at[i]++; at[i] == len(tokens) {
				finish = `"stop"`
			}
			left = true
			if text == "" && finish == "null" {
				continue
			}
			if chat {
				event(`{"choices":[{"index":%d,"delta":{"content":%q},"finish_reason":%s}]}`, i, text, finish)
			} else {
				event(`{"choices":[{"index":%d,"text":%q,"finish_reason":%s}]}`, i, text, finish)
			}
		}
	}
	if strings.Contains(string(q.body["stream_options"]), "include_usage") {
		event(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d,"total_tokens":%d}}`, total, 3+total)
	}
	event("[DONE]")
	return b.Bytes()
}

// verify proves that a client has each token of each choice once.
func (c *chooser) verify(t interface {
	Fatalf(format string, args ...any)
}, a answer, chat bool,
) {
	texts, ends, roles, usages := make([]string, len(c.choices)), make([]int, len(c.choices)), make([]int, len(c.choices)), 0
	for _, e := range a.events {
		var chunk struct {
			Choices []struct {
				Index        int
				Text         string
				Delta        struct{ Role, Content string }
				FinishReason *string `json:"finish_reason"`
			}
			Usage *openai.Usage
		}
		_ = json.Unmarshal([]byte(e), &chunk)
		for _, x := range chunk.Choices {
			texts[x.Index] += x.Text + x.Delta.Content
			if x.FinishReason != nil {
				ends[x.Index]++
			}
			if x.Delta.Role != "" {
				roles[x.Index]++
			}
		}
		if chunk.Usage != nil {
			usages++
		}
	}
	total := 0
	for i, tokens := range c.choices {
		total += len(tokens)
		if texts[i] != strings.Join(tokens, "") || ends[i] != 1 || roles[i] > 1 || chat && a.err == nil && roles[i] != 1 {
			t.Fatalf("choice %d: %q of %q, %d ends, %d roles\n%s", i, texts[i], tokens, ends[i], roles[i], a.raw)
		}
	}
	if a.err != nil || usages != 1 || !strings.Contains(a.raw, fmt.Sprintf(`"completion_tokens":%d`, total)) || strings.Contains(a.raw, ": ids") ||
		a.events[len(a.events)-1] != "[DONE]" {
		t.Fatalf("ended %v, %d usages, %d tokens\n%s", a.err, usages, total, a.raw)
	}
}

const (
	textMany = `{"model":"tiny","prompt":"hello","stream":true,"stream_options":{"include_usage":true},"n":%d}`
	chatMany = `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true},"n":%d}`
)

// Streams of several choices that break anywhere end with each token exactly once, however differently far the choices had got.
func TestBrokenStreamsOfSeveralChoicesGoOn(t *testing.T) {
	c := &chooser{}
	r := c.rig(t, 2, withConfig(func(c *Config) { c.MaxRetries, c.RetryPause, c.RacePause = 10, time.Microsecond, time.Microsecond }))
	rapid.Check(t, func(t *rapid.T) {
		c.choices, c.early, c.cut = nil, nil, nil
		for i := range rapid.IntRange(2, 4).Draw(t, "n") {
			tokens := []string{fmt.Sprintf("<%d>", i)}
			for k := range rapid.IntRange(0, 6).Draw(t, "tokens") {
				tokens = append(tokens, rapid.SampledFrom([]string{"", "x", "é"}).Draw(t, "token")+fmt.Sprint(k))
				if rapid.Bool().Draw(t, "silent") {
					tokens[k+1] = ""
				}
			}
			c.choices = append(c.choices, tokens)
			if rapid.Bool().Draw(t, "early") {
				c.early = append(c.early, i)
			}
		}
		for i, tokens := range c.choices { // what cannot be shown early has no text of its own
			early := false
			for _, k := range c.early {
				early = early || k == i
			}
			if !early && len(tokens) > 1 {
				tokens[0] = ""
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "cuts") {
			c.cut = append(c.cut, rapid.IntRange(0, 1500).Draw(t, "cut"))
		}
		c.seen.Store(0)
		path, body := completions, textMany
		chat := rapid.Bool().Draw(t, "chat")
		if chat {
			path, body = chats, chatMany
		}
		a := r.post(path, fmt.Sprintf(body, len(c.choices)))
		for _, st := range append(r.gen, r.ctx...) {
			for len(st.aborts) > 0 {
				<-st.aborts
			}
		}
		broke := len(c.cut) > 0 && c.seen.Load() > 1
		c.verify(t, a, chat && !broke)
	})
}

func TestWholeAnswersOfSeveralChoices(t *testing.T) {
	c := &chooser{choices: [][]string{{"a", "b"}, {"c"}, {"d", "e", "f"}}}
	r := c.rig(t, 1)
	a := r.post(completions, `{"model":"tiny","prompt":"hello","n":3}`)
	if len(a.body.Choices) != 3 || a.body.Choices[2].Text != "def" || a.body.Usage.CompletionTokens != 6 || a.body.Usage.PromptTokens != 3 {
		t.Errorf("%s", a.raw)
	}
	c.best = 1
	a = r.post(completions, `{"model":"tiny","prompt":"hello","best_of":3}`)
	a.wantError(t, 502, "logprobs") // which the ctx worker has to give for the choice
	<-r.ctx[0].aborts
}

// TestSeveralChoicesRunContextFirst: the gen leg needs a first token of each.
func TestSeveralChoicesRunContextFirst(t *testing.T) {
	c := &chooser{choices: [][]string{{"a", "b"}, {"c", "d"}}}
	r := c.rig(t, 1, withConfig(func(c *Config) { c.GenerationFirst = true }))
	c.verify(t, r.post(completions, fmt.Sprintf(textMany, 2)), false)
	q := r.ctx[0].requests()
	if len(q) != 1 || !strings.Contains(string(q[0].body["disaggregated_params"]), `"context_first"`) {
		t.Errorf("%d ctx legs: %s", len(q), q[0].body["disaggregated_params"])
	}
}

// TestNoGenLegWhenAllChoicesEnd shows a stream and an answer made of the ctx reply.
func TestNoGenLegWhenAllChoicesEnd(t *testing.T) {
	c := &chooser{choices: [][]string{{"a"}, {"b"}, {"c"}}}
	r := c.rig(t, 1)
	c.verify(t, r.post(completions, fmt.Sprintf(textMany, 3)), false)
	c.verify(t, r.post(chats, fmt.Sprintf(chatMany, 3)), true)
	a := r.post(completions, `{"model":"tiny","prompt":"hello","n":3}`)
	if len(a.body.Choices) != 3 || a.body.Choices[1].Text != "b" || strings.Contains(a.raw, "disaggregated_params") {
		t.Errorf("%s", a.raw)
	}
	c.best = 2
	if a := r.post(completions, `{"model":"tiny","prompt":"hello","n":2,"best_of":3}`); len(a.body.Choices) != 2 || a.body.Usage.CompletionTokens != 3 {
		t.Errorf("%s", a.raw)
	}
	c.best = 1
	r.post(completions, `{"model":"tiny","prompt":"hello","n":2,"best_of":3}`).wantError(t, 502, "1 choices, not 2")
	if n := len(r.gen[0].requests()); n != 0 {
		t.Errorf("%d gen legs", n)
	}
	for len(r.ctx[0].aborts) > 0 {
		<-r.ctx[0].aborts
	}
}

// TestSeveralChoicesGoToWorkersThatFork has workers of both sorts.
func TestSeveralChoicesGoToWorkersThatFork(t *testing.T) {
	c := &chooser{choices: [][]string{{"a", "b"}, {"c", "d"}}}
	able := c.rig(t, 1)
	old := []*stub{newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Generation, genReply{}.script)}
	r := newRig(t, []*stub{old[0], able.ctx[0]}, []*stub{old[1], able.gen[0]})
	for range 4 {
		if a := r.post(completions, `{"model":"tiny","prompt":"hello","n":2}`); a.status != 200 || len(a.body.Choices) != 2 {
			t.Fatalf("%s", a.raw)
		}
	}
	if len(old[0].requests())+len(old[1].requests()) != 0 {
		t.Error("a worker that cannot fork was asked to")
	}
	alone := newRig(t, old[:1], old[1:])
	alone.post(completions, `{"model":"tiny","prompt":"hello","n":2}`).wantError(t, 400, `"n"`, "one choice only")
	alone.post(completions, `{"model":"tiny","prompt":"hello","best_of":2}`).wantError(t, 400, `"best_of"`)
	alone.post(completions, hello).wantOK(t, "ABC")
}

// TestCtxRepliesWithTooFewChoices are refused, and the blocks given up.
func TestCtxRepliesWithTooFewChoices(t *testing.T) {
	for name, reply := range map[string]string{
		"choices": `{"choices":[{"index":0,"text":"a","finish_reason":"not_finished","disaggregated_params":{"disagg_request_id":%[1]d,"ctx_request_id":%[1]d,"first_gen_tokens":[1,2]}}],"prompt_token_ids":[1]}`,
		"tokens":  `{"choices":[{"index":0,"text":"a","finish_reason":"not_finished","disaggregated_params":{"disagg_request_id":%[1]d,"ctx_request_id":%[1]d,"first_gen_tokens":[1]}},{"finish_reason":"stop"}],"prompt_token_ids":[1]}`,
		"an end":  `{"choices":[{"index":0,"text":"a","finish_reason":"not_finished","disaggregated_params":{"disagg_request_id":%[1]d,"ctx_request_id":%[1]d,"first_gen_tokens":[1,2]}},{"finish_reason":null}],"prompt_token_ids":[1]}`,
	} {
		ctx := newStub(t, discovery.Context, func(_ int, q seen, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, fmt.Sprintf(reply, q.params.DisaggRequestID))
		})
		ctx.info.Fork = true
		gen := newStub(t, discovery.Generation, genReply{}.script)
		gen.info.Fork = true
		r := newRig(t, []*stub{ctx}, []*stub{gen})
		if a := r.post(completions, `{"model":"tiny","prompt":"hello","n":2}`); a.status != 502 || len(gen.requests()) != 0 {
			t.Errorf("%s: %d %s", name, a.status, a.raw)
		}
		<-ctx.aborts
	}
}
