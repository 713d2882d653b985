package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"tandem/engine/executor"
	"tandem/engine/runner"
)

// loopMetric is a histogram that the engine keeps itself.
type loopMetric struct {
	desc *prometheus.Desc
	get  func(*runner.Timings) *runner.Timing
}

// loopMetrics is the table of where the engine loop's time goes.
var loopMetrics = []loopMetric{
	{engineDesc("sched_seconds", "Deciding what a step runs.", nil), func(t *runner.Timings) *runner.Timing { return &t.Sched }},
	{engineDesc("apply_seconds", "Taking the results of a step.", nil), func(t *runner.Timings) *runner.Timing { return &t.Apply }},
	{engineDesc("exchange_seconds", "Waiting for the other ranks of the instance.", nil), func(t *runner.Timings) *runner.Timing { return &t.Exchange }},
	{engineDesc("device_gap_seconds", "Between two steps of the device although there was work.", nil), func(t *runner.Timings) *runner.Timing { return &t.Gap }},
}

var descHoldAge = prometheus.NewDesc(namespace+"_hold_age_seconds", "Age of the oldest reason of a kind for which blocks are held.", []string{"kind"}, nil)

func describeLoop(ch chan<- *prometheus.Desc) {
	for i := range loopMetrics {
		ch <- loopMetrics[i].desc
	}
	ch <- descHoldAge
}

func collectLoop(ch chan<- prometheus.Metric, s *runner.Stats) {
	for i := range loopMetrics {
		m := &loopMetrics[i]
		ch <- histogram(m.desc, m.get(&s.Timings))
	}
	for k, age := range s.HoldAges {
		ch <- prometheus.MustNewConstMetric(descHoldAge, prometheus.GaugeValue, age.Seconds(), executor.HoldKind(k).String())
	}
}

// histogram shows every second bound of a Timing, which is fine enough to read.
func histogram(desc *prometheus.Desc, t *runner.Timing) prometheus.Metric {
	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, n := range t.Counts {
		if sum += n; i%2 == 1 && i < len(t.Counts)-1 {
			buckets[t.Bound(i).Seconds()] = sum
		}
	}
	return prometheus.MustNewConstHistogram(desc, t.Count, t.Sum.Seconds(), buckets)
}
