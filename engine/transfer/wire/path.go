package wire

import (
	"context"
	"errors"

	pb "tandem/engine/transfer/transferpb"
)

// Names of the byte paths, for metrics and the log.
const (
	PathInproc = "inproc" // both engines are in one process: blocks are copied
	PathShared = "shm"    // one host: the puller copies from memory that it maps
	PathTCP    = "tcp"
)

// pathNames are the byte paths from the best to the one that always works.
var pathNames = [...]string{PathInproc, PathShared, PathTCP}

// ownerPath is one byte path at the worker that has the blocks. Together with
// pullerPath it is all that a new one must offer; memory that a network card reads
// by itself would be registered, described by its key, read and polled for in the
// same way.
type ownerPath interface {
	// register makes the pool of a rank readable. It is called once for each rank,
	// before any session asks for a description.
	register(rank *Transport)
	// describe adds to an ACCEPT what a puller needs for the blocks that the session
	// was just granted. Called with the session's mu held.
	describe(ss *session, to *pb.Accept)
	// retract ends the reading of what was described, before a block of it may be
	// written again. Called with the session's mu held; it must not wait.
	retract(ss *session)
	// forget gives back what the path keeps for a session that has ended.
	forget(ss *session)
	// close waits until no goroutine of the path is left.
	close()
}

// pullerPath is one byte path at the worker that wants the blocks.
type pullerPath interface {
	name() string
	// offered tells whether an ACCEPT can be read by this path.
	offered(l *link, a *pb.Accept) bool
	// open connects. again asks for nothing that was used before.
	open(ctx context.Context, pl *pull, l *link, a *pb.Accept, again bool) (reader, error)
	close()
}

// reader fetches the missing blocks of one pull in their order, starting with
// that which the pull lacks when it is opened. One goroutine uses it.
type reader interface {
	// read orders the next n blocks, which the owner says are computed, when all that
	// was ordered before is here. It does not wait for them.
	read(n int) error
	// poll waits for blocks that were ordered and returns how many more are here,
	// were checked and surely read under a live lease; at least 1 without an error.
	poll() (int, error)
	// close ends the reading. done tells that all that was ordered is here.
	close(done bool)
}

// errNoPath is the end of a pull that has tried every byte path.
var errNoPath = errors.New("no byte path to the owner is left")

// triesOfPath is how often a path may break without moving a block before the
// next one is taken.
const triesOfPath = 2

// route is where a pull stands among the byte paths.
type route struct {
	paths  []pullerPath // that are left, the best one first
	breaks int          // of paths[0] since it moved a block
	open   reader
}

// routes returns the byte paths that an ACCEPT offers.
func (p *Puller) routes(l *link, a *pb.Accept) *route {
	r := &route{}
	for _, path := range p.paths {
		if path.offered(l, a) {
			r.paths = append(r.paths, path)
		}
	}
	return r
}

// broke notes that the path failed and takes the next one if it did too often.
func (r *route) broke() {
	r.shut(false)
	if r.breaks++; r.breaks >= triesOfPath {
		r.paths, r.breaks = r.paths[1:], 0
	}
}

func (r *route) shut(done bool) {
	if r.open != nil {
		r.open.close(done)
		r.open = nil
	}
}
