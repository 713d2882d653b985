// Package lockstep is one rank's part in an instance of attention-data-parallel
// ranks: the rank's own core, and the waiting queue, router and balancer that all
// ranks hold alike. It is pure: exchanged tables, payloads and the time go in,
// what to run and what to tell the others comes out. A driver repeats, on every
// rank and in step with the others:
//
//	b := l.Plan(now)                 // own batch, nil without rows
//	row, out := l.Row()              // into the exchange, and into the gather unless empty
//	step, err := l.Decide(rows)      // what all do; an error is the end of the instance
//	if step.Forward {run step.Batch, which may be nil, with step.RankRows}
//	if step.Batch != nil {l.Apply(now, result)}
//	taken := l.Route(now, deliveries) // always, also without a gather
//	submit what was taken to l.Core()
//	if l.Quiet() {rank 0 waits for mail or a wake, the others go on and wait in the exchange}
//
// Everything but the own core is replicated: it depends on exchanged rows and
// gathered deliveries only. Row carries a digest of it; ranks that differ stop.
package lockstep
