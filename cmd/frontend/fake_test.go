package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// fakeEnv makes the test binary act as an engine: `serve MODEL --role R --port P …`, where MODEL says how to behave.
const fakeEnv = "TANDEM_TEST_FAKE_ENGINE"

func TestMain(m *testing.M) {
	if os.Getenv(fakeEnv) != "" {
		os.Exit(fakeEngine(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

func fakeEngine(args []string) int {
	mode := args[1]
	fs := flag.NewFlagSet("fake", flag.ContinueOnError)
	role, port := fs.String("role", "", ""), fs.Int("port", 0, "")
	for _, name := range []string{"host", "c", "threads", "admin-addr", "log-level"} {
		fs.String(name, "", "")
	}
	if err := fs.Parse(args[2:]); err != nil {
		return 2
	}
	fmt.Fprintln(os.Stderr, "loading", mode)
	if mode == "broken" {
		fmt.Fprintln(os.Stderr, "engine: tensor blk.0 is truncated")
		return 3
	}
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Printf("TANDEM_READY url=http://%s role=%s admin=off\n", ln.Addr(), *role)
	go func() { _ = http.Serve(ln, fakeWorker(*role)) }()
	for range stop {
		if mode != "stubborn" {
			return 0
		}
		fmt.Fprintln(os.Stderr, "ignoring SIGTERM")
	}
	return 0
}

// fakeWorker answers like a worker that knows one reply.
func fakeWorker(role string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /crash", func(http.ResponseWriter, *http.Request) { os.Exit(7) })
	mux.HandleFunc("POST /disagg/abort", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		long := map[string]string{"ctx": "context", "gen": "generation"}[role]
		fmt.Fprintf(w, `{"role":%q,"model":"tiny","model_fingerprint":"f","incarnation":"%d"}`, long, os.Getpid())
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Params struct {
				ID int64 `json:"disagg_request_id"`
			} `json:"disaggregated_params"`
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		if role == "ctx" {
			fmt.Fprintf(w, `{"model":"tiny","prompt_token_ids":[1],"choices":[{"text":"A","finish_reason":"not_finished","disaggregated_params":{"disagg_request_id":%d,"ctx_request_id":1,"first_gen_tokens":[65]}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, q.Params.ID)
			return
		}
		_, _ = io.WriteString(w, `{"model":"tiny","choices":[{"text":"ABC","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}`)
	})
	return mux
}

// record is a writer that lets a test wait for a text.
type record struct {
	mu   sync.Mutex
	cond *sync.Cond
	buf  bytes.Buffer
}

func newRecord() *record {
	r := &record{}
	r.cond = sync.NewCond(&r.mu)
	return r
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf.Write(p)
	r.cond.Broadcast()
	return len(p), nil
}

// wait blocks until the text was written n times and returns all that was written. The test's time limit is its own.
func (r *record) wait(text string, n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for strings.Count(r.buf.String(), text) < n {
		r.cond.Wait()
	}
	return r.buf.String()
}

func (r *record) log() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data)
}
