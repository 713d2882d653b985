package worker

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/serve/openai"
)

// choiceOf is what tests read of a reply's or an event's choice.
type choiceOf struct {
	Index    int
	Text     string
	Message  struct{ Content string }
	Delta    struct{ Role, Content string }
	Finish   *string `json:"finish_reason"`
	TokenIDs []int32 `json:"token_ids"`
	Logprobs *struct {
		Tokens     []string
		TextOffset []int `json:"text_offset"`
		Content    []json.RawMessage
	}
	Disagg *openai.DisaggParams `json:"disaggregated_params"`
	First  json.RawMessage      `json:"first_delta"`
}

type replyOf struct {
	Choices []choiceOf
	Usage   *openai.Usage
}

func TestChoicesOfAWholeReply(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Mixed, "abcd"), nil)
	for path, body := range map[string]string{
		"/v1/completions":      `{"prompt":"xyz","n":3,"logprobs":1,"return_token_ids":true}`,
		"/v1/chat/completions": chatHi + `,"n":3,"logprobs":true,"return_token_ids":true}`,
	} {
		status, _, text := post(t, srv.URL+path, body)
		if status != 200 {
			t.Fatalf("%s: %d %s", path, status, text)
		}
		r := decode[replyOf](t, text)
		for i, want := range []string{"abcd", "bcd", "cd"} {
			c := r.Choices[i]
			if c.Index != i || c.Text+c.Message.Content != want || *c.Finish != "stop" || len(c.TokenIDs) != len(want)+1 ||
				len(c.Logprobs.Tokens)+len(c.Logprobs.Content) != len(want)+1 {
				t.Errorf("%s: choice %d: %+v", path, i, c)
			}
		}
		// Each choice ends with an end-of-sequence token.
		if u := r.Usage; len(r.Choices) != 3 || u.CompletionTokens != 12 || u.TotalTokens != u.PromptTokens+12 || u.Cached() != 2 {
			t.Errorf("%s: %d choices, %+v", path, len(r.Choices), u)
		}
	}
}

func TestChoicesOfAStream(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Mixed, "abcd"), nil)
	for path, body := range map[string]string{
		"/v1/completions":      `{"prompt":"xyz","n":3,"logprobs":0,"stream":true,"stream_options":{"include_usage":true}}`,
		"/v1/chat/completions": chatHi + `,"n":3,"stream":true,"stream_options":{"include_usage":true}}`,
	} {
		_, _, text := post(t, srv.URL+path, body, openai.HeaderReturnTokenIDs, "1")
		data, comments := eventsOf(t, text)
		texts, finish, roles, order := map[int]string{}, map[int]string{}, map[int]int{}, []int{}
		var usage *openai.Usage
		for _, d := range data[:len(data)-1] {
			r := decode[replyOf](t, d)
			for _, c := range r.Choices {
				order = append(order, c.Index)
				texts[c.Index] += c.Text + c.Delta.Content
				if c.Delta.Role != "" {
					roles[c.Index]++
				}
				if c.Finish != nil {
					finish[c.Index] += *c.Finish
				}
				if c.Logprobs != nil && c.Finish == nil && c.Logprobs.TextOffset[0] != len(texts[c.Index])-1 {
					t.Errorf("choice %d: text offset %v after %q", c.Index, c.Logprobs.TextOffset, texts[c.Index])
				}
			}
			if r.Usage != nil {
				usage = r.Usage
			}
		}
		if want := map[int]string{0: "abcd", 1: "bcd", 2: "cd"}; !maps.Equal(texts, want) {
			t.Errorf("%s: %v", path, texts)
		}
		if want := map[int]string{0: "stop", 1: "stop", 2: "stop"}; !maps.Equal(finish, want) {
			t.Errorf("%s: %v", path, finish)
		}
		if chat := strings.Contains(path, "chat"); chat && (roles[0] != 1 || roles[1] != 1 || roles[2] != 1) || !chat && len(roles) != 0 {
			t.Errorf("%s: roles %v", path, roles)
		}
		if slices.IsSorted(order) {
			t.Errorf("%s: the choices are not interleaved", path)
		}
		if usage == nil || usage.CompletionTokens != 12 || data[len(data)-1] != "[DONE]" {
			t.Errorf("%s: usage %+v, last %q", path, usage, data[len(data)-1])
		}
		if !slices.Contains(comments, ": ids 98 of 1") || !slices.Contains(comments, ": ids 97") {
			t.Errorf("%s: %v", path, comments)
		}
	}
}

// TestBestOf has candidates whose mean log-probability is the higher the shorter
// they are.
func TestBestOf(t *testing.T) {
	e := newEngine(executor.Mixed, "abcd")
	srv := serveFake(t, e, nil)
	for n, want := range map[int][]string{1: {"d"}, 2: {"d", "cd"}, 4: {"abcd", "bcd", "cd", "d"}} {
		_, _, text := post(t, srv.URL+"/v1/completions", fmt.Sprintf(`{"prompt":"xyz","n":%d,"best_of":4}`, n))
		r := decode[replyOf](t, text)
		var got []string
		for i, c := range r.Choices {
			if got = append(got, c.Text); c.Index != i || c.Logprobs != nil {
				t.Errorf("n %d: choice %d: %+v", n, i, c)
			}
		}
		if !slices.Equal(got, want) || r.Usage.CompletionTokens != 14 {
			t.Errorf("n %d: %v, %+v", n, got, r.Usage)
		}
		if q := e.last(t); q.Choices != 4 || n < 4 != (q.Sampling.Logprobs == 0) {
			t.Errorf("n %d: the engine got %d choices, logprobs %d", n, q.Choices, q.Sampling.Logprobs)
		}
	}
}

