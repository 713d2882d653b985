// Package metrics holds every Prometheus metric of the frontend and the worker,
// built from the snapshots and observer interfaces that other packages expose.
// Nobody else imports Prometheus except the mains, which pass a registry in.
// Labels come from closed sets only, never from ids.
//
//	reg := metrics.NewRegistry()
//	m := metrics.NewWorker(reg, func() (runner.Stats, runner.Info, bool) {
//		return engine.Stats(stall), engine.Info(), true
//	})
//	worker.New(worker.Config{Observer: m, Metrics: metrics.Handler(reg)})
package metrics
