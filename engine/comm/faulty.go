package comm

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrKilled is what a Faulty rank reports of itself after FaultKill or FaultCut.
var ErrKilled = errors.New("killed by a fault rule")

// Fault is what a rule does to a rank.
type Fault uint8

// The faults.
const (
	FaultDelay     Fault = iota // the rank comes late by Delay
	FaultLose                   // the rank's part never arrives: it waits for the group's end
	FaultDuplicate              // the rank's part arrives twice
	FaultCut                    // the rank fails instead of taking part, and says so
	FaultKill                   // the rank stops for good, without a word
)

// Rule says when a fault strikes. It strikes once.
type Rule struct {
	Fault Fault
	Rank  int
	Op    Op     // OpNone: any
	Iter  uint64 // not before this iteration
	Delay time.Duration

	struck atomic.Bool
}

// Faulty is a Comm that misbehaves by rules, for tests of its users. The rules
// may be shared by several ranks.
type Faulty struct {
	Comm
	ended <-chan struct{}
	rules []*Rule
	iter  uint64
	dead  bool
}

// NewFaulty wraps a rank of g.
func NewFaulty(g *Group, rank int, rules ...*Rule) *Faulty {
	return &Faulty{Comm: g.Rank(rank), ended: g.Done(), rules: rules}
}

// strike applies the rules that fit. again says to do the collective twice.
func (f *Faulty) strike(ctx context.Context, op Op) (again bool, err error) {
	if f.dead {
		return false, ErrKilled
	}
	for _, r := range f.rules {
		if r.Rank != f.ID() || r.Op != OpNone && r.Op != op || f.iter < r.Iter || r.struck.Swap(true) {
			continue
		}
		switch r.Fault {
		case FaultDelay:
			f.pause(ctx, r.Delay)
		case FaultLose:
			f.pause(ctx, -1)
		case FaultDuplicate:
			again = true
		case FaultCut:
			f.Fail(ErrKilled)
		case FaultKill:
			f.dead = true
			return false, ErrKilled
		}
	}
	return again, nil
}

// pause waits for d, for ever if negative, or until the group or ctx ends.
func (f *Faulty) pause(ctx context.Context, d time.Duration) {
	var after <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-after:
	case <-f.ended:
	case <-ctx.Done():
	}
}

// Exchange is Comm's, with faults.
func (f *Faulty) Exchange(ctx context.Context, r Record) ([]Record, error) {
	f.iter = r.Iter
	again, err := f.strike(ctx, OpExchange)
	if err != nil {
		return nil, err
	}
	if again {
		if _, err := f.Comm.Exchange(ctx, r); err != nil {
			return nil, err
		}
	}
	return f.Comm.Exchange(ctx, r)
}

// Gather is Comm's, with faults.
func (f *Faulty) Gather(ctx context.Context, payload []byte) ([][]byte, error) {
	again, err := f.strike(ctx, OpGather)
	if err != nil {
		return nil, err
	}
	if again {
		if _, err := f.Comm.Gather(ctx, payload); err != nil {
			return nil, err
		}
	}
	return f.Comm.Gather(ctx, payload)
}

// Barrier is Comm's, with faults.
func (f *Faulty) Barrier(ctx context.Context) error {
	return f.twice(ctx, OpBarrier, func() error { return f.Comm.Barrier(ctx) })
}

// AllGather is Comm's, with faults.
func (f *Faulty) AllGather(ctx context.Context, dst, src []float32, rows []int, width int) error {
	return f.twice(ctx, OpAllGather, func() error { return f.Comm.AllGather(ctx, dst, src, rows, width) })
}

// ReduceScatter is Comm's, with faults.
func (f *Faulty) ReduceScatter(ctx context.Context, dst, src []float32, rows []int, width int) error {
	return f.twice(ctx, OpReduceScatter, func() error { return f.Comm.ReduceScatter(ctx, dst, src, rows, width) })
}

// AllToAll is Comm's, with faults.
func (f *Faulty) AllToAll(ctx context.Context, dst, src []float32, rows []int, width int) error {
	return f.twice(ctx, OpAllToAll, func() error { return f.Comm.AllToAll(ctx, dst, src, rows, width) })
}

// AllReduce is Comm's, with faults.
func (f *Faulty) AllReduce(ctx context.Context, x []float32) error {
	return f.twice(ctx, OpAllReduce, func() error { return f.Comm.AllReduce(ctx, x) })
}

func (f *Faulty) twice(ctx context.Context, op Op, do func() error) error {
	again, err := f.strike(ctx, op)
	if err == nil && again {
		err = do()
	}
	if err == nil {
		err = do()
	}
	return err
}
