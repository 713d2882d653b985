package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/engine/runner"
)

// rankMetric is a value of each attention-DP rank; labels come after "rank".
type rankMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*runner.RankStats) float64
	with []string // values of the further labels
}

func rankDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_adp_"+name, help, append([]string{"rank"}, labels...), nil)
}

var (
	descRankBlocks = rankDesc("rank_blocks", "KV blocks of a rank, by state.", "state")
	descRouted     = rankDesc("routed_total", "Requests by the rank they were placed on and the reason.", "reason")
	descSkew       = prometheus.NewDesc(namespace+"_adp_skew", "Requests of the busiest rank, divided by the mean of all; 1 is even.", nil, nil)
	descQueue      = prometheus.NewDesc(namespace+"_adp_queue_waiting", "Requests that wait for a place on any rank.", nil, nil)
	descStrict     = prometheus.NewDesc(namespace+"_adp_strict_wait_seconds", "How long the oldest request has waited that may run on one rank only, which is full.", nil, nil)
	descMoves      = prometheus.NewDesc(namespace+"_adp_moves_total", "Conversations that left a busy rank, by how the copy of their blocks ended; started is the sum of the others and those under way.", []string{"state"}, nil)
	descRouter     = prometheus.NewDesc(namespace+"_adp_router_info", "The router that places requests, always 1.", []string{"router"}, nil)
)

// rankMetrics is the table of what the snapshot of a rank shows.
var rankMetrics = []rankMetric{
	rankGauge("rank_active", "Requests placed on a rank and not ended.", func(r *runner.RankStats) float64 { return float64(r.Active) }),
	rankGauge("rank_queued_tokens", "Prompt tokens that a rank has still to compute.", func(r *runner.RankStats) float64 { return float64(r.QueuedWork) }),
	blocksGauge("free", func(r *runner.RankStats) int { return r.BlocksFree }),
	blocksGauge("active", func(r *runner.RankStats) int { return r.BlocksActive }),
	blocksGauge("cached", func(r *runner.RankStats) int { return r.BlocksReusable }),
	blocksGauge("leased", func(r *runner.RankStats) int { return r.BlocksLeased }),
	blocksGauge("receiving", func(r *runner.RankStats) int { return r.BlocksReceiving }),
	rankCounter("steps_total", "Forward passes that a rank took part in.", func(r *runner.RankStats) uint64 { return r.Steps }),
	rankCounter("dummy_steps_total", "Forward passes in which a rank had no row of its own.", func(r *runner.RankStats) uint64 { return r.Padded }),
	rankCounter("held_total", "Iterations in which the prefill of a rank was held back.", func(r *runner.RankStats) uint64 { return r.Held }),
}

func rankGauge(name, help string, get func(*runner.RankStats) float64) rankMetric {
	return rankMetric{desc: rankDesc(name, help), kind: prometheus.GaugeValue, get: get}
}

func rankCounter(name, help string, get func(*runner.RankStats) uint64) rankMetric {
	return rankMetric{desc: rankDesc(name, help), kind: prometheus.CounterValue, get: func(r *runner.RankStats) float64 { return float64(get(r)) }}
}

func blocksGauge(state string, get func(*runner.RankStats) int) rankMetric {
	return rankMetric{desc: descRankBlocks, kind: prometheus.GaugeValue, get: func(r *runner.RankStats) float64 { return float64(get(r)) }, with: []string{state}}
}

func describeRanks(ch chan<- *prometheus.Desc) {
	var last *prometheus.Desc
	for i := range rankMetrics {
		if d := rankMetrics[i].desc; d != last {
			ch <- d
			last = d
		}
	}
	for _, d := range []*prometheus.Desc{descRouted, descSkew, descQueue, descStrict, descMoves, descRouter} {
		ch <- d
	}
}

// collectRanks shows the ranks of an instance that has several.
func collectRanks(ch chan<- prometheus.Metric, s *runner.Stats, info runner.Info) {
	if len(s.Ranks) == 0 {
		return
	}
	sum, most := 0, 0
	for i := range s.Ranks {
		r, rank := &s.Ranks[i], strconv.Itoa(i)
		sum, most = sum+r.Active, max(most, r.Active)
		for j := range rankMetrics {
			m := &rankMetrics[j]
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.get(r), append([]string{rank}, m.with...)...)
		}
		for reason, n := range r.Placed {
			ch <- prometheus.MustNewConstMetric(descRouted, prometheus.CounterValue, float64(n), rank, reason)
		}
	}
	ch <- prometheus.MustNewConstMetric(descSkew, prometheus.GaugeValue, skew(sum, most, len(s.Ranks)))
	ch <- prometheus.MustNewConstMetric(descQueue, prometheus.GaugeValue, float64(s.Queued))
	ch <- prometheus.MustNewConstMetric(descStrict, prometheus.GaugeValue, s.Strict.Seconds())
	for _, m := range []struct {
		state string
		n     uint64
	}{{"started", s.Moves}, {"moved", s.Moved}, {"failed", s.MovesFailed}} {
		ch <- prometheus.MustNewConstMetric(descMoves, prometheus.CounterValue, float64(m.n), m.state)
	}
	ch <- prometheus.MustNewConstMetric(descRouter, prometheus.GaugeValue, 1, info.Router)
}

// skew is most / (sum / ranks), 1 when there is nothing to be uneven about.
func skew(sum, most, ranks int) float64 {
	if sum == 0 {
		return 1
	}
	return float64(most*ranks) / float64(sum)
}
