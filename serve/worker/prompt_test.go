package worker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
)

func TestEchoAndPromptLogprobs(t *testing.T) {
	type logprobs struct {
		Tokens        []string             `json:"tokens"`
		TokenLogprobs []*float64           `json:"token_logprobs"`
		Top           []map[string]float64 `json:"top_logprobs"`
		Offset        []int                `json:"text_offset"`
	}
	type entry struct {
		Logprob float64 `json:"logprob"`
		Rank    int     `json:"rank"`
		Text    string  `json:"decoded_token"`
	}
	type reply struct {
		Choices []struct {
			Text           *string            `json:"text"`
			Logprobs       *logprobs          `json:"logprobs"`
			PromptLogprobs []map[string]entry `json:"prompt_logprobs"`
			Finish         string             `json:"finish_reason"`
		} `json:"choices"`
		PromptLogprobs []map[string]entry `json:"prompt_logprobs"`
		Usage          struct {
			Completion int `json:"completion_tokens"`
		} `json:"usage"`
	}
	e := newEngine(executor.Mixed, "yes")
	srv := serveFake(t, e, nil)
	ask := func(path, body string) reply {
		t.Helper()
		status, _, text := post(t, srv.URL+path, body)
		if status != 200 {
			t.Fatalf("%s: %d %s", body, status, text)
		}
		return decode[reply](t, text)
	}
	r := ask("/v1/completions", `{"prompt":"hi","echo":true,"max_tokens":9}`).Choices[0]
	if *r.Text != "hiyes" || r.Logprobs != nil || r.PromptLogprobs != nil || e.last(t).Score != nil {
		t.Errorf("%+v", r)
	}
	r = ask("/v1/completions", `{"prompt":"hi","echo":true,"logprobs":1,"max_tokens":2}`).Choices[0]
	l := r.Logprobs
	if *r.Text != "hiye" || fmt.Sprint(l.Tokens) != "[h i y e]" || l.TokenLogprobs[0] != nil || *l.TokenLogprobs[1] != -1 || *l.TokenLogprobs[2] != -0.5 ||
		l.Top[0] != nil || l.Top[1]["a"] != 0 || !slices.Equal(l.Offset, []int{0, 1, 2, 3}) {
		t.Errorf("%q %+v", *r.Text, l)
	}
	all := ask("/v1/completions", `{"prompt":"hi","echo":true,"logprobs":1,"max_tokens":0}`)
	if r := all.Choices[0]; *r.Text != "hi" || fmt.Sprint(r.Logprobs.Tokens) != "[h i]" || all.Usage.Completion != 0 || e.last(t).MaxTokens != 1 {
		t.Errorf("only the prompt: %q %+v", *r.Text, all.Usage)
	}
	r = ask("/v1/completions", `{"prompt":"hi","prompt_logprobs":2,"max_tokens":2,"n":2}`).Choices[1]
	p := r.PromptLogprobs
	if *r.Text != "es" || len(p) != 2 || p[0] != nil || p[1]["105"] != (entry{-1, 2, "i"}) || p[1]["97"] != (entry{0, 1, "a"}) || p[1]["98"] != (entry{-0.25, 2, "b"}) || len(p[1]) != 3 {
		t.Errorf("%q %+v", *r.Text, p)
	}
	if got := ask("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"prompt_logprobs":0}`).PromptLogprobs; len(got) != len(e.last(t).Prompt) || got[0] != nil || len(got[1]) != 1 {
		t.Errorf("chat: %+v", got)
	}
	if r := ask("/v1/completions", `{"prompt":[104,105],"echo":true,"max_tokens":1}`).Choices[0]; *r.Text != "hiy" {
		t.Errorf("of ids: %q", *r.Text)
	}
	_, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"hi","echo":true,"stream":true,"max_tokens":9}`)
	if !strings.Contains(text, `"text":"hiy"`) || strings.Count(text, `"text":"hi`) != 1 {
		t.Errorf("stream: %s", text)
	}
}

func TestPromptsAreTruncatedAtTheirBeginning(t *testing.T) {
	e := newEngine(executor.Mixed, "yes")
	srv := serveFake(t, e, nil)
	limit := e.info.MaxSeqLen
	for _, c := range []struct {
		prompt string
		keep   string
		want   int
	}{
		{"abcdef", "3", 3},
		{"abcdef", "6", 6},
		{"abcdef", "99", 6},
		{strings.Repeat("x", limit+50) + "z", "-1", limit - 7},
	} {
		status, _, text := post(t, srv.URL+"/v1/completions", fmt.Sprintf(`{"prompt":%q,"truncate_prompt_tokens":%s,"max_tokens":7}`, c.prompt, c.keep))
		if got := e.last(t).Prompt; status != 200 || len(got) != c.want || got[len(got)-1] != int32(c.prompt[len(c.prompt)-1]) {
			t.Errorf("%s of %d: %d %s, %d tokens", c.keep, len(c.prompt), status, text, len(got))
		}
	}
}

func TestRetentionReachesTheEngine(t *testing.T) {
	e := newEngine(executor.Mixed, "yes")
	srv := serveFake(t, e, nil)
	body := `{"prompt":"hi","max_tokens":1,"kv_cache_retention_config":{"token_range_retention_configs":[{"token_start":1,"token_end":7,"priority":90,"duration_ms":50}],"decode_retention_priority":0}}`
	if status, _, text := post(t, srv.URL+"/v1/completions", body); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	keep := e.last(t).Retention
	if keep == nil || len(keep.Prompt) != 1 || keep.Prompt[0] != (request.Keep{From: 1, To: 7, Priority: 90, For: 50 * time.Millisecond}) || keep.Output == nil || *keep.Output != (request.Keep{}) {
		t.Errorf("%+v", keep)
	}
}

func TestTokenLists(t *testing.T) {
	e := newEngine(executor.Mixed, "yes")
	srv := serveFake(t, e, nil)
	body := `{"prompt":"hi","bad_words":["a",[7,8]],"allowed_token_ids":[9,3,9],"max_tokens":1}`
	if status, _, text := post(t, srv.URL+"/v1/completions", body); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	s := e.last(t).Sampling
	if bad, _ := json.Marshal(s.BadWords); string(bad) != "[[7,8],[97],[32,97]]" || !slices.Equal(s.Allowed, []int32{3, 9}) {
		t.Errorf("%s %v", bad, s.Allowed)
	}
	for _, body := range []string{`{"prompt":"hi","bad_words":[[99999]]}`, `{"prompt":"hi","allowed_token_ids":[99999]}`} {
		if status, _, text := post(t, srv.URL+"/v1/completions", body); status != 400 || !strings.Contains(text, "outside the vocabulary") {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
}
