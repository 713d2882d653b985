// Package comm keeps the ranks of one instance in lockstep: the fixed exchange
// of each iteration, the payloads that may follow it, and the collectives over
// rows of activations. It knows nothing of requests, models or routing.
//
// A group is made in one process, or over several: the process of rank 0 listens
// and the others join with the ranks they host, in any order.
//
//	g, err := comm.NewLocal(comm.Config{Size: 4})         // all ranks here
//	l, err := comm.Listen(addr, comm.Span{Last: 1}, cfg)  // ranks 0-1 here
//	g, err := l.Accept(ctx)
//	g, err := comm.Join(ctx, addr, comm.Span{First: 2, Last: 3}, cfg)
//
// Each rank then runs on its own goroutine with g.Rank(r):
//
//	table, err := rank.Exchange(ctx, record) // once an iteration, always
//	parts, err := rank.Gather(ctx, payload)  // free when nobody has a payload
//	err = rank.AllReduce(ctx, x)
//
// Rules kept here: results are the same bits however the ranks are spread over
// goroutines and processes, since sums follow one tree over the ranks; a rank that
// fails, closes, is cancelled or calls another collective than its peers ends the
// group, and every peer gets an error that names the rank and the iteration; no
// wait lasts longer than the time-out. A group that ended stays so.
//
// The tree halves the range of ranks, the lower part of [lo, hi) ending at
// (lo+hi)/2, until one rank is left:
//
//	sum(lo, hi) = sum(lo, mid) + sum(mid, hi), mid = (lo+hi)/2
//
// What is no collective goes to the process of rank 0 by Rank.Post, in order, at
// any time: tokens, ends of requests, counters.
//
// Ranks of one process meet in shared memory. Each other process has one gRPC
// stream to the root for tables and payloads and one framed TCP connection for
// activations; the last rank to arrive in a process speaks for all of it.
package comm
