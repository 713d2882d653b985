package runner

import (
	"sync/atomic"
	"time"
)

// timingBuckets are upper bounds in a geometric row: 2 us, 4 us and so on up to 8.4 s,
// then no bound.
const timingBuckets = 24

// Timing is how often something took how long.
type Timing struct {
	Count  uint64
	Sum    time.Duration
	Counts [timingBuckets]uint64 // by bucket, not summed up
}

// Bound returns the upper bound of bucket i; the last has none.
func (*Timing) Bound(i int) time.Duration { return 2 * time.Microsecond << i }

// Timings are where the loop's time goes.
type Timings struct {
	Sched    Timing // deciding a step
	Apply    Timing // taking the results of one, and handing outputs out
	Exchange Timing // waiting for the other ranks of the instance
	Gap      Timing // the device waited between two steps although there was work
}

// timing collects a Timing; others may read it meanwhile.
type timing struct {
	sum    atomic.Int64
	counts [timingBuckets]atomic.Uint64
}

func (t *timing) add(d time.Duration) {
	d = max(d, 0)
	i := 0
	for i < timingBuckets-1 && d > 2*time.Microsecond<<i {
		i++
	}
	t.sum.Add(int64(d))
	t.counts[i].Add(1)
}

// addTo adds what was collected so far.
func (t *timing) addTo(to *Timing) {
	to.Sum += time.Duration(t.sum.Load())
	for i := range t.counts {
		n := t.counts[i].Load()
		to.Counts[i] += n
		to.Count += n
	}
}

// timings are those of one rank.
type timings struct{ sched, apply, exchange, gap timing }

func (t *timings) addTo(to *Timings) {
	t.sched.addTo(&to.Sched)
	t.apply.addTo(&to.Apply)
	t.exchange.addTo(&to.Exchange)
	t.gap.addTo(&to.Gap)
}
