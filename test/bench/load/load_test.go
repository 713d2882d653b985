package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/stub"
	"tandem/test/bench/workload"
	"tandem/test/ports"
)

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func options(t *testing.T, url string, api API, w *workload.Workload, o schedule.Options) Options {
	t.Helper()
	c := &Client{URL: url + "/v1", API: api, Model: stub.Model, SessionHeader: "X-Session-ID", ParentHeader: "X-Parent-Session-ID", FinalHeader: "X-Final", Timeout: time.Minute}
	t.Cleanup(func() { c.http.CloseIdle() })
	return Options{Client: c, Prompts: &Prompts{API: api, Model: stub.Model, Vocabulary: PlainVocabulary(), IgnoreEOS: true}, Workload: w, Schedule: o}
}

func mustRun(t *testing.T, o Options) []*result.Record {
	t.Helper()
	records, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func random(n int) *workload.Workload {
	return workload.Random(workload.RandomOptions{Requests: n, Input: workload.Fixed(40), Output: workload.Fixed(5), Seed: 1})
}

func TestRunRecordsWhatHappens(t *testing.T) {
	for _, api := range []API{Chat, Completions} {
		url := serve(t, &stub.Server{TTFT: 20 * time.Millisecond, ITL: 5 * time.Millisecond})
		var kept int
		o := options(t, url, api, random(6), schedule.Options{Mode: schedule.Concurrency, Concurrency: 3})
		o.OnRecord = func(*result.Record) { kept++ }
		o.Progress = &Progress{}
		records := mustRun(t, o)
		if len(records) != 6 || kept != 6 || o.Progress.Chunks.Load() != 30 || o.Progress.TTFT().Count != 6 {
			t.Fatalf("%s: %d records, %d kept, %d chunks", api, len(records), kept, o.Progress.Chunks.Load())
		}
		for _, r := range records {
			gaps := int64(0)
			for _, g := range r.Gaps {
				gaps += g
			}
			if r.Outcome != result.OK || r.Input != 40 || r.Output != 5 || r.Counted != "usage" || r.Finish != "length" || !strings.HasPrefix(r.ServerID, "stub-") || r.Status != 200 {
				t.Errorf("%s: %+v", api, r)
			}
			ordered := r.Sched <= r.Send && r.Send <= r.Header && r.Header <= r.First && r.First == r.FirstAnswer && r.First <= r.Last && r.Last <= r.End
			if !ordered || r.TTFT() < 0.020 || r.E2EL() < 0.040 || gaps != r.Last-r.First || len(r.Gaps) > 4 {
				t.Errorf("%s: times %+v", api, r)
			}
		}
	}
}

func TestOutcomes(t *testing.T) {
	statuses := []int{0, 429, 503, 500, 400}
	url := serve(t, &stub.Server{Fail: func(n int64) int { return statuses[n-1] }})
	counts := map[result.Outcome]int{}
	for _, r := range mustRun(t, options(t, url, Chat, random(5), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})) {
		counts[r.Outcome]++
		if r.Outcome != result.OK && !strings.Contains(r.Error, "refused on purpose") {
			t.Error(r.Error)
		}
	}
	if counts[result.OK] != 1 || counts[result.Shed] != 2 || counts[result.Failed] != 2 {
		t.Errorf("%v", counts)
	}
}

func TestATimeoutAndAClosedDoor(t *testing.T) {
	o := options(t, serve(t, &stub.Server{TTFT: time.Hour}), Chat, random(1), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})
	o.Client.Timeout = 300 * time.Millisecond
	if r := mustRun(t, o)[0]; r.Outcome != result.Timeout || r.First != result.Unset || r.Send < 0 || !strings.Contains(r.Error, "within 300ms") {
		t.Errorf("%+v", r)
	}
	o = options(t, "http://127.0.0.1:"+strconv.Itoa(ports.Free(t)), Chat, random(1), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})
	if r := mustRun(t, o)[0]; r.Outcome != result.Failed || r.Send < 0 || r.Error == "" {
		t.Errorf("%+v", r)
	}
	o.Schedule.Duration, o.Schedule.Recycle, o.Schedule.Concurrency = 5*nobody/2, true, 2
	if r := mustRun(t, o); len(r) > 6 {
		t.Errorf("%d requests went to a server that is not there", len(r))
	}
}

