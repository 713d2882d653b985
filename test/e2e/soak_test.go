//go:build e2e

package e2e

import (
	"os"
	"testing"
	"time"
)

// TestSoak keeps a cluster under load with cancellations for SOAK (10m, say),
// looks for blocks left behind after every round and for other leaks at the end.
func TestSoak(t *testing.T) {
	span, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("SOAK is not set to a duration")
	}
	c := startCluster(t, workerConfig{}, "")
	all := []*process{c.process, c.ctx, c.gen}
	normal(t, c.url, 8)
	waitClean(t, settleLimit, c.ctx, c.gen)
	before := footprints(t, all...)
	end := time.Now().Add(span)
	for round := uint64(0); time.Now().Before(end) && !t.Failed(); round++ {
		finished := storm(c.url, 100+round, 200, 5*time.Second)
		normal(t, c.url, 8)
		waitClean(t, settleLimit, c.ctx, c.gen)
		idleGauges(t, c.process)
		t.Logf("round %d: %d of 200 requests finished", round, finished)
	}
	for _, p := range all {
		checkFootprint(t, p, before[p])
	}
}
