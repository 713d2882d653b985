// Package runner drives the executor core on real hardware: one goroutine owns
// the core, feeds it requests, cancels, transfer events and the clock, runs the
// batches it plans on a device, samples, and hands outputs to their streams.
//
// Everything outside that goroutine talks to it through the inbox; nothing
// calls back into it. Use:
//
//	e, err := runner.New(cfg, device, transport)
//	go e.Run(ctx)
//	s, err := e.Submit(ctx, &request.Request{ID: e.NewID(), ...}, nil)
//	for out, err := s.Next(ctx); ; out, err = s.Next(ctx) { ... }
package runner