func TestWhatIsLateAfterTheGraceTimeIsCancelled(t *testing.T) {
	o := options(t, serve(t, &stub.Server{TTFT: time.Hour}), Chat, random(1), schedule.Options{Mode: schedule.Concurrency, Concurrency: 2, Duration: 200 * time.Millisecond, Recycle: true})
	o.Grace = 20 * time.Millisecond
	records := mustRun(t, o)
	if len(records) != 2 || records[0].Outcome != result.Cancelled || !strings.Contains(records[0].Error, "grace") {
		t.Errorf("%d records", len(records))
	}
}

// A closed loop of more slots than requests does not reach its load, and counts that no request can have are no counts.
func TestProgressTellsWhatWasNotReached(t *testing.T) {
	o := options(t, serve(t, &stub.Server{}), Chat, random(3), schedule.Options{Mode: schedule.Concurrency, Concurrency: 5})
	o.Progress = &Progress{}
	if mustRun(t, o); o.Progress.Spare.Load() != 2 || o.Progress.Cut.Load() != 0 {
		t.Errorf("%d spare, %d cut", o.Progress.Spare.Load(), o.Progress.Cut.Load())
	}
	for _, u := range []usage{{Prompt: -1}, {Completion: -1}, {Prompt: 1 << 50}} {
		x := exchange{r: &result.Record{}}
		if x.take(&chunk{Usage: &u}); x.used || !u.odd() {
			t.Errorf("%+v is taken for what the server counted", u)
		}
	}
}

func TestAnInterruptEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := options(t, serve(t, &stub.Server{TTFT: time.Hour, Seen: func(http.Header, []byte) { cancel() }}), Chat, random(3), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})
	records, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || len(records) != 1 || records[0].Outcome != result.Cancelled {
		t.Errorf("%d records, %v", len(records), err)
	}
}

// A server that is elsewhere, or says nothing, is reported with what to do.
func TestRedirectsAndEmptyErrors(t *testing.T) {
	for want, answer := range map[string]func(http.ResponseWriter){
		"status 307: redirected to http://elsewhere/: name that server": func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://elsewhere/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"status 502: Bad Gateway": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
		o := options(t, srv.URL, Chat, random(1), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})
		if r := mustRun(t, o)[0]; r.Error != want {
			t.Errorf("%q, want %q", r.Error, want)
		}
		srv.Close()
	}
}

func TestAnInterruptedProbeBlamesNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := options(t, serve(t, &stub.Server{TTFT: time.Hour, Seen: func(http.Header, []byte) { cancel() }}), Chat, random(1), schedule.Options{})
	if _, err := Calibrate(ctx, o.Client, o.Prompts); !errors.Is(err, context.Canceled) || errors.Is(err, ErrProbe) {
		t.Error(err)
	}
}

// seen collects what the server got.
type seen struct {
	mu     sync.Mutex
	bodies []map[string]any
	heads  []http.Header
}

func (s *seen) add(h http.Header, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		m = map[string]any{"error": err.Error()}
	}
	s.bodies, s.heads = append(s.bodies, m), append(s.heads, h.Clone())
}

