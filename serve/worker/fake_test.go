package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tokenizer"
	"tandem/engine/transfer"
	"tandem/serve/openai"
)

const eosID = 256

// byteTokenizer has one token for each byte (id = byte) and <eos> as 256.
func byteTokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	vocab := map[string]int{"<eos>": eosID}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xA1 || b == 0xAD {
			r = next
			next++
		}
		vocab[string(r)] = b
	}
	file, err := json.Marshal(map[string]any{
		"added_tokens":  []map[string]any{{"id": eosID, "content": "<eos>", "special": true}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.FromJSON(file, []byte(`{"eos_token":"<eos>"}`))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// fakeEngine answers every request with the bytes of say and then EOS, by the
// rules of the engine. Fields are set before the first request.
type fakeEngine struct {
	info      runner.Info
	say       string
	submitErr error
	failAfter int            // > 0: the output with this many tokens before it is err
	err       *request.Error // with failAfter
	gate      chan struct{}  // not nil: each output waits for a value
	panics    bool
	busy      bool // Abort waits for its context
	cached    int  // reported as cached prompt tokens, 0 = 2
	brokenAt  int  // > 0: Next panics after this many tokens
	health    runner.Health
	route     *runner.Route // nil: not placed
	views     []runner.View
	resets    int                // ranks that ResetCache tells of
	resetErr  error              // and its error
	ranks     []runner.RankStats // of Stats, which are their sum
	abort     executor.AbortState

	mu       sync.Mutex
	reqs     []*request.Request
	opaques  [][]byte
	canceled int
	aborted  []int64
}

func (e *fakeEngine) NewID() request.ID  { return 1 }
func (e *fakeEngine) Now() time.Duration { return time.Hour }
func (e *fakeEngine) Info() runner.Info  { return e.info }
func (e *fakeEngine) Stats(time.Duration) runner.Stats {
	h := e.health
	if h == "" {
		h = runner.HealthIdle
	}
	return runner.Stats{Health: h, LastStepAge: 1500 * time.Microsecond, Alive: 3, Ranks: e.ranks, Stats: executor.Stats{
		BlocksTotal: 15, BlocksFree: 1, BlocksActive: 2, BlocksReusable: 3, BlocksLeased: 4, BlocksReceiving: 5,
		HandoffsOpen: 6, Receiving: 7, Running: 8, Waiting: 9,
	}}
}

// Views implements Engine.
func (e *fakeEngine) Views(context.Context) []runner.View { return e.views }

func (e *fakeEngine) ResetCache(context.Context) (int, error) {
	return e.resets, e.resetErr
}

func (e *fakeEngine) Abort(ctx context.Context, id int64) (executor.AbortState, error) {
	if e.busy {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aborted = append(e.aborted, id)
	return e.abort, nil
}

func (e *fakeEngine) Submit(_ context.Context, r *request.Request, opaque []byte) (Stream, error) {
	if e.panics {
		panic("broken on purpose")
	}
	if e.submitErr != nil {
		return nil, e.submitErr
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reqs = append(e.reqs, r)
	e.opaques = append(e.opaques, opaque)
	return &fakeStream{e: e, r: r, at: make([]int, r.Answers()), done: make([]bool, r.Answers()), choice: r.Answers() - 1}, nil
}

func (e *fakeEngine) last(t *testing.T) *request.Request {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.reqs) == 0 {
		t.Fatal("the engine got no request")
	}
	return e.reqs[len(e.reqs)-1]
}

func (e *fakeEngine) count() (reqs, canceled int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.reqs), e.canceled
}

type fakeStream struct {
	e     *fakeEngine
	r     *request.Request
	ended bool

	choice int // the choices take turns
	n      int // tokens of it so far
	at     []int
	done   []bool
}

// turn goes on to the next choice that has not ended.
func (s *fakeStream) turn() {
	s.at[s.choice] = s.n
	for range s.at {
		if s.choice = (s.choice + 1) % len(s.at); !s.done[s.choice] {
			break
		}
	}
	s.n = s.at[s.choice]
}

// firstTokens are those of the choice.
func (s *fakeStream) firstTokens() []request.Token {
	if len(s.at) > 1 && len(s.r.FirstTokens) > 0 {
		return s.r.FirstTokens[s.choice : s.choice+1]
	}
	return s.r.FirstTokens
}

func (s *fakeStream) Cancel() {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if !s.ended {
		s.ended = true
		s.e.canceled++
	}
}

func (s *fakeStream) Route() (runner.Route, bool) {
	if s.e.route == nil {
		return runner.Route{}, false
	}
	return *s.e.route, true
}

func (s *fakeStream) token() request.Token {
	id := int32(eosID)
	say := s.e.say[min(s.choice+int(s.r.Sampling.Stream), len(s.e.say)):] // another text in each choice
	if s.n < len(say) {
		id = int32(say[s.n])
	}
	t := request.Token{ID: id}
	if n := s.r.Sampling.Logprobs; n >= 0 {
		t.Logprob, t.Rank = -0.5-float64(s.n), 1 // shorter answers have a higher mean
		for k := range n {
			alt := request.TopLogprob{ID: id, Logprob: t.Logprob}
			if k > 0 {
				alt = request.TopLogprob{ID: int32('0' + k), Logprob: t.Logprob - float64(k)}
			}
			t.Top = append(t.Top, alt)
		}
	}
	return t
}

func (s *fakeStream) Next(ctx context.Context) (runner.Output, error) {
	for {
		if s.e.gate != nil {
			select {
			case <-s.e.gate:
			case <-ctx.Done():
				s.Cancel()
				return runner.Output{}, context.Cause(ctx)
			}
		}
		s.turn()
		if s.e.brokenAt > 0 && s.n >= s.e.brokenAt {
			panic("broken on purpose")
		}
		var o runner.Output
		if s.e.failAfter > 0 && s.n >= s.e.failAfter {
			o.Finish, o.Err = request.FinishError, s.e.err
		} else {
			s.step(&o)
		}
		if o.Finish != request.Running {
			s.done[s.choice] = true
			s.e.mu.Lock()
			s.ended = !slices.Contains(s.done, false)
			s.e.mu.Unlock()
		}
		if s.n <= len(s.firstTokens()) && s.r.FirstEmitted && o.Finish == request.Running {
			continue // the client has it
		}
		return o, nil
	}
}

func (s *fakeStream) step(o *runner.Output) {
	r := s.r
	t, first := s.token(), s.firstTokens()
	if s.n < len(first) {
		t = first[s.n]
	}
	o.Request, o.Choice, o.First, o.Tokens = r, s.choice, s.n, []request.Token{t}
	if r.Score != nil && s.choice == 0 && s.n == 0 {
		for i, id := range r.Prompt[1:] {
			sc := request.Token{ID: id, Logprob: -float64(i) - 1, Rank: i + 2}
			for k := range r.Score.Top {
				sc.Top = append(sc.Top, request.TopLogprob{ID: int32('a' + k), Logprob: -float64(k) / 4})
			}
			o.Prompt = append(o.Prompt, sc)
		}
	}
	out := r.Text
	if s.choice > 0 {
		out = r.ForkTexts[s.choice-1]
	}
	s.n++
	o.Usage = request.Usage{PromptTokens: len(r.Prompt), CompletionTokens: s.n, CachedTokens: cmp.Or(s.e.cached, 2)}
	text, stopped := out.Push(t.ID)
	o.Text = text
	switch {
	case t.ID == eosID && !r.Sampling.IgnoreEOS:
		o.Text += out.Flush()
		o.Finish = request.FinishStop
	case stopped:
		o.Finish = request.FinishStop
	case s.n >= r.MaxTokens:
		o.Text += out.Flush()
		o.Finish = request.FinishLength
	case r.Kind == request.ContextOnly:
		o.Finish = request.FinishNotFinished
		if s.choice == 0 {
			o.Handle = &transfer.Handle{Rank: 0, Endpoint: "tcp://127.0.0.1:9"}
			o.Opaque = []byte("opaque")
		}
	}
}

// fakeTemplate renders "role: content" lines.
type fakeTemplate struct{}

func (fakeTemplate) Render(messages, tools, kwargs json.RawMessage) (string, error) {
	var list []struct{ Role, Content string }
	if err := json.Unmarshal(messages, &list); err != nil {
		return "", err
	}
	var b strings.Builder
	if strings.Contains(string(kwargs), "messages") {
		return "", openai.Invalid("chat_template_kwargs", "messages has its own request field")
	}
	for _, m := range list {
		if m.Content == "refuse me" {
			return "", errors.New("conversation roles must alternate")
		}
		fmt.Fprintf(&b, "%s: %s\n", m.Role, m.Content)
	}
	if tools != nil {
		b.WriteString("[tools]\n")
	}
	return b.String(), nil
}

func newEngine(role executor.Role, say string) *fakeEngine {
	return &fakeEngine{say: say, info: runner.Info{
		Role: role, Model: "tiny", Fingerprint: "fp", Incarnation: "inc", Namespace: "tiny@fp",
		TransferEndpoint: "tcp://127.0.0.1:9", GenFirst: []byte("template"), Vocab: 257, MaxBatch: 4, MaxNumTokens: 64, MaxSeqLen: 128,
		Layout: transfer.Layout{Layers: 2, KVHeads: 1, HeadDim: 8, DType: "F32", BlockTokens: 16},
	}}
}

// serveFake starts a server with an engine behind it.
func serveFake(t *testing.T, e *fakeEngine, change func(*Config)) *httptest.Server {
	t.Helper()
	cfg := Config{Version: "1.2.3", Trusted: true, Transceiver: true, MaxBody: 1 << 20}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	if e != nil {
		s.Attach(Backend{Engine: e, Tokenizer: byteTokenizer(t), Template: fakeTemplate{}})
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv
}

// post sends a body and returns status, headers and text.
func post(t *testing.T, url, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return do(t, req)
}

func get(t *testing.T, url string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (int, http.Header, string) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		text = append(text, []byte("<<"+err.Error()+">>")...)
	}
	return res.StatusCode, res.Header, string(text)
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// wireErr reads an error body.
func wireErr(t *testing.T, status int, text string) *openai.Error {
	t.Helper()
	return openai.ParseError(status, http.Header{}, []byte(text))
}

// eventsOf splits a stream into the data of its events and its comments.
func eventsOf(t *testing.T, text string) (data, comments []string) {
	t.Helper()
	r := openai.NewEventReader(bytes.NewReader([]byte(text)), 0)
	for {
		ev, err := r.Next()
		if err != nil {
			return data, comments
		}
		if d, ok := openai.EventData(ev); ok {
			data = append(data, string(d))
		} else {
			comments = append(comments, strings.TrimSpace(string(ev)))
		}
	}
}
