package comm

import (
	"errors"
	"math"
	"time"

	"tandem/engine/comm/commpb"
)

// Codes of a Failure message, by index.
var failureCodes = [...]error{errors.New("failed"), ErrClosed, ErrTimeout, ErrDivergence, ErrLost, ErrCancelled}

// failed is an error of another process: its words, and its reason for
// errors.Is.
type failed struct {
	text   string
	reason error
}

func (e *failed) Error() string { return e.text }
func (e *failed) Unwrap() error { return e.reason }

// errorFailure packs what ended the group.
func errorFailure(err error) *commpb.Failure {
	f := &commpb.Failure{Reason: err.Error()}
	for code, reason := range failureCodes {
		if errors.Is(err, reason) {
			f.Code = uint32(code)
		}
	}
	var (
		peer *PeerError
		late *TimeoutError
		div  *DivergenceError
	)
	switch {
	case errors.As(err, &late):
		f.Iter, f.Op, f.WaitedMs = late.Iter, uint32(late.Op), uint64(late.Waited.Milliseconds())
		f.Missing = uints(late.Missing)
	case errors.As(err, &div):
		f.Iter, f.Op, f.First, f.Last = div.Iter, uint32(div.Op), uint32(div.Rank), uint32(div.Rank)
		f.Field, f.Want, f.Got = div.Field, div.Want, div.Got
	case errors.As(err, &peer):
		f.Iter, f.Op, f.Reason = peer.Iter, uint32(peer.Op), peer.Err.Error()
		f.First, f.Last = uint32(peer.Ranks.First), uint32(peer.Ranks.Last)
	}
	return f
}

// failureError unpacks it.
func failureError(f *commpb.Failure) error {
	op := Op(min(f.GetOp(), math.MaxUint8))
	reason := failureCodes[0]
	if code := f.GetCode(); code < uint32(len(failureCodes)) {
		reason = failureCodes[code]
	}
	switch {
	case errors.Is(reason, ErrTimeout) && len(f.GetMissing()) > 0:
		waited := time.Duration(f.GetWaitedMs()) * time.Millisecond
		return &TimeoutError{Op: op, Iter: f.GetIter(), Missing: ints(f.GetMissing()), Waited: waited}
	case errors.Is(reason, ErrDivergence) && f.GetField() != "":
		return &DivergenceError{
			Field: f.GetField(), Rank: int(f.GetFirst()), Iter: f.GetIter(), Op: op,
			Want: f.GetWant(), Got: f.GetGot(),
		}
	}
	return &PeerError{
		Ranks: Span{int(f.GetFirst()), int(f.GetLast())}, Iter: f.GetIter(), Op: op,
		Err: &failed{text: f.GetReason(), reason: reason},
	}
}

func uints(ranks []int) []uint32 {
	out := make([]uint32, len(ranks))
	for i, r := range ranks {
		out[i] = uint32(r)
	}
	return out
}

func ints(ranks []uint32) []int {
	out := make([]int, len(ranks))
	for i, r := range ranks {
		out[i] = int(r)
	}
	return out
}
