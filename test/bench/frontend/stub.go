package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A stub's answer depends on the first word of the prompt: paced streams send a
// token each tick, held ones two until the client leaves, others all at once.
const (
	modelName  = "tiny"
	tick       = 50 * time.Millisecond
	holdPrompt = "hold"
	pacePrompt = "pace"
)

// roles of the stub's listeners.
var roles = []string{"mixed", "context", "generation"}

// serveStubs listens for each role and prints the addresses, until in ends.
func serveStubs(in io.Reader, out io.Writer) error {
	for _, role := range roles {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("stub: %w", err)
		}
		srv := &http.Server{Handler: stub(role), ReadHeaderTimeout: 10 * time.Second}
		defer srv.Close() //nolint:errcheck // the process ends
		go func() { _ = srv.Serve(ln) }()
		_, _ = fmt.Fprintln(out, role, ln.Addr())
	}
	_, _ = fmt.Fprintln(out)
	_, err := io.Copy(io.Discard, in)
	return err
}

// stub is the handler of one worker.
func stub(role string) http.Handler {
	info, _ := json.Marshal(map[string]any{ // plain values: it cannot fail
		"role": role, "model": modelName, "model_fingerprint": "f", "incarnation": role, "tokens_per_block": 32,
		"max_batch_size": 4096, "max_num_tokens": 8192, "max_seq_len": 8192, "adp_size": 1,
	})
	mux := http.NewServeMux()
	say := func(path, text string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		})
	}
	say("/health", "{}")
	say("/server_info", string(info))
	say("/get_server_info", string(info))
	say("/model_info", `{"model_path":"`+modelName+`","is_generation":true}`)
	say("/get_model_info", `{"model_path":"`+modelName+`","is_generation":true}`)
	say("/v1/models", `{"object":"list","data":[{"id":"`+modelName+`","object":"model","created":0,"owned_by":"test"}]}`)
	mux.HandleFunc("POST /disagg/abort", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"state":"aborted"}`) })
	mux.HandleFunc("POST /v1/chat/completions", answer)
	return mux
}

// ask is the part of a request that a stub reads.
type ask struct {
	Messages []struct {
		Content string `json:"content"`
	} `json:"messages"`
	MaxTokens int `json:"max_tokens"`
	Newer     int `json:"max_completion_tokens"` // some proxies rename it
	Params    *struct {
		Type    string `json:"request_type"`
		ID      int64  `json:"disagg_request_id"`
		Emitted bool   `json:"first_token_emitted"`
	} `json:"disaggregated_params"`
}

func answer(w http.ResponseWriter, r *http.Request) {
	var q ask
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || len(q.Messages) == 0 {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	if q.Params != nil && q.Params.Type == "context_only" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(ctxReply(q.Params.ID))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush() // accepted: workers say so before the first token
	what, _, _ := strings.Cut(q.Messages[0].Content, " ")
	from, tokens := 0, max(q.MaxTokens, q.Newer)
	if q.Params != nil && q.Params.Emitted {
		from = 1
	} else {
		put(w, `"delta":{"role":"assistant"},"finish_reason":null`)
	}
	for i := from; i < tokens; i++ {
		if what == pacePrompt && i > 0 {
			time.Sleep(tick)
		}
		put(w, `"delta":{"content":"`+word+`"},"finish_reason":null`)
		if what == holdPrompt && i > 0 {
			<-r.Context().Done()
			return
		}
	}
	put(w, `"delta":{},"finish_reason":"length"`)
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

const word = "word "

func put(w http.ResponseWriter, members string) {
	_, _ = io.WriteString(w, `data: {"id":"up","object":"chat.completion.chunk","created":7,"model":"`+modelName+`","choices":[{"index":0,`+members+"}]}\n\n")
	w.(http.Flusher).Flush()
}

// ctxReply is what our ctx workers answer, with the first token as a delta.
func ctxReply(id int64) []byte {
	n := strconv.FormatInt(id, 10)
	return []byte(`{"id":"up","object":"chat.completion","created":7,"model":"` + modelName + `","prompt_token_ids":[1,2,3,4,5],"choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"` + word + `"},"first_delta":{"content":"` + word + `"},"finish_reason":"not_finished","disaggregated_params":{` +
		`"request_type":"context_only","disagg_request_id":` + n + `,"ctx_request_id":` + n + `,"ctx_dp_rank":0,"first_gen_tokens":[65]}}],` +
		`"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`)
}
