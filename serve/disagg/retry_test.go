package disagg

import (
	"testing"

	"pgregory.net/rapid"

	"tandem/serve/openai"
)

// Whatever fails how often: attempts are limited, refusals are final, and who failed is remembered.
func TestRetryRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.MaxRetries = rapid.IntRange(0, 10).Draw(t, "max_retries")
		cfg.NoRetry = rapid.Bool().Draw(t, "no retry")
		s := &Server{cfg: cfg}
		tr := s.newTries()
		races, retries, offers := 0, 0, 0
		for {
			e := &legError{
				fault: rapid.SampledFrom([]fault{faultDial, faultRace, faultBroken, faultStatus, faultReply, faultDeadline, faultSilent, faultGone}).Draw(t, "fault"),
				err:   openai.NewError(rapid.SampledFrom([]int{400, 401, 404, 422, 429, 500, 502, 503, 504}).Draw(t, "status"), "", "x"),
			}
			before := len(tr.failed)
			v := tr.next(e, "w")
			busy := e.fault == faultStatus && e.err.Status == 429
			final := e.fault == faultReply || e.fault == faultDeadline || e.fault == faultGone ||
				e.fault == faultStatus && !busy && (e.err.Status < 500 || e.err.Status == 504)
			switch {
			case final && v.again:
				t.Fatalf("%v %d is tried again", e.fault, e.err.Status)
			case cfg.NoRetry && v.again && !busy:
				t.Fatal("disagg_no_retry")
			case v.again && !v.same && len(tr.failed) != before+1:
				t.Fatal("who failed is not remembered")
			case (busy || e.fault == faultSilent) && v.again && (!v.strict || v.same):
				t.Fatal("after a 429, or silence, only another worker is tried")
			case v.same && e.fault != faultRace:
				t.Fatal("only a race is tried again at the same worker")
			}
			if !v.again {
				break
			}
			switch {
			case busy:
				offers++
			case e.fault == faultRace:
				races++
			default:
				retries++
			}
		}
		if races > raceAttempts-1 || retries > cfg.MaxRetries || offers > 1 {
			t.Fatalf("%d races, %d retries of %d, %d offers", races, retries, cfg.MaxRetries, offers)
		}
	})
}
