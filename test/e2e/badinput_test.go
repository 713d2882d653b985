//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// badRequest is a body that must be refused with a 4xx that names the field.
type badRequest struct {
	name   string
	path   string
	body   string
	status int
	param  string // "" = the error blames no field
	says   string // part of the message
}

// chatWith is a valid chat body with one member set to raw JSON.
func chatWith(name, raw string) string {
	return fmt.Sprintf(`{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4,%q:%s}`, name, raw)
}

func textWith(name, raw string) string {
	return fmt.Sprintf(`{"prompt":"Hi",%q:%s}`, name, raw)
}

func badRequests() []badRequest {
	var out []badRequest
	field := func(path, name, raw string, says string) {
		body := chatWith(name, raw)
		if path == textPath {
			body = textWith(name, raw)
		}
		if name == "messages" || name == "prompt" || name == "max_tokens" {
			body = fmt.Sprintf(`{%q:%s}`, name, raw)
			if name == "max_tokens" {
				body = fmt.Sprintf(`{"messages":[{"role":"user","content":"Hi"}],"max_tokens":%s}`, raw)
			}
		}
		out = append(out, badRequest{name + " " + raw[:min(len(raw), 30)], path, body, 400, name, says})
	}
	for _, f := range [][3]string{
		{"messages", `[]`, "messages"},
		{"messages", `"hello"`, "messages"},
		{"messages", `null`, "missing"},
		{"max_tokens", `0`, "max_tokens"},
		{"max_tokens", `-1`, "max_tokens"},
		{"max_tokens", `1.5`, "max_tokens"},
		{"max_tokens", `"9"`, "max_tokens"},
		{"max_tokens", `1e99`, "max_tokens"},
		{"temperature", `2.1`, "temperature"},
		{"temperature", `-0.1`, "temperature"},
		{"temperature", `"hot"`, "number"},
		{"top_p", `0`, "top_p"},
		{"top_p", `1.1`, "top_p"},
		{"top_k", `-2`, "top_k"},
		{"min_p", `2`, "min_p"},
		{"n", `0`, "at least 1"},
		{"n", `129`, "at most 128"},
		{"n", `100`, "fewer"}, // than max_batch_size
		{"best_of", `3`, "best_of"},
		{"use_beam_search", `true`, "beam"},
		{"stream", `"yes"`, "stream"},
		{"stream_options", `{"include_usage":true}`, "stream"},
		{"stop", `[""]`, "empty"},
		{"stop", `7`, "stop"},
		{"logit_bias", `{"Paris":1}`, "token id"},
		{"logit_bias", `{"999999999":1}`, "vocabulary"},
		{"logprobs", `3`, "logprobs"},
		{"top_logprobs", `2`, "logprobs"},
		{"seed", `"seven"`, "seed"},
		{"presence_penalty", `3`, "presence_penalty"},
		{"repetition_penalty", `0`, "repetition_penalty"},
		{"min_tokens", `5`, "max_tokens"},
		{"response_format", `{"type":"xml"}`, "not supported"},
		{"tool_choice", `"required"`, "there are no tools"},
	} {
		field(chatPath, f[0], f[1], f[2])
	}
	for _, f := range [][3]string{
		{"prompt", `[]`, "prompt"},
		{"prompt", `""`, "prompt"},
		{"prompt", `["a","b"]`, "2 prompts"},
		{"prompt", `[[]]`, "prompt"},
		{"prompt", `[1,"a"]`, "mixes"},
		{"prompt", `[-1]`, "prompt"},
		{"prompt", `[99999999]`, "vocabulary"},
		{"prompt", `{"a":1}`, "prompt"},
		{"logprobs", `21`, "logprobs"},
		{"suffix", `"x"`, "suffix"},
	} {
		field(textPath, f[0], f[1], f[2])
	}
	return append(out,
		badRequest{"empty body", chatPath, ``, 400, "", "empty"},
		badRequest{"no object", chatPath, `[1]`, 400, "", "object"},
		badRequest{"cut short", chatPath, `{"messages":[{"role":"us`, 400, "", "JSON"},
		badRequest{"text after it", chatPath, chatWith("top_k", "1") + "x", 400, "", "JSON"},
		badRequest{"member twice", chatPath, `{"messages":[],"messages":[]}`, 400, "", "twice"},
		badRequest{"not UTF-8", chatPath, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "", "UTF-8"},
		badRequest{"no messages", chatPath, `{"max_tokens":3}`, 400, "messages", "messages"},
		badRequest{"no prompt", textPath, `{}`, 400, "prompt", "prompt"},
		badRequest{"unknown model", chatPath, chatWith("model", `"gpt-9"`), 404, "model", modelName},
		badRequest{"too long", chatPath, fmt.Sprintf(`{"messages":[{"role":"user","content":%q}]}`, prose(1, 9000)), 400, "messages", "context length"},
		badRequest{"too long text", textPath, fmt.Sprintf(`{"prompt":%q}`, prose(1, 9000)), 400, "prompt", "context length"},
		badRequest{"deeply nested", chatPath, `{"messages":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, 400, "*", ""},
		badRequest{"50 MB", chatPath, fmt.Sprintf(`{"messages":[{"role":"user","content":%q}]}`, strings.Repeat("a", 50<<20)), 413, "", "limit"},
		badRequest{"internal member", chatPath, chatWith("disaggregated_params", `{"request_type":"generation_only","ctx_info_endpoint":"tcp://evil:1"}`), 400, "*", "disaggregated_params"},
		badRequest{"no conversation id", chatPath, chatWith("conversation_params", `{"conversation_id":"  "}`), 400, "conversation_params.conversation_id", "conversation_id"},
		badRequest{"other conversation member", chatPath, chatWith("conversation_params", `{"conversation_id":"a","subagent_affinity_id":"b"}`), 400, "*", "subagent_affinity_id"},
	)
}

// TestBadInput sends bad requests to a worker and to a frontend. Neither may
// compute anything, and both must go on as if nothing had come.
func TestBadInput(t *testing.T) {
	c := startCluster(t, workerConfig{}, "")
	mixed := startWorker(t, "mixed", workerConfig{})
	for _, p := range []*process{mixed, c.process} {
		for _, b := range badRequests() {
			t.Run(p.name+"/"+b.name, func(t *testing.T) { refuses(t, p, b) })
		}
		t.Run(p.name+"/other routes", func(t *testing.T) { wrongRoutes(t, p) })
		t.Run(p.name+"/not HTTP", func(t *testing.T) { notHTTP(t, p) })
		normal(t, p.url, 2)
	}
	waitClean(t, settleLimit, mixed, c.ctx, c.gen)
}

func refuses(t *testing.T, p *process, b badRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	for _, length := range []bool{true, false} {
		var body any = []byte(b.body)
		_, err := post(ctx, p.url+b.path, body)
		if !length {
			err = postChunked(ctx, p.url+b.path, b.body)
		}
		var e *statusError
		if !errors.As(err, &e) {
			t.Fatalf("no refusal but %v", err)
		}
		param := ""
		if e.Param != nil {
			param = *e.Param
		}
		if e.status != b.status || b.param != "*" && param != b.param || !strings.Contains(e.Message, b.says) || e.Message == "" {
			t.Errorf("want %d, param %q, %q; got %s", b.status, b.param, b.says, e)
		}
		if e.Type != "invalid_request_error" || e.Code == nil {
			t.Errorf("type %q, code %v", e.Type, e.Code)
		}
		if ct := e.header.Get("Content-Type"); ct != "application/json" {
			t.Errorf("content type %q", ct)
		}
		if len(e.body) > 8<<10 {
			t.Errorf("an error of %d bytes", len(e.body))
		}
	}
}

// postChunked sends a body whose length is not announced.
func postChunked(ctx context.Context, url, body string) error {
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, io.MultiReader(strings.NewReader(body)))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	e := &statusError{status: resp.StatusCode, header: resp.Header, body: string(text)}
	var obj struct{ Error *apiError }
	if json.Unmarshal(text, &obj) == nil && obj.Error != nil {
		e.apiError = *obj.Error
	}
	return e
}

func wrongRoutes(t *testing.T, p *process) {
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", chatPath, 405},
		{"DELETE", textPath, 405},
		{"GET", "/v1/nothing", 404},
		{"POST", "/v1/embeddings", 404},
		{"GET", "/", 404},
		{"GET", "/v1/models/none", 404},
		{"GET", "/debug/pprof/", 404},
	} {
		req, _ := http.NewRequest(c.method, p.url+c.path, nil)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		var obj struct{ Error *apiError }
		if resp.StatusCode != c.status || json.Unmarshal(text, &obj) != nil || obj.Error == nil || obj.Error.Message == "" {
			t.Errorf("%s %s: %d %s", c.method, c.path, resp.StatusCode, text)
		}
	}
}

// notHTTP writes noise to the port; the process must live on.
func notHTTP(t *testing.T, p *process) {
	for _, noise := range [][]byte{{0x16, 3, 1, 2, 0, 1, 0}, []byte("hello\r\n\r\n"), bytes.Repeat([]byte{0xff}, 100_000)} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(noise) // it may be cut off half way
		conn.Close()
	}
	if s := health(t, p); s != http.StatusOK {
		t.Errorf("/health is %d after noise", s)
	}
}