func TestConversations(t *testing.T) {
	for _, actual := range []bool{false, true} {
		var got seen
		w := workload.MultiTurn(workload.MultiTurnOptions{Conversations: 1, Turns: workload.Fixed(3), First: workload.Fixed(10), Next: workload.Fixed(4), Output: workload.Fixed(3), Seed: 2})
		o := options(t, serve(t, &stub.Server{Word: " real", Seen: got.add}), Chat, w, schedule.Options{Mode: schedule.Sessions, Concurrency: 1, Recycle: true, Requests: 6})
		o.ActualReplies = actual
		records := mustRun(t, o)
		last := got.bodies[2]["messages"].([]any)
		if len(last) != 5 || records[2].Turn != 2 || records[3].Turn != 0 {
			t.Fatalf("the third turn has %d messages; turns %d, %d", len(last), records[2].Turn, records[3].Turn)
		}
		message := func(body, i int) string {
			return got.bodies[body]["messages"].([]any)[i].(map[string]any)["content"].(string)
		}
		if role := last[1].(map[string]any)["role"]; role != "assistant" || (message(2, 1) == " real real real") != actual {
			t.Errorf("actual %v: the first answer is %q by %v", actual, message(2, 1), role)
		}
		if message(0, 0) != message(2, 0) || message(0, 0) == message(3, 0) || len(strings.Fields(message(0, 0))) != 10 {
			t.Errorf("first messages %q, %q, %q", message(0, 0), message(2, 0), message(3, 0))
		}
		id, again := got.heads[0].Get("X-Session-ID"), got.heads[3].Get("X-Session-ID")
		if id != "c0" || again != "c0-1" || got.heads[2].Get("X-Final") != "true" || got.heads[1].Get("X-Final") != "" {
			t.Errorf("ids %q, %q", id, again)
		}
	}
}

