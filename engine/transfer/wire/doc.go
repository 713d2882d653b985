// Package wire carries KV hand-overs between processes: the control stream of
// each transfer over gRPC and the blocks themselves over framed TCP, straight
// from and into the pools, or through a buffer where a block lies in several
// places. Between two engines of one process the same control messages travel
// over channels and blocks are copied once.
//
// It decides nothing about leases or requests. What peers ask for goes to the
// core through a callback, and the core's answers come back as method calls:
//
//	srv, err := wire.Listen(wire.Config{Host: "127.0.0.1", Incarnation: "a1"})
//	tr := srv.Rank(0, memory, engine.TransferEvent) // a runner.Transport
//	tr.Start(pull)                                       // gen side
//	tr.Accept(accept)                                    // ctx side
//
// Rules kept here: only the puller writes its own blocks; a block counts once
// its frame's checksum is right; every Start gives exactly one final PullEvent,
// after which its blocks are not touched; after Revoke returns, no byte of the
// lease is read any more.
package wire
