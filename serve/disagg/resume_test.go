package disagg

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// teller is a gen worker that says the same tokens to everybody, from where the request is on. Tokens without text, such as
// half characters, have no event of their own.
type teller struct {
	tokens []string
	// cut is the number of bytes after which the connection breaks, for each request in turn; none = not.
	cut  []int
	seen atomic.Int32
}

func (w *teller) stream(q seen) []byte {
	params := openai.DisaggParams{}
	_ = json.Unmarshal(q.body["disaggregated_params"], &params)
	at, chat := 0, strings.Contains(q.path, "chat")
	if params.FirstTokenEmitted {
		at = len(params.FirstGenTokens)
	}
	var b bytes.Buffer
	event := func(text string) { b.WriteString("data: " + text + "\n\n") }
	if chat && !params.FirstTokenEmitted {
		event(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	}
	for i := at; i < len(w.tokens); i++ {
		finish := "null"
		if i == len(w.tokens)-1 {
			finish = `"stop"`
		}
		b.Write(openai.AppendIDsComment(nil, 0, []int32{int32(65 + i)}))
		if w.tokens[i] == "" && finish == "null" {
			continue
		}
		if chat {
			event(fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":%q},"finish_reason":%s}]}`, w.tokens[i], finish))
		} else {
			event(fmt.Sprintf(`{"choices":[{"index":0,"text":%q,"finish_reason":%s}]}`, w.tokens[i], finish))
		}
	}
	if at == len(w.tokens) { // as workers do, it tells the end again
		event(`{"choices":[{"index":0,"text":"","delta":{},"finish_reason":"stop"}]}`)
	}
	if strings.Contains(string(q.body["stream_options"]), "include_usage") {
		event(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}}`, len(w.tokens), 5+len(w.tokens)))
	}
	event("[DONE]")
	return b.Bytes()
}

func (w *teller) script(_ int, q seen, rw http.ResponseWriter, _ *http.Request) {
	n := int(w.seen.Add(1)) - 1
	out := w.stream(q)
	rw.Header().Set("Content-Type", "text/event-stream")
	cutHere := n < len(w.cut) && w.cut[n] < len(out)
	if cutHere {
		out = out[:w.cut[n]]
	}
	_, _ = rw.Write(out)
	rw.(http.Flusher).Flush()
	if cutHere {
		panic(http.ErrAbortHandler)
	}
}

func resumers(t *testing.T, w *teller, n int) (gens []*stub) {
	for range n {
		g := newStub(t, discovery.Generation, w.script)
		g.info.Resume = true
		gens = append(gens, g)
	}
	return gens
}

// textOf joins what a stream says and checks that nothing internal is in it.
func textOf(t interface{ Errorf(string, ...any) }, a answer) (text string, usages int) {
	if strings.Contains(a.raw, ": ids") || strings.Contains(a.raw, "disaggregated_params") {
		t.Errorf("internal: %s", a.raw)
	}
	for _, e := range a.events {
		var c struct {
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
			Usage *openai.Usage
		}
		_ = json.Unmarshal([]byte(e), &c)
		for _, ch := range c.Choices {
			text += ch.Text + ch.Delta.Content
		}
		if c.Usage != nil {
			usages++
		}
	}
	return text, usages
}

const chatStreamed = `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`

// Streams that break anywhere, even within an event, and several times, end with each token exactly once.
func TestBrokenStreamsGoOn(t *testing.T) {
	w := &teller{}
	first := `"first_delta":{"text":"<A>"},`
	cfg := withConfig(func(c *Config) { c.MaxRetries, c.RetryPause, c.RacePause = 10, time.Microsecond, time.Microsecond })
	for _, early := range []bool{false, true} {
		c := ctxReply{}
		if early {
			c.extra = first
		}
		r := newRig(t, []*stub{newStub(t, discovery.Context, c.script)}, resumers(t, w, 2), cfg)
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(2, 8).Draw(t, "tokens")
			w.tokens, w.cut = []string{"<A>"}, nil
			for i := 1; i < n; i++ {
				w.tokens = append(w.tokens, rapid.SampledFrom([]string{"", "x", "é", "yz"}).Draw(t, "token")+fmt.Sprint(i))
				if rapid.Bool().Draw(t, "silent") {
					w.tokens[i] = ""
				}
			}
			for range rapid.IntRange(1, 3).Draw(t, "cuts") {
				w.cut = append(w.cut, rapid.IntRange(0, 900).Draw(t, "cut"))
			}
			w.seen.Store(0)
			path, body := completions, `{"model":"tiny","prompt":"hello","stream":true,"stream_options":{"include_usage":true}}`
			if !early && rapid.Bool().Draw(t, "chat") {
				path, body = chats, chatStreamed
			}
			a := r.post(path, body)
			for _, st := range append(r.gen, r.ctx...) {
				for len(st.aborts) > 0 {
					<-st.aborts // their number is not limited here, what the stub keeps is
				}
			}
			text, usages := textOf(t, a)
			if text != strings.Join(w.tokens, "") || usages != 1 || a.err != nil || a.events[len(a.events)-1] != "[DONE]" {
				t.Fatalf("text %q of %q, %d usages, ended %v:\n%s", text, w.tokens, usages, a.err, a.raw)
			}
			if strings.Count(a.raw, `"role"`) > 1 || strings.Count(a.raw, `"stop"`) != 1 {
				t.Fatalf("something came twice:\n%s", a.raw)
			}
			if !strings.Contains(a.raw, fmt.Sprintf(`"completion_tokens":%d`, n)) {
				t.Fatalf("usage:\n%s", a.raw)
			}
		})
	}
}

func TestResumedRequest(t *testing.T) {
	w := &teller{tokens: []string{"a", "b", "c"}}
	whole := len(w.stream(seen{path: completions}))
	w.cut = []int{whole / 2}
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, resumers(t, w, 2))
	a := r.post(completions, streamed)
	if text, _ := textOf(t, a); text != "abc" {
		t.Fatalf("%s", a.raw)
	}
	q := append(r.gen[0].requests(), r.gen[1].requests()...)
	if len(q) != 2 || len(r.gen[0].requests()) != 1 || q[0].header.Get(openai.HeaderReturnTokenIDs) != "1" {
		t.Fatalf("gen saw %d and %d", len(r.gen[0].requests()), len(r.gen[1].requests()))
	}
	p := q[1].params
	if p.RequestType != "" || !p.FirstTokenEmitted || !slices.Equal(p.FirstGenTokens, []int{65}) || p.CtxUsage == nil ||
		p.DisaggRequestID != q[0].params.DisaggRequestID || string(q[1].body["prompt"]) != "[1,2,3,4,5]" {
		t.Errorf("the second worker got %+v %s", p, q[1].body["prompt"])
	}
	if strings.Contains(string(q[1].body["disaggregated_params"]), "opaque") {
		t.Error("there is no hand-over to fetch")
	}
	if r.obs.count("streams_resumed_total resumed") != 1 {
		t.Errorf("counted: %v", r.obs.seen)
	}
}

// A stream that broke after its end asks another worker for the counts if nobody else knows them. The end is not told twice.
func TestOnlyTheCountsAreMissing(t *testing.T) {
	w := &teller{tokens: []string{"a", "b", "c"}}
	w.cut = []int{strings.Index(string(w.stream(seen{path: completions})), "data: [DONE]")}
	shown := make(chan struct{})
	var once sync.Once
	tell := func(n int, q seen, rw http.ResponseWriter, r *http.Request) {
		defer once.Do(func() { close(shown) })
		w.script(n, q, rw, r)
	}
	r := early(t, []legScript{after(shown, cut)}, []legScript{tell, tell}, ableToResume)
	a := r.post(completions, streamed)
	text, usages := textOf(t, a)
	if text != "abc" || usages != 1 || strings.Count(a.raw, `"stop"`) != 1 || a.events[len(a.events)-1] != "[DONE]" {
		t.Errorf("%s", a.raw)
	}
}

// A stream whose worker falls silent goes on elsewhere too.
func TestStalledStreamGoesOn(t *testing.T) {
	w := &teller{tokens: []string{"a", "b", "c"}}
	slow := newStub(t, discovery.Generation, func(_ int, q seen, rw http.ResponseWriter, r *http.Request) {
		out := w.stream(q)
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = rw.Write(out[:len(out)/2])
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	slow.info.Resume = true
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, append([]*stub{slow}, resumers(t, w, 1)...),
		withConfig(func(c *Config) { c.StreamIdle = 20 * time.Millisecond }))
	a := r.post(completions, streamed)
	if text, _ := textOf(t, a); text != "abc" || a.events[len(a.events)-1] != "[DONE]" {
		t.Errorf("%s", a.raw)
	}
	<-slow.aborts
}

// Without resume, or without a worker that can, the stream ends with an error event as before.
func TestNoResume(t *testing.T) {
	for name, tc := range map[string]struct {
		able bool
		edit func(*Config)
	}{
		"switched off": {true, func(c *Config) { c.Resume = false }},
		"no retry":     {true, func(c *Config) { c.NoRetry = true }},
		"nobody can":   {false, func(*Config) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &teller{tokens: []string{"a", "b", "c"}}
			w.cut = []int{len(w.stream(seen{path: completions})) / 2}
			gens := resumers(t, w, 2)
			for _, g := range gens {
				g.info.Resume = tc.able
			}
			r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, gens, withConfig(tc.edit))
			a := r.post(completions, streamed)
			if last := a.events[len(a.events)-1]; !strings.HasPrefix(last, `{"error"`) || a.err == nil {
				t.Errorf("%q, %v", a.events, a.err)
			}
			if n := len(gens[0].requests()) + len(gens[1].requests()); n != 1 {
				t.Errorf("%d gen requests", n)
			}
		})
	}
}

// Attempts that bring nothing are limited.
func TestResumeGivesUp(t *testing.T) {
	w := &teller{tokens: []string{"a", "b", "c"}}
	half := len(w.stream(seen{path: completions})) / 2
	w.cut = []int{half, 0, 0, 0, 0, 0, 0, 0}
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, resumers(t, w, 2),
		withConfig(func(c *Config) { c.AdmissionTimeout = 2 * time.Second }))
	a := r.post(completions, streamed)
	if last := a.events[len(a.events)-1]; !strings.HasPrefix(last, `{"error"`) || a.err == nil {
		t.Errorf("%q, %v", a.events, a.err)
	}
	if n := w.seen.Load(); n != int32(2+r.cfg.MaxRetries) {
		t.Errorf("%d requests", n)
	}
	if r.obs.count("streams_resumed_total failed") != 1 {
		t.Errorf("counted: %v", r.obs.seen)
	}
}

// Errors that are the request's own end the stream.
func TestRefusalIsNotResumed(t *testing.T) {
	fail := `data: {"error":{"message":"bad","type":"invalid_request_error","code":"grammar_dead_end"}}` + "\n\n"
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": ids 65\n\ndata: "+chunkText("A")+"\n\n"+fail)
	})
	g.info.Resume = true
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, append([]*stub{g}, resumers(t, &teller{tokens: []string{"a"}}, 1)...))
	a := r.post(completions, streamed)
	if len(a.events) != 2 || !strings.Contains(a.events[1], "grammar_dead_end") || len(r.gen[1].requests()) != 0 {
		t.Errorf("%q", a.events)
	}
}