func TestBodies(t *testing.T) {
	p := &Prompts{API: Completions, Model: "m", Vocabulary: &Vocabulary{words: []string{"a", "b"}, ids: []int32{7, 8}}, IDs: true, Extra: map[string]json.RawMessage{"max_tokens": json.RawMessage("9"), "top_k": json.RawMessage("1")}}
	priority := 0.5
	w := &workload.Workload{Requests: []workload.Request{
		{ID: "x", Input: 4, Output: 3, Priority: &priority},
		{ID: "y", Input: 4, Output: 3, Prompt: []workload.Segment{{ID: 5, Tokens: 4}}},
	}}
	if err := p.Bind(w); err != nil {
		t.Fatal(err)
	}
	body, err := p.Body(&w.Requests[0], 0, 0)
	var m struct {
		Prompt   []int
		Max      int     `json:"max_tokens"`
		TopK     int     `json:"top_k"`
		Priority float64 `json:"priority"`
		Ignore   bool    `json:"ignore_eos"`
		Options  struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil || len(m.Prompt) != 4 || m.Max != 9 || m.TopK != 1 || m.Priority != 0.5 || m.Ignore || !m.Options.Usage || strings.Count(string(body), "max_tokens") != 1 {
		t.Errorf("%s: %v", body, err)
	}
	w.Texts = map[uint64]string{5: "say \"hi\"\n"}
	body, err = p.Body(&w.Requests[1], 0, 0)
	if err != nil || !strings.Contains(string(body), `"prompt":"say \"hi\"\n"`) {
		t.Errorf("%s: %v", body, err)
	}
	if err := (&Prompts{API: Chat, Vocabulary: PlainVocabulary(), IDs: true}).Bind(w); err == nil {
		t.Error("ids are accepted for chats")
	}
}

func TestSaltMakesNewTexts(t *testing.T) {
	w := random(1)
	text := func(salt uint64, play int) string {
		p := Prompts{API: Completions, Vocabulary: PlainVocabulary(), Salt: salt}
		if err := p.Bind(w); err != nil {
			t.Fatal(err)
		}
		b, err := p.Body(&w.Requests[0], play, 0)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if again := text(0, 0); again != text(0, 0) || text(0, 0) == text(1, 0) || text(0, 0) == text(0, 1) {
		t.Error("texts do not go with salt and play")
	}
}

func TestVocabulary(t *testing.T) {
	v := PlainVocabulary()
	known := map[string]bool{}
	for _, w := range v.words {
		if known[w] || !plain(w) {
			t.Errorf("the word %q is there twice, or is not plain", w)
		}
		known[w] = true
	}
	// A tokenizer in which every third word falls apart at the beginning of a text.
	decode := func(id int32) string { return " " + v.words[id] }
	encode := func(text string) []int32 {
		var out []int32
		for i, w := range strings.Fields(text) {
			for id, x := range v.words {
				if x == w {
					if i == 0 && id%3 == 0 {
						out = append(out, -1)
					}
					out = append(out, int32(id))
				}
			}
		}
		return out
	}
	got, err := NewVocabulary(300, decode, encode)
	if err != nil || len(got.words) != 200 {
		t.Errorf("%v", err)
	}
	if _, err := NewVocabulary(30, decode, encode); !errors.Is(err, ErrVocabulary) {
		t.Errorf("a vocabulary of few words is accepted: %v", err)
	}
}

func TestCalibrate(t *testing.T) {
	url := serve(t, &stub.Server{Overhead: 11})
	o := options(t, url, Chat, random(1), schedule.Options{})
	cal, err := Calibrate(t.Context(), o.Client, o.Prompts)
	if err != nil || cal.Overhead != 11 || cal.PerWord != 1 || !cal.Known {
		t.Errorf("%+v, %v", cal, err)
	}
	o.Prompts.Overhead = cal.Overhead
	o.Schedule = schedule.Options{Mode: schedule.Concurrency, Concurrency: 1}
	if r := mustRun(t, o)[0]; r.Input != 40 {
		t.Errorf("a prompt of 40 tokens has %d with the template", r.Input)
	}
	silent := options(t, serve(t, &stub.Server{NoUsage: true}), Chat, random(1), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})
	if cal, err := Calibrate(t.Context(), silent.Client, silent.Prompts); err != nil || cal.Known {
		t.Errorf("%+v, %v", cal, err)
	}
	if r := mustRun(t, silent)[0]; r.Output != 5 || r.Counted != "asked" {
		t.Errorf("%+v", r)
	}
	silent.Client.Count = func(text string) int { return len(strings.Fields(text)) }
	if r := mustRun(t, silent)[0]; r.Output != 5 || r.Counted != "tokenizer" {
		t.Errorf("%+v", r)
	}
	broken := options(t, serve(t, &stub.Server{Fail: func(int64) int { return 404 }}), Chat, random(1), schedule.Options{})
	if _, err := Calibrate(t.Context(), broken.Client, broken.Prompts); !errors.Is(err, ErrProbe) {
		t.Errorf("%v", err)
	}
	if m, err := o.Client.Models(t.Context()); err != nil || len(m) != 1 || m[0] != stub.Model {
		t.Errorf("%v, %v", m, err)
	}
}

// events plays a fixed stream.
func events(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Server-Timing", "route;dur=1.5")
		for _, e := range strings.SplitAfter(text, "\n\n") {
			fmt.Fprint(w, e)
			w.(http.Flusher).Flush()
		}
	})
}

