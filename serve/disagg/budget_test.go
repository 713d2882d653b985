package disagg

import (
	"testing"

	"pgregory.net/rapid"

	"tandem/serve/discovery"
)

// A cluster that fails everything gets, beyond a burst, no more than the budget's part of attempts on top.
func TestRetriesHaveABudget(t *testing.T) {
	r := newRig(t, []*stub{newStub(t, discovery.Context, refuse(500, "broken"))}, []*stub{newStub(t, discovery.Generation, genReply{}.script)},
		withConfig(func(c *Config) { c.RetryBudget, c.MaxRetries = 0.25, 3 }))
	const requests = 200
	for range requests {
		r.post(completions, hello).wantError(t, 502)
	}
	if n := len(r.ctx[0].requests()); n < requests+retryBurst || n > requests+retryBurst+requests/4+1 {
		t.Errorf("%d attempts for %d requests", n, requests)
	}
	if r.obs.count("retries_refused_total ") == 0 {
		t.Error("nothing was counted")
	}
}

func TestRetryBudgetIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.Float64Range(0.01, 1).Draw(t, "part")
		b := newRetryBudget(part, deaf{})
		legs, spent := 0, 0
		for range rapid.IntRange(1, 500).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "leg") {
				legs++
				b.earn()
			} else if b.spend() {
				spent++
			} else if spent < retryBurst {
				t.Fatalf("refused after %d", spent)
			}
			if float64(spent) > retryBurst+part*float64(legs)+1e-6 {
				t.Fatalf("%d attempts repeated after %d legs of %g", spent, legs, part)
			}
		}
	})
}
