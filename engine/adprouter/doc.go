// Package adprouter decides which attention-DP rank of an instance gets each new
// request, which ranks have to pad a step, and when prefill is held back.
//
// Everything here is replicated: each rank runs the same code on the same
// gathered and broadcast data and must arrive at the same answer, bit for bit,
// because nothing is sent afterwards. So there is no clock, no randomness, no
// goroutine, no map iteration and no floating point; every order is total and
// ends in a rank or request id. The package must not know blocks, transports or
// what the batch computes.
//
// The pieces, in the order of one iteration:
//
//	Decide(rows, opt, &plan)                       // who pads, is there a forward
//	states = States(rows, states)                  // how busy each rank is
//	admitted := queue.Admit(states, probedOnly)    // what may enter
//	res := router.Route(states, admitted)          // where it goes
//	queue.Return(res.Unplaced)                     // what found no place
//
// A request with the reason Moved has left its conversation's home; Placed.From
// says where the blocks are. When they are copied, or there was nothing to copy,
// all ranks call router.Move in the same iteration, or router.MoveFailed. The old
// home should let go of its copy then, else memory is short sooner. A rank's
// QueuedPrefill must not count what is cached, nor what a copy brings, and must
// count what was placed in the last call.
//
// Router.Digest, Queue.Digest and Balance.Digest go into the next exchange;
// ranks whose digests differ must stop, and Dump shows their states.
package adprouter