func TestStreams(t *testing.T) {
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	for name, c := range map[string]struct {
		stream  string
		outcome result.Outcome
		check   func(*result.Record) bool
	}{
		"reasoning": {
			`data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}` + "\n\n" + `data: {"choices":[{"delta":{"reasoning":"hm"}}]}` + "\n\n" + `data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop","avg_decoded_tokens_per_iter":1.5}]}` + "\n\n" + usage + "data: [DONE]\n\n",
			result.OK, func(r *result.Record) bool {
				return r.FirstAnswer == r.Last && r.First <= r.FirstAnswer && r.Cached == 4 && r.Output == 3 && len(r.Gaps) == 2 && r.PerIter == 1.5
			},
		},
		"tool call": {
			`data:{"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}` + "\r\n\r\n: Server-Timing: decode;dur=7\n\ndata: [DONE]\n\n",
			result.OK, func(r *result.Record) bool {
				return r.First == r.FirstAnswer && r.First > 0 && r.Stages["decode"] == 7 && r.Stages["route"] == 1.5
			},
		},
		"no end":    {`data: {"choices":[{"text":"a"}]}` + "\n\n", result.Failed, func(r *result.Record) bool { return strings.Contains(r.Error, "before the answer") }},
		"no [DONE]": {`data: {"choices":[{"text":"a","finish_reason":"stop"}]}` + "\n\n", result.OK, func(r *result.Record) bool { return r.Counted == "none" }},
		"error":     {`data: {"error":{"message":"gone wrong"}}` + "\n\n", result.Failed, func(r *result.Record) bool { return strings.Contains(r.Error, "gone wrong") }},
		"no JSON":   {"data: {nonsense\n\n", result.Failed, func(r *result.Record) bool { return strings.Contains(r.Error, "{nonsense") }},
	} {
		r := mustRun(t, options(t, serve(t, events(c.stream)), Chat, random(1), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1}))[0]
		if r.Outcome != c.outcome || !c.check(r) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestSearch(t *testing.T) {
	for _, c := range []struct{ limit, start, low, high float64 }{
		{37, 1, 0, 1e9}, {37, 64, 0, 1e9}, {0.001, 1, 0.01, 1}, {1e9, 1, 0, 100},
	} {
		s, err := NewSearch(c.start, 0.01, max(c.high, c.start), 0.05)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for x, ok := s.Next(); ok; x, ok = s.Next() {
			s.Add(x <= c.limit)
			if n++; n > 60 {
				t.Fatal("the search does not end")
			}
		}
		low, high := s.Bracket()
		switch {
		case c.limit < 0.01 && (low != 0 || high != 0.01):
			t.Errorf("%v: nothing is good, yet the bracket is %g to %g", c, low, high)
		case c.limit == 1e9 && low != 100:
			t.Errorf("%v: all is good, yet the bracket is %g to %g", c, low, high)
		case c.limit == 37 && (low > 37 || high <= 37 || high/low > 1.06):
			t.Errorf("%v: bracket %g to %g", c, low, high)
		}
	}
	if _, err := NewSearch(5, 10, 20, 0.05); err == nil {
		t.Error("a start below the least is accepted")
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"), 3)
	f.Add([]byte(": Server-Timing: a;dur=1\r\ndata:{}\n"), 1)
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		if step < 1 {
			step = 1
		}
		read := func(step int) (*result.Record, error) {
			x := exchange{r: &result.Record{First: -1, FirstAnswer: -1}, now: func() int64 { return 1 }, keep: true}
			for at := 0; at < len(data); at += step {
				if err := x.lines.feed(data[at:min(len(data), at+step)], x.line); err != nil {
					return x.r, err
				}
			}
			x.r.Error = x.text.String()
			return x.r, nil
		}
		a, errA := read(step)
		b, errB := read(len(data) + 1)
		if (errA == nil) != (errB == nil) || errA == nil && fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("pieces of %d: %+v, %v; at once: %+v, %v", step, a, errA, b, errB)
		}
	})
}

func TestClientsThatLeaveAndTurnsThatAreNotMeasured(t *testing.T) {
	w := random(2)
	w.Requests[0].Leave = 10 * time.Millisecond
	w.Requests[1].Warm = true
	slow := &stub.Server{TTFT: time.Hour}
	o := options(t, serve(t, slow), Chat, &workload.Workload{Requests: w.Requests[:1]}, schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})
	if r := mustRun(t, o); len(r) != 1 || r[0].Outcome != result.Cancelled || r[0].Phase != result.Measured {
		t.Errorf("%+v", r[0])
	}
	o = options(t, serve(t, &stub.Server{}), Chat, &workload.Workload{Requests: w.Requests[1:]}, schedule.Options{Mode: schedule.Concurrency, Concurrency: 1, Recycle: true, Requests: 2})
	r := mustRun(t, o)
	if len(r) != 2 || r[0].Phase != result.Warmup || r[1].Phase != result.Measured {
		t.Errorf("phases %s and %s", r[0].Phase, r[1].Phase)
	}
}
