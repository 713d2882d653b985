package comm

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Reasons why a group ends, for errors.Is.
var (
	// ErrClosed: a rank closed, as it does in an orderly shutdown.
	ErrClosed = errors.New("closed")
	// ErrTimeout: a rank did not come to a collective in time.
	ErrTimeout = errors.New("timeout")
	// ErrDivergence: ranks that must agree do not.
	ErrDivergence = errors.New("divergence")
	// ErrLost: the connection to another process broke.
	ErrLost = errors.New("connection lost")
	// ErrCancelled: a rank's context ended inside a collective.
	ErrCancelled = errors.New("cancelled")
	// ErrRefused: the root does not take these ranks into its group.
	ErrRefused = errors.New("join refused")
)

// Span is a run of consecutive ranks, both ends included.
type Span struct{ First, Last int }

// String gives "rank 3" or "ranks 2-3".
func (s Span) String() string {
	if s.First == s.Last {
		return fmt.Sprintf("rank %d", s.First)
	}
	return fmt.Sprintf("ranks %d-%d", s.First, s.Last)
}

// verb is the form that fits one rank or several.
func (s Span) verb(one, several string) string {
	if s.First == s.Last {
		return one
	}
	return several
}

// Len is the number of ranks.
func (s Span) Len() int { return s.Last - s.First + 1 }

// Has reports whether rank belongs to the span.
func (s Span) Has(rank int) bool { return s.First <= rank && rank <= s.Last }

// Op is a kind of collective.
type Op uint8

// The collectives.
const (
	OpNone Op = iota
	OpExchange
	OpGather
	OpBarrier
	OpAllGather
	OpReduceScatter
	OpAllReduce
	OpAllToAll
)

var opNames = [...]string{"no collective", "exchange", "gather", "barrier", "all-gather", "reduce-scatter", "all-reduce", "all-to-all"}

// String names the collective.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("collective %d", uint8(o))
}

// where is what an error says of the collective.
func (o Op) where() string {
	if o == OpNone {
		return ""
	}
	return " in " + o.String()
}

// PeerError says which ranks ended the group, and where they were.
type PeerError struct {
	Ranks Span
	Iter  uint64 // of the ranks' last exchange
	Op    Op     // they were in, or OpNone
	Err   error
}

// Error names the ranks, the iteration and the cause.
func (e *PeerError) Error() string {
	return fmt.Sprintf("%v left the group at iteration %d%s: %v", e.Ranks, e.Iter, e.Op.where(), e.Err)
}

// Unwrap gives the cause.
func (e *PeerError) Unwrap() error { return e.Err }

// TimeoutError says which ranks did not come to a collective.
type TimeoutError struct {
	Op      Op
	Iter    uint64
	Missing []int
	Waited  time.Duration
}

// Error names the ranks, the collective and the iteration.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s did not come to %v of iteration %d within %v",
		rankList(e.Missing), e.Op, e.Iter, e.Waited.Round(time.Millisecond))
}

// Is makes it an ErrTimeout.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// DivergenceError says in what a rank differs from what it must be, or from the
// lowest rank.
type DivergenceError struct {
	Field string
	Rank  int
	Iter  uint64
	Op    Op // in which it was found, or OpNone
	Want  string
	Got   string
}

// Error names the field, the iteration and both values.
func (e *DivergenceError) Error() string {
	return fmt.Sprintf("divergence at iteration %d%s: %s of rank %d is %s, want %s",
		e.Iter, e.Op.where(), e.Field, e.Rank, e.Got, e.Want)
}

// Is makes it an ErrDivergence.
func (e *DivergenceError) Is(target error) bool { return target == ErrDivergence }

func diverged[T any](field string, rank int, iter uint64, want, got T) *DivergenceError {
	return &DivergenceError{Field: field, Rank: rank, Iter: iter, Want: fmt.Sprint(want), Got: fmt.Sprint(got)}
}

// Blame takes the error with which a group ended apart, the same way in every
// process: the ranks that failed first, the iteration and the collective they
// failed in. It gives no ranks for other errors.
func Blame(err error) (ranks []int, iter uint64, op Op) {
	var (
		peer *PeerError
		late *TimeoutError
		div  *DivergenceError
	)
	switch {
	case errors.As(err, &late):
		return late.Missing, late.Iter, late.Op
	case errors.As(err, &div):
		return []int{div.Rank}, div.Iter, div.Op
	case errors.As(err, &peer):
		for r := peer.Ranks.First; r <= peer.Ranks.Last; r++ {
			ranks = append(ranks, r)
		}
		return ranks, peer.Iter, peer.Op
	}
	return nil, 0, OpNone
}

func rankList(ranks []int) string {
	if len(ranks) == 0 {
		return "a peer"
	}
	parts := make([]string, len(ranks))
	for i, r := range ranks {
		parts[i] = fmt.Sprint(r)
	}
	if len(ranks) == 1 {
		return "rank " + parts[0]
	}
	return "ranks " + strings.Join(parts, ", ")
}
