package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"tandem/engine/runner"
)

var (
	descTransferBytes   = prometheus.NewDesc(namespace+"_kv_transfer_bytes_total", "Bytes of KV blocks that moved between workers, by byte path.", []string{"path", "direction"}, nil)
	descTransferPulls   = prometheus.NewDesc(namespace+"_kv_transfer_pulls_total", "Fetches that were confirmed, by the byte path of their last blocks.", []string{"path"}, nil)
	descTransferResumed = prometheus.NewDesc(namespace+"_kv_transfer_resumed_total", "Times that a fetch went on after its byte path broke.", []string{"path"}, nil)
)

func describeTransfer(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTransferBytes, descTransferPulls, descTransferResumed} {
		ch <- d
	}
}

// collectTransfer shows which byte paths a worker uses.
func collectTransfer(ch chan<- prometheus.Metric, s *runner.Stats) {
	for _, t := range s.Traffic {
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{t.Path}, labels...)...)
		}
		count(descTransferBytes, t.Sent, "out")
		count(descTransferBytes, t.Received, "in")
		count(descTransferPulls, t.Pulls)
		count(descTransferResumed, t.Resumed)
	}
}
