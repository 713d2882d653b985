package executor

import (
	"slices"
	"testing"

	"tandem/engine/request"
)

// A request whose first tokens another worker decoded goes on after them: they are computed like the prompt, they count as
// output, and they are not shown again.
func TestRequestGoesOnAfterGivenTokens(t *testing.T) {
	for _, tc := range []struct {
		given, max int
		finish     request.Finish // because of the given tokens alone
	}{
		{1, 8, request.Running},
		{3, 8, request.Running},
		{7, 8, request.Running},
		{8, 8, request.FinishLength},
	} {
		cfg := testConfig(Gen)
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r := validRequest()
		r.MaxTokens, r.FirstEmitted = tc.max, true
		for i := range tc.given {
			r.FirstTokens = append(r.FirstTokens, request.Token{ID: int32(10 + i)})
		}
		c.Submit(0, r, nil)
		o := c.Effects().Outputs
		if tc.finish != request.Running {
			if len(o) != 1 || o[0].Finish != tc.finish || len(o[0].Tokens) != 0 || o[0].Usage.CompletionTokens != tc.given {
				t.Errorf("%+v: %+v", tc, o)
			}
			continue
		}
		if len(o) != 0 {
			t.Errorf("%+v: shown again: %+v", tc, o)
		}
		b := c.Plan(0)
		if b == nil || len(b.Rows) != 1 || !b.Rows[0].Sample || b.Rows[0].Index != tc.given {
			t.Fatalf("%+v: %+v", tc, b)
		}
		want := slices.Clone(r.Prompt)
		for _, f := range r.FirstTokens {
			want = append(want, f.ID)
		}
		if !slices.Equal(b.Rows[0].Tokens, want) {
			t.Errorf("%+v: computes %v, want %v", tc, b.Rows[0].Tokens, want)
		}
		c.Effects()
		c.Apply(0, Result{Sampled: []Sampled{{Token: request.Token{ID: 50}}}})
		o = c.Effects().Outputs
		if len(o) != 1 || o[0].First != tc.given || len(o[0].Tokens) != 1 || (o[0].Finish == request.FinishLength) != (tc.given+1 == tc.max) {
			t.Errorf("%+v: %+v", tc, o)
		}
		if err := c.Check(); err != nil {
			t.Error(err)
		}
	}
}
