package reroute

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/serve/disagg"
	"tandem/serve/discovery"
	"tandem/serve/router"
	"tandem/serve/trace"
	"tandem/test/bench/traces"
)

// worker answers as ctx and gen workers do.
func worker(t *testing.T, role discovery.Role) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(discovery.ServerInfo{
			Role: role, Model: "tiny", Fingerprint: "f", Incarnation: "i", MaxSeqLen: 8192, TokensPerBlock: 16, MaxBatchSize: 8,
		})
	})
	mux.HandleFunc("POST /v1/", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Params struct {
				ID int64 `json:"disagg_request_id"`
			} `json:"disaggregated_params"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		finish, params := "stop", "null"
		if role == discovery.Context {
			finish = "not_finished"
			params = fmt.Sprintf(`{"request_type":"context_only","disagg_request_id":%d,"ctx_request_id":%d,"ctx_dp_rank":0,`+
				`"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":"b3BhcXVl","first_gen_tokens":[65]}`, body.Params.ID, body.Params.ID)
		}
		_, _ = fmt.Fprintf(w, `{"id":"x","object":"text_completion","created":7,"model":"tiny","prompt_token_ids":[1,2,3],"choices":[{"index":0,"text":"A",`+
			`"finish_reason":%q,"disaggregated_params":%s}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`, finish, params)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// frontend serves three ctx and two gen workers with routers of a kind, and captures what they decide.
func frontend(t *testing.T, kind, dir string) (url string, end func()) {
	t.Helper()
	list := discovery.Config{MinContext: 1, MinGen: 1}
	for range 3 {
		list.Context = append(list.Context, worker(t, discovery.Context))
	}
	for range 2 {
		list.Generation = append(list.Generation, worker(t, discovery.Generation))
	}
	reg, err := discovery.New(list, discovery.Options{Prober: discovery.HTTPProber{Client: http.DefaultClient}})
	if err != nil {
		t.Fatal(err)
	}
	parts := disagg.Parts{Registry: reg}
	if parts.Capture, err = trace.NewCapture(trace.CaptureOptions{Dir: dir, MaxBytes: 1 << 30, MaxFiles: 1, Routes: true}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*router.Router{&parts.Context, &parts.Generation} {
		if *r, err = router.NewRouter(router.Config{Type: kind}); err != nil {
			t.Fatal(err)
		}
	}
	cfg := disagg.DefaultConfig()
	cfg.ExposeRouting = true
	s, err := disagg.New(cfg, parts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { reg.Run(ctx) })
	if err := reg.WaitStart(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	s.SetStarted()
	front := httptest.NewServer(s.Handler())
	return front.URL, func() {
		front.Close()
		s.Drain(t.Context())
		s.Close()
		cancel()
		wg.Wait()
		if err := parts.Capture.Close(); err != nil {
			t.Error(err)
		}
	}
}

// prompt of a turn: texts and token ids that grow, of conversations that share their beginning.
func prompt(client, turn int) string {
	if client%2 == 0 {
		return `"` + strings.Repeat("You are a héłpful assistant. ", 12) + strings.Repeat(fmt.Sprintf("Client %d says that. ", client), 9*(turn+1)) + `"`
	}
	ids := make([]string, 0, 400)
	for i := range 80 + 60*turn {
		ids = append(ids, fmt.Sprint(i*7%50+(i/64)*client))
	}
	return "[" + strings.Join(ids, ",") + "]"
}

// talk sends the turns of a client and counts where they went.
func talk(t *testing.T, url string, client int, note func(ctx, gen string)) {
	for turn := range 6 {
		body := fmt.Sprintf(`{"model":"tiny","prompt":%s,"max_tokens":%d}`, prompt(client, turn), 4+client)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		if client%3 != 0 {
			req.Header.Set("X-Session-ID", fmt.Sprint("client", client))
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%d %s", resp.StatusCode, text)
			return
		}
		note(resp.Header.Get("X-Disagg-Ctx-Server"), resp.Header.Get("X-Disagg-Gen-Server"))
	}
}

// captured runs clients side by side against a frontend, and returns its trace and where the receipts say that requests went.
func captured(t *testing.T, kind string) (open func() []traces.Part, ctx, gen map[string]int) {
	t.Helper()
	dir := t.TempDir()
	url, end := frontend(t, kind, dir)
	ctx, gen = map[string]int{}, map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for client := range 8 {
		wg.Go(func() {
			talk(t, url, client, func(c, g string) {
				mu.Lock()
				defer mu.Unlock()
				ctx[c]++
				gen[g]++
			})
		})
	}
	wg.Wait()
	end()
	data := only(t, dir)
	return func() []traces.Part { return part(data) }, ctx, gen
}

// only is the content of the only file of a capture.
func only(t *testing.T, dir string) string {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "*.gz"))
	if len(names) != 1 {
		t.Fatalf("files %v", names)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func part(text string) []traces.Part {
	return []traces.Part{{Name: "some.gz", In: strings.NewReader(text)}}
}

// A frontend is captured under load, and routers made anew decide the same, request by request.
func TestCapturedRunReplays(t *testing.T) {
	for _, kind := range []string{router.KindRoundRobin, router.KindLoad, router.KindConversation, router.KindKVAware, router.KindHybrid} {
		t.Run(kind, func(t *testing.T) {
			open, ctx, gen := captured(t, kind)
			res, err := Replay(open(), "")
			if err != nil {
				t.Fatal(err)
			}
			if res.Missing > 0 {
				t.Errorf("%d decisions are missing", res.Missing)
			}
			for _, leg := range []struct {
				Leg
				receipts map[string]int
			}{{res.Ctx, ctx}, {res.Gen, gen}} {
				if leg.Router != kind || leg.Decisions != 48 || leg.Same != 48 || leg.Reasons != 48 || leg.First != "" {
					t.Errorf("%+v", leg.Leg)
				}
				if fmt.Sprint(leg.Now) != fmt.Sprint(leg.receipts) || fmt.Sprint(leg.Then) != fmt.Sprint(leg.receipts) {
					t.Errorf("decisions %v, replayed %v, receipts %v", leg.Then, leg.Now, leg.receipts)
				}
			}
			other := router.KindRoundRobin // which keeps no conversation where it is
			if kind == other || kind == router.KindLoad {
				other = router.KindConversation
			}
			if res, err = Replay(open(), other); err != nil || res.Ctx.Router != other || res.Ctx.Decisions != 48 || res.Ctx.Same == 48 || res.Ctx.First == "" {
				t.Errorf("with %s: %+v, %v", other, res, err)
			}
		})
	}
}

func TestReplayRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"": "no decisions", `{"kind":"trace-header","version":1}`: "no decisions", "{}\nnot json": "some.gz: line 2", "\x1f\x8b": "some.gz: gzip",
		`{"kind":"route","router":"fastest"}`: "fastest", `{"kind":"route","n":"x"}`: "decision", `{"kind":"release","n":"x"}`: "release",
	} {
		if _, err := Replay(part(text), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	// An end of what was decided before the trace begins is nobody's.
	ok := `{"kind":"release","n":7,"success":true}` + "\n" + `{"kind":"route","n":8,"router":"round_robin","candidates":["a"],"server":"a","outcome":"load"}`
	if res, err := Replay(part(ok), ""); err != nil || res.Ctx.Same != 1 || res.Missing != 7 {
		t.Errorf("%+v, %v", res, err)
	}
}

// turns captures what a router that takes two workers in turn has decided, from a decision on.
func turns(t *testing.T, from, n int) string {
	t.Helper()
	dir, start := t.TempDir(), time.Now()
	c, err := trace.NewCapture(trace.CaptureOptions{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1, Routes: true}, start)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		c.Choose(&trace.Chosen{
			Number: uint64(from + i), Router: router.KindRoundRobin, Candidates: []string{"a", "b"}, Server: []string{"a", "b"}[i%2], Outcome: "load",
		}, start)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return only(t, dir)
}

// Of a file that a frontend is writing, or was writing when it died, the whole lines count.
func TestReplayOfAFileWithoutEnd(t *testing.T) {
	data := turns(t, 1, 40)
	seen := map[int]bool{}
	for size := len(data) / 2; size <= len(data); size++ {
		res, err := Replay(part(data[:size]), "")
		if err != nil || res.Ctx.Same != res.Ctx.Decisions || res.Missing > 0 {
			t.Fatalf("%d of %d bytes: %+v, %v", size, len(data), res, err)
		}
		seen[res.Ctx.Decisions] = true
	}
	if len(seen) < 3 || !seen[40] {
		t.Errorf("decisions %v", seen)
	}
}

// A frontend that started anew decides anew, and what is missing is told.
func TestReplayOfSeveralRuns(t *testing.T) {
	parts := append(part(turns(t, 1, 3)), part(turns(t, 1, 3))...)
	if res, err := Replay(parts, ""); err != nil || res.Ctx.Same != 6 || res.Missing != 0 || res.Ctx.Then["a"] != 4 {
		t.Errorf("%+v, %v", res, err)
	}
	parts = append(part(turns(t, 1, 2)), part(turns(t, 5, 2))...)
	if res, err := Replay(parts, ""); err != nil || res.Ctx.Same != 4 || res.Missing != 2 {
		t.Errorf("%+v, %v", res, err)
	}
}
