package worker

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/serve/openai"
)

// A chat's own template is rendered by Foreign, and refused without it.
func TestTemplateOfARequest(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"chat_template":"T"}`
	var got string
	foreign := func(_ context.Context, source string, messages, _, _ json.RawMessage) (string, error) {
		got = source + string(messages)
		if strings.Contains(source, "bad") {
			return "", openai.Invalid("chat_template", "no")
		}
		return "rendered", nil
	}
	for _, allowed := range []bool{false, true} {
		b := Backend{Engine: newEngine(executor.Mixed, "x"), Tokenizer: byteTokenizer(t)} // without a template of the model
		if allowed {
			b.Foreign = foreign
		}
		s := New(Config{Trusted: true, MaxBody: 1 << 20})
		s.Attach(b)
		srv := httptest.NewServer(s)
		defer srv.Close()
		status, _, text := post(t, srv.URL+"/v1/chat/completions", body)
		if want := map[bool]int{false: 400, true: 200}[allowed]; status != want || !allowed && !strings.Contains(text, "chat_template") {
			t.Errorf("allowed %v: %d %s", allowed, status, text)
		}
		if allowed && (got != `T[{"role":"user","content":"hi"}]` || !strings.Contains(text, `"prompt_tokens":8`)) {
			t.Errorf("rendered from %q: %s", got, text)
		}
		if status, _, text = post(t, srv.URL+"/v1/chat/completions", strings.Replace(body, `"T"`, `"bad"`, 1)); status != 400 || !strings.Contains(text, "chat_template") {
			t.Errorf("a bad one: %d %s", status, text)
		}
	}
}
