package comm

import (
	"context"
	"runtime"
	"sync/atomic"
)

// ended is set in a barrier's round when nobody may meet any more.
const ended = 1 << 63

// cacheLine keeps what different ranks write apart.
const cacheLine = 64

// barrier lets the local ranks meet again and again. The last to arrive runs the
// round's work alone, then opens the next round.
type barrier struct {
	round   atomic.Uint64 // finished rounds, and ended
	_       [cacheLine - 8]byte
	arrived atomic.Int32
	_       [cacheLine - 4]byte

	seats  []seat
	spins  int // looks at round before the first yield
	yields int // looks with a yield before parking
}

// seat is where one local rank sleeps.
type seat struct {
	parked atomic.Bool
	wake   chan struct{}
	_      [cacheLine - 16]byte
}

func (b *barrier) init(n int) {
	b.seats = make([]seat, n)
	for i := range b.seats {
		b.seats[i].wake = make(chan struct{}, 1)
	}
	// A spinning rank must not hold the core that a peer needs.
	b.yields = 2
	if procs := runtime.GOMAXPROCS(0); procs >= n && procs > 1 {
		b.spins, b.yields = 100, 32
	}
}

func (b *barrier) over() bool { return b.round.Load()&ended != 0 }

// arrive counts the caller in. The last one gets true and must call open.
func (b *barrier) arrive() (last bool) {
	return int(b.arrived.Add(1)) == len(b.seats)
}

// open finishes round n, also when the barrier ended meanwhile: what all ranks
// did counts.
func (b *barrier) open(n uint64) {
	b.arrived.Store(0)
	if !b.round.CompareAndSwap(n, n+1) {
		b.round.CompareAndSwap(n|ended, (n+1)|ended)
	}
	b.rouse()
}

// end wakes everybody for good. Rounds that were open already stay so.
func (b *barrier) end() {
	b.round.Or(ended)
	b.rouse()
}

func (b *barrier) rouse() {
	for i := range b.seats {
		if s := &b.seats[i]; s.parked.Load() && s.parked.CompareAndSwap(true, false) {
			s.wake <- struct{}{}
		}
	}
}

// passed tells whether round n is finished, and whether the barrier ended
// without it.
func (b *barrier) passed(n uint64) (done, over bool) {
	v := b.round.Load()
	return v&^ended > n, v&ended != 0
}

// wait blocks until round n is finished: true, or the barrier or the context
// ended: false.
func (b *barrier) wait(ctx context.Context, seat int, n uint64) bool {
	for i := range b.spins + b.yields {
		if v := b.round.Load(); v != n {
			return v&^ended > n
		}
		if i >= b.spins {
			runtime.Gosched()
		}
	}
	s := &b.seats[seat]
	for {
		s.parked.Store(true)
		if done, over := b.passed(n); done || over {
			if !s.parked.CompareAndSwap(true, false) {
				<-s.wake // somebody roused us meanwhile
			}
			return done
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			if !s.parked.CompareAndSwap(true, false) {
				<-s.wake
			}
			done, _ := b.passed(n)
			return done
		}
	}
}
