// Package schedule decides when the requests of a workload are sent: open loops
// by rate or by recorded time, closed loops by requests, conversations or trees
// of conversations. It is pure: the time goes in, requests come out, and the
// same options and answers give the same decisions, in a client on a real clock
// as in a simulator on a virtual one.
//
//	s, err := schedule.New(w, schedule.Options{Mode: schedule.Sessions, Concurrency: 8})
//	for !s.Over() {
//		due, next := s.Poll(now) // send each of due; call again at next, or after Done
//		s.Done(due[0].Seq, now)  // when one has ended, however
//	}
package schedule
