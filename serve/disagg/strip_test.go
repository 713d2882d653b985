package disagg

import (
	"testing"

	"tandem/serve/openai"
)

// Only clients that asked for token ids see those of the prompt, always as a list.
func TestStripInternal(t *testing.T) {
	for _, tc := range []struct {
		in, plain, ids string
	}{
		{`{"id":"a"}`, `{"id":"a"}`, `{"id":"a"}`},
		{`{"prompt_token_ids":[1,2]}`, `{}`, `{"prompt_token_ids":[1,2]}`},
		{`{"prompt_token_ids_b64":"AQAAAAIAAAADAAAAcBEBAA=="}`, `{}`, `{"prompt_token_ids":[1,2,3,70000]}`},
		{`{"prompt_token_ids_b64":"?"}`, `{}`, `{}`},
		{
			`{"choices":[{"text":"a","first_delta":{},"disaggregated_params":{"a":1}}]}`,
			`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"a"}]}`,
		},
	} {
		for keep, want := range map[bool]string{false: tc.plain, true: tc.ids} {
			body, err := openai.ParseBody([]byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			changed := stripInternal(&body, keep)
			if got := string(body.AppendJSON(nil)); got != want || changed != (want != tc.in) {
				t.Errorf("keep %v: %s became %s (changed %v), want %s", keep, tc.in, got, changed, want)
			}
		}
	}
}

// The ids of the ctx reply replace every form in which a client may have given its own: a worker refuses two.
func TestClientsOwnIDsAreReplaced(t *testing.T) {
	for name, own := range map[string]string{
		"ids":   `"prompt_token_ids":[9,9]`,
		"bytes": `"prompt_token_ids_b64":"CQAAAAkAAAA="`,
	} {
		t.Run(name, func(t *testing.T) {
			r := one(t, ctxReply{}, genReply{})
			a := r.post("/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":3,`+own+`}`)
			a.wantOK(t, "ABC")
			g := r.gen[0].requests()[0].body
			if _, ok := g["prompt_token_ids_b64"]; ok || string(g["prompt_token_ids"]) != "[1,2,3,4,5]" {
				t.Errorf("gen got %s and %s", g["prompt_token_ids"], g["prompt_token_ids_b64"])
			}
		})
	}
}
