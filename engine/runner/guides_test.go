package runner

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"tandem/engine/request"
	"tandem/engine/tensor"
)

// beside is a device that comes back from a step only when the masks of its guided
// rows are made, or too late.
type beside struct {
	counting
	made atomic.Int64 // masks
	want atomic.Int64 // masks after this step
	late atomic.Bool
}

func (d *beside) Run(b *tensor.Batch) ([]float32, error) {
	want := d.want.Add(int64(len(b.LogitRows)))
	for limit := time.Now().Add(30 * time.Second); d.made.Load() < want; time.Sleep(50 * time.Microsecond) {
		if d.late.Load() || time.Now().After(limit) {
			d.late.Store(true)
			break
		}
	}
	return d.counting.Run(b)
}

// evens is a grammar of even tokens. If it is broken it panics behind the third.
type evens struct {
	d      *beside
	broken bool
}

func (g evens) Start() request.GuideMatcher { return &evensAt{evens: g} }

type evensAt struct {
	evens
	n int
}

func (m *evensAt) Push(token int32) bool { m.n++; return token%2 == 0 }

func (m *evensAt) Mask() ([]uint64, bool, error) {
	m.d.made.Add(1)
	if m.broken && m.n == 3 {
		panic("a bug")
	}
	return []uint64{0x5555555555555555}, false, nil
}

// TestMasksAreMadeBesideTheStep: what grammars allow is known when logits come.
func TestMasksAreMadeBesideTheStep(t *testing.T) {
	for _, lane := range []string{"", "aside"} { // the others' devices run a step within Launch or Wait
		t.Run("lane "+lane, func(t *testing.T) {
			laneOfTests = lane
			defer func() { laneOfTests = "" }()
			d := &beside{}
			e, died := start(t, d)
			var streams []*Stream
			for i := range 4 {
				r := greedy(e, 6, int32(i))
				r.Guide = evens{d: d}
				s, err := e.Submit(t.Context(), r, nil)
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			for i, s := range streams {
				ids, last := collect(t, s)
				if len(ids) != 6 || last.Finish != request.FinishLength {
					t.Errorf("request %d: %v, %s %v", i, ids, last.Finish, last.Err)
				}
				for _, id := range ids {
					if id%2 != 0 {
						t.Errorf("request %d: %v", i, ids)
					}
				}
			}
			if d.late.Load() {
				t.Error("a step ended before the masks of its rows were begun")
			}
			stop(t, e, died)
		})
	}
}

// TestABrokenGrammarEndsItsRequest: and no other of the batch.
func TestABrokenGrammarEndsItsRequest(t *testing.T) {
	for _, lane := range lanes {
		t.Run("lane "+lane, func(t *testing.T) {
			laneOfTests = lane
			defer func() { laneOfTests = "" }()
			d := &beside{}
			d.late.Store(true)
			e, died := start(t, d)
			bad := greedy(e, 40, 1)
			bad.Guide = evens{d: d, broken: true}
			hurt, err := e.Submit(t.Context(), bad, nil)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := e.Submit(t.Context(), greedy(e, 5, 9), nil)
			if err != nil {
				t.Fatal(err)
			}
			if ids, last := collect(t, whole); fmt.Sprint(ids) != "[10 11 12 13 14]" || last.Err != nil {
				t.Errorf("%v %v", ids, last.Err)
			}
			if _, last := collect(t, hurt); last.Err == nil || last.Err.Code != request.Internal {
				t.Errorf("the broken one ended %q %v", last.Finish, last.Err)
			}
			stop(t, e, died)
		})
	}
}
