// Package wire carries KV hand-overs between processes: the control stream of
// each transfer over gRPC, and the blocks themselves by the best of several byte
// paths, see path.go: copies within a process, shared memory within a host, framed
// TCP to others. Blocks go straight from pool to pool, or through a buffer where
// they lie in several places. They may be pulled while later ones are computed; a
// path or a control stream that breaks is replaced, and the pull goes on with the
// first block that is missing.
//
// It decides nothing about leases or requests. What peers ask for goes to the
// core through a callback, and the core's answers come back as method calls:
//
//	srv, err := wire.Listen(wire.Config{Host: "127.0.0.1", Incarnation: "a1"})
//	tr := srv.Rank(0, memory, engine.TransferEvent) // a runner.Transport
//	tr.Start(pull)                                       // gen side
//	tr.Accept(accept)                                    // ctx side
//
// Rules kept here: only the puller writes its own blocks; a block counts once it
// was checked and surely read under a live lease; every Start gives exactly one
// final PullEvent, after which its blocks are not touched; after Revoke returns,
// the owner reads no byte of the lease any more, and no block that a puller reads in
// shared memory later counts.
package wire
