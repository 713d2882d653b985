package sim

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"tandem/engine/request"
)

var (
	stormSeed  = flag.Uint64("seed", 0, "the only seed of TestFaultStorm, 0 = the first ones")
	stormSeeds = flag.Int("seeds", defaultStorms, "how many seeds TestFaultStorm runs")
)

// requestsOfStorm is how many requests come with one seed.
const requestsOfStorm = 100

// storm runs one seed. What it returns tells how to repeat a failure.
func storm(seed uint64, sum *StormLog) error {
	s, err := NewStorm(seed)
	if err == nil {
		if err = s.Run(requestsOfStorm); err == nil {
			sum.Add(&s.Log)
			return nil
		}
	}
	return fmt.Errorf("%w\nreproduce: go test ./test/sim -count=1 -run 'TestFaultStorm$' -seed=%d", err, seed)
}

// TestFaultStorm runs random clients and workers with all faults there are; see
// Storm for what each tick proves. With -seeds=1000 it is a matter of minutes.
func TestFaultStorm(t *testing.T) {
	sum, begin := StormLog{Failed: map[request.Code]int{}}, time.Now()
	first, last := uint64(1), uint64(*stormSeeds)
	if *stormSeed != 0 {
		first, last = *stormSeed, *stormSeed
	}
	for seed := first; seed <= last; seed++ {
		if err := storm(seed, &sum); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d iterations/s: %+v", int(float64(sum.Iterations)/time.Since(begin).Seconds()), sum)
	if last-first < 45 {
		return
	}
	for what, n := range map[string]int{
		"cuts": sum.Cuts, "kills": sum.Kills, "slow spells": sum.Slows, "failed steps": sum.Steps, "bad tokens": sum.BadTokens,
		"cancels": sum.Cancels, "aborts": sum.Aborts, "resets": sum.Resets, "jumps": sum.Jumps, "resumed": sum.Resumed,
		"emptied workers": sum.Emptied, "rows that take a token over": sum.Fed,
		"recomputed": int(sum.Recomputed), "stale pulls": int(sum.Stale), "expired leases": int(sum.Expired),
		"pauses": int(sum.Paused), "evicted blocks": int(sum.Evicted), "prefix hits": int(sum.Hits),
		"moves between tiers": sum.Shelved, "stuck tiers": sum.Stuck, "bytes brought back": int(sum.Onboarded), "failed moves": int(sum.BadMoves),
		"blocks that a window had passed": int(sum.Passed),
	} {
		if n == 0 {
			t.Errorf("no %s", what)
		}
	}
	if sum.Complete*5 < sum.Choices*2 {
		t.Errorf("of %d choices only %d were answered", sum.Choices, sum.Complete)
	}
}

// TestSoakStorm is TestFaultStorm for a time, SOAK, with other seeds each time.
func TestSoakStorm(t *testing.T) {
	span, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("SOAK is not set to a duration")
	}
	sum := StormLog{Failed: map[request.Code]int{}}
	for end, seed := time.Now().Add(span), uint64(time.Now().UnixNano()); time.Now().Before(end); seed++ {
		if err := storm(seed, &sum); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%+v", sum)
}

// TestStormIsDeterministic runs the same seeds twice.
func TestStormIsDeterministic(t *testing.T) {
	for seed := uint64(1); seed < 3; seed++ {
		var logs [2]string
		for i := range logs {
			s, err := NewStorm(seed)
			if err == nil {
				err = s.Run(requestsOfStorm)
			}
			logs[i] = fmt.Sprintf("%+v at %v, %v", s.Log, s.Now, err)
		}
		expect(t, fmt.Sprint("seed ", seed), logs[0], logs[1])
	}
}
