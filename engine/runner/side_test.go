package runner

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"tandem/engine/transfer"
)

// listening is a transport that tells what a rank refused.
type listening struct {
	frozen
	rejected chan transfer.Peer
}

func (l *listening) Reject(r transfer.Reject) { l.rejected <- r.Peer }

// TestRanksHearDuringAPass: each rank of an instance answers its peers while all of
// them are in a pass.
func TestRanksHearDuringAPass(t *testing.T) {
	for name, spans := range spansOf(2) {
		t.Run(name, func(t *testing.T) {
			heard := make(chan transfer.Peer, 1)
			w := newWorld(t, worldConfig{size: 2, spans: spans, transport: func(tell func(any)) Transport {
				return &listening{frozen: frozen{tell: tell}, rejected: heard}
			}})
			in, out := make(chan struct{}), make(chan struct{})
			w.devices[1].strike(func() { close(in); <-out })
			s, err := w.engines[0].Submit(t.Context(), greedy(w.engines[0], 3, 1, 2), nil)
			if err != nil {
				t.Fatal(err)
			}
			<-in
			for rank := range 2 { // rank 0 waits for rank 1 in its pass
				for _, e := range w.engines {
					e.TransferEvent(rank, transfer.Attach{Peer: transfer.Peer(rank + 1), ID: 99})
				}
				if got := <-heard; got != transfer.Peer(rank+1) {
					t.Error(fmt.Sprint("rank ", rank, " answered peer ", got))
				}
			}
			close(out)
			collect(t, s)
			w.stop()
		})
	}
}

// joining counts the threads that run its steps.
type joining struct {
	counting
	joined atomic.Int32
}

func (d *joining) JoinThreads() { d.joined.Add(1) }

// TestStepsRunOnThreadsOfTheDevice: whoever runs the steps has joined before, once: the
// loop, or with peers what is beside it, and each rank that shares requests.
func TestStepsRunOnThreadsOfTheDevice(t *testing.T) {
	alone, peers, shared := &joining{}, &joining{}, &joining{}
	e, died := start(t, alone)
	s, err := e.Submit(t.Context(), greedy(e, 3, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	collect(t, s)
	stop(t, e, died)

	r := newRank(0, nil, peers, &frozen{}, vocab, nil)
	for range 3 {
		r.during(func() {})
	}
	r.side.close()
	joinThreads(&tensorLeader{Device: shared})
	runtime.UnlockOSThread()
	for what, d := range map[string]*joining{"alone": alone, "with peers": peers, "shared": shared} {
		if n := d.joined.Load(); n != 1 {
			t.Errorf("%s: %d threads joined", what, n)
		}
	}
}

// TestAPanicBesideTheLoop ends the engine as one in the loop does.
func TestAPanicBesideTheLoop(t *testing.T) {
	w := newWorld(t, worldConfig{size: 1, transport: func(tell func(any)) Transport { return &frozen{tell: tell} }})
	w.devices[0].strike(func() { panic("broken device") })
	s, err := w.engines[0].Submit(t.Context(), greedy(w.engines[0], 3, 1, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, last := collect(t, s); last.Err == nil {
		t.Errorf("%+v", last)
	}
	if err := <-w.died[0]; err == nil || !strings.Contains(err.Error(), "broken device") {
		t.Errorf("Run returned %v", err)
	}
	w.close()
}
