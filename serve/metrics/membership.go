package metrics

import "github.com/prometheus/client_golang/prometheus"

// RegisterMembership shows how a worker's registration in its cluster does: whether it is in force, and how often it could
// not be kept so far.
func RegisterMembership(reg prometheus.Registerer, state func() (registered bool, failures uint64)) {
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "cluster_registered", Help: "1 while the worker is registered in its cluster.",
		}, func() float64 { on, _ := state(); return bit(on) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: "cluster_registration_failures_total", Help: "Attempts to register or to refresh that failed.",
		}, func() float64 { _, n := state(); return float64(n) }),
	)
}
