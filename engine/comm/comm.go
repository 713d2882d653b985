package comm

import "context"

// Comm is one rank's place in the group. Its methods are for the rank's own
// goroutine, except Wake, Post, Progress and Fail, which anybody may call. After an
// error every further call gives the same error.
type Comm interface {
	// ID is the rank, Size the number of ranks.
	ID() int
	Size() int

	// Exchange gives every rank the records of all, in rank order. Iterations
	// ascend by one. The table is valid until the rank's next Exchange.
	Exchange(ctx context.Context, r Record) ([]Record, error)
	// Gather gives every rank the payloads of all, in rank order. The payload
	// must have the size that the rank's last record promised. When no rank
	// promised any, it returns nil without meeting the peers. The parts are read
	// only and valid until the rank's next Gather.
	Gather(ctx context.Context, payload []byte) ([][]byte, error)
	// Barrier returns when every rank has called it.
	Barrier(ctx context.Context) error

	// AllGather gives every rank the rows of all: dst [sum(rows), width] is the
	// concatenation of each src [rows[rank], width]. rows and width must be equal
	// everywhere; a rank may have no rows. src may be the rank's own part of dst.
	AllGather(ctx context.Context, dst, src []float32, rows []int, width int) error
	// ReduceScatter gives each rank the sum over all ranks of its part of src:
	// dst [rows[rank], width] of src [sum(rows), width]. dst may be the rank's
	// own part of src. src is scratch afterwards. Sums follow the tree of the
	// package comment.
	ReduceScatter(ctx context.Context, dst, src []float32, rows []int, width int) error
	// AllToAll brings each row to one rank: rows[from*Size+to] rows of src go from
	// rank from to rank to. src [rows to rank 0, then to rank 1, …, width], dst
	// [rows from rank 0, then from rank 1, …, width]; they must not overlap.
	AllToAll(ctx context.Context, dst, src []float32, rows []int, width int) error
	// AllReduce replaces x, of equal length everywhere, by its sum over all
	// ranks.
	AllReduce(ctx context.Context, x []float32) error

	// Wake ends the idle wait of rank 0.
	Wake()
	// Woken receives after a Wake by any rank; wakes that nobody awaited are kept
	// as one. Only rank 0 may receive.
	Woken() <-chan struct{}
	// Progress says that the rank is alive in a long forward; peers that wait for
	// it start their time-out anew.
	Progress()

	// Post sends a message to the process of rank 0, which gets it by
	// Config.OnPost. It does not wait for anybody; see Rank.Post.
	Post(msg []byte) error

	// Fail ends the group because of err.
	Fail(err error)
	// Close leaves the group, which ends it for all.
	Close() error
}

var _ Comm = (*Rank)(nil)
