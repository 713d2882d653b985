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
