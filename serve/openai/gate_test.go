package openai

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// TestGate: so many big bodies pass and no more, small ones always, and who gives up waiting leaves no trace.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		enter := func(ctx context.Context, size int) func() {
			leave, err := g.Enter(ctx, size)
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		var leaves []func()
		for range bigAtOnce {
			leaves = append(leaves, enter(t.Context(), bigBody))
		}
		enter(t.Context(), bigBody-1)()
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if _, err := g.Enter(ctx, bigBody); !errors.Is(err, gone) {
			t.Errorf("got %v for one that left", err)
		}
		passed := false
		go func() {
			defer enter(t.Context(), 8<<20)()
			passed = true
		}()
		if synctest.Wait(); passed {
			t.Error("too many are in at once")
		}
		leaves[0]()
		if synctest.Wait(); !passed {
			t.Error("nobody follows one that left")
		}
		for _, leave := range leaves[1:] {
			leave()
		}
		if len(g.slots) != 0 {
			t.Errorf("%d places are lost", len(g.slots))
		}
	})
	for range 2 * bigAtOnce {
		if _, err := (Gate{}).Enter(t.Context(), bigBody); err != nil {
			t.Error(err)
		}
	}
}

// TestRequestsAreBounded: what takes far more memory or work than its bytes is refused.
func TestRequestsAreBounded(t *testing.T) {
	fields := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"x%d":0,`, i)
		}
		return b.String()
	}
	word := func(n int) string { return fmt.Sprintf(`"bad_words":["a",%q],`, strings.Repeat("x", n)) }
	for name, c := range map[string]struct{ more, says string }{
		"most fields":     {fields(MaxFields - 1), ""},
		"too many fields": {fields(MaxFields), "the limit is 4096"},
		"longest word":    {word(MaxBadWord), ""},
		"too long a word": {word(MaxBadWord + 1), "bad_words[1]"},
	} {
		_, err := DecodeRequest(Completion, []byte(`{`+c.more+`"prompt":"a"}`))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
