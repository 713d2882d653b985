// Package workload holds what is sent to a server when it is measured: requests
// with their lengths, the content that they share, and what each waits for. A
// Workload comes from a generator of this package or from a recorded trace
// (test/bench/traces), and goes to the load client or to the simulator.
//
// A prompt is a list of segments, each a name and a length: equal names are equal
// tokens, so that sharing of prefixes is exact in every tool, with no text
// kept. Everything here is pure: the same options and seed give the same
// requests on any machine.
//
//	w := workload.Random(workload.RandomOptions{Requests: 100, Input: workload.Fixed(512), Output: workload.Fixed(64), Seed: 1})
//	s, err := schedule.New(w, schedule.Options{Mode: schedule.Rate, Rate: 4})
package workload