// TestRequestsWithoutSeedDrawOne: the same question twice gives two answers.
func TestRequestsWithoutSeedDrawOne(t *testing.T) {
	e := newEngine(executor.Mixed, "abcd")
	srv := serveFake(t, e, nil)
	seeds := map[uint64]bool{}
	for range 3 {
		post(t, srv.URL+"/v1/completions", `{"prompt":"xyz"}`)
		q := e.last(t)
		if seeds[q.Sampling.Seed] = true; q.Sampling.Seeded {
			t.Error("it counts as the client's own")
		}
	}
	if len(seeds) != 3 {
		t.Errorf("three requests drew the seeds %v", seeds)
	}
}

func TestContextLegOfSeveralChoices(t *testing.T) {
	srv := serveFake(t, newEngine(executor.Ctx, "ab"), nil)
	_, _, text := post(t, srv.URL+"/v1/completions",
		`{"prompt":"xyz","n":3,"logprobs":1,"disaggregated_params":{"request_type":"context_only","disagg_request_id":7}}`)
	r := decode[replyOf](t, text)
	if len(r.Choices) != 3 {
		t.Fatal(text)
	}
	for i, want := range []string{"not_finished", "not_finished", "stop"} { // the third begins with its end
		c := r.Choices[i]
		if c.Index != i || *c.Finish != want || (c.Disagg != nil) != (i == 0) || (c.First != nil) != (i < 2) {
			t.Errorf("choice %d: %+v", i, c)
		}
	}
	p := r.Choices[0].Disagg
	if !slices.Equal(p.FirstGenTokens, []int32{'a', 'b', eosID}) || len(p.FirstGenLogProbs) != 3 || p.EncodedOpaqueState == nil || r.Usage.CompletionTokens != 3 {
		t.Errorf("%+v %+v", p, r.Usage)
	}
	// All end at once: the whole answer, of the best.
	srv = serveFake(t, newEngine(executor.Ctx, ""), nil)
	_, _, text = post(t, srv.URL+"/v1/completions",
		`{"prompt":"xyz","best_of":3,"disaggregated_params":{"request_type":"context_only","disagg_request_id":7}}`)
	if r := decode[replyOf](t, text); len(r.Choices) != 1 || *r.Choices[0].Finish != "stop" || r.Choices[0].Disagg.EncodedOpaqueState != nil {
		t.Error(text)
	}
}

func TestGenerationLegOfSeveralChoices(t *testing.T) {
	e := newEngine(executor.Gen, "abc")
	srv := serveFake(t, e, nil)
	body := func(tokens, more string) string {
		return `{"prompt":[1,2,3],"n":2,"disaggregated_params":{"request_type":"generation_only","disagg_request_id":7,"encoded_opaque_state":"b3BhcXVl",` +
			`"first_gen_tokens":` + tokens + `,"ctx_usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}` + more + `}`
	}
	status, _, text := post(t, srv.URL+"/v1/completions", body("[65,66]", "}"))
	r := decode[replyOf](t, text)
	if status != 200 || r.Choices[0].Text != "Abc" || r.Choices[1].Text != "Bc" || r.Usage.CompletionTokens != 7 || r.Usage.Cached() != 1 {
		t.Errorf("%d %s", status, text)
	}
	if q := e.last(t); len(q.FirstTokens) != 2 || q.Choices != 2 {
		t.Errorf("%+v", q)
	}
	_, _, text = post(t, srv.URL+"/v1/completions", body("[65,66]", `,"first_token_emitted":true},"stream":true`))
	if strings.Contains(text, `"A"`) || strings.Contains(text, `"B"`) {
		t.Errorf("a first token is sent again: %s", text)
	}
	for _, tc := range [][2]string{{"[65]", "}"}, {"[65,66,67]", "}"}, {"[65,66]", `},"logprobs":1`}} {
		status, _, text := post(t, srv.URL+"/v1/completions", body(tc[0], tc[1]))
		if err := wireErr(t, status, text); status != 400 || !strings.HasPrefix(err.Param, "disaggregated_params.first_gen") {
			t.Errorf("%v: %d %s", tc, status, text)
		}
	}
}

func TestSeveralChoicesGoOn(t *testing.T) {
	e := newEngine(executor.Gen, "abcd")
	srv := serveFake(t, e, nil)
	const head = `{"prompt":[1,2,3],"n":3,"stream":true,"stream_options":{"include_usage":true},"disaggregated_params":{"disagg_request_id":7,"first_token_emitted":true,"choice_tokens":`
	_, _, text := post(t, srv.URL+"/v1/completions", head+`[[97,98],[98,99,100,256],[]]}}`)
	texts, usage := map[int]string{}, 0
	data, _ := eventsOf(t, text)
	for _, d := range data[:len(data)-1] {
		r := decode[replyOf](t, d)
		for _, c := range r.Choices {
			texts[c.Index] += c.Text
		}
		if r.Usage != nil {
			usage = r.Usage.CompletionTokens
		}
	}
	if want := map[int]string{0: "cd", 1: "", 2: "cd"}; !maps.Equal(texts, want) || usage != 12 {
		t.Errorf("%v, %d tokens", texts, usage)
	}
	if len(e.reqs) != 3 || e.reqs[2].Sampling.Stream != 2 || e.reqs[2].Answers() != 1 || e.reqs[1].Kind != request.Full {
		t.Errorf("%d requests", len(e.reqs))
	}
	for _, lists := range []string{`[[1],[2]]`, `[[1],[2],[999]]`, `[[1],[2],[3]],"first_gen_tokens":[1]`} {
		status, _, text := post(t, srv.URL+"/v1/completions", head+lists+`}}`)
		if err := wireErr(t, status, text); status != 400 || err.Param != "disaggregated_params.choice_tokens" {
			t.Errorf("%s: %d %s", lists, status, text)
		}
	}
}
