package openai

import (
	"testing"
)

// Halves of characters all look alike as JSON; their alternatives must not make
// an object with the same member twice, which strict readers refuse.
func TestTopLogprobsNeverRepeatAMember(t *testing.T) {
	token := TokenLogprob{
		Text: "\xe6", Logprob: -1,
		Top: []TokenLogprob{{Text: "\xe7", Logprob: -0.5}, {Text: "a", Logprob: -0.75}, {Text: "\xe6", Logprob: -1}, {Text: "a", Logprob: -3}},
	}
	got := string(AppendCompletionLogprobs(nil, []TokenLogprob{token}))
	want := `{"tokens":["\ufffd"],"token_logprobs":[-1],"top_logprobs":[{"\ufffd":-0.5,"a":-0.75}],"text_offset":[0]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, err := ParseBody([]byte(got)); err != nil {
		t.Error(err)
	}
	token.Top = token.Top[1:2]
	got = string(AppendCompletionLogprobs(nil, []TokenLogprob{token}))
	want = `{"tokens":["\ufffd"],"token_logprobs":[-1],"top_logprobs":[{"a":-0.75,"\ufffd":-1}],"text_offset":[0]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
