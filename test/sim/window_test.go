package sim

import (
	"strings"
	"testing"

	"tandem/engine/request"
)

// A request of a model whose layers all have a window holds the blocks that the
// window reaches and the ones that it fills, however long its answer is.
func TestWindowFreesBlocks(t *testing.T) {
	for _, overlap := range []Overlap{InTurn, Eager, Lazy} {
		c := config(4, 40)
		c.Window, c.MaxNumTokens = 10, 12
		w := worker(t, c)
		w.Strict, w.Overlap = true, overlap
		submit(w, 1, 30, 100)
		most := 0
		for w.Tracks[0] == nil || w.Tracks[0].Finish == request.Running {
			if _, err := w.Step(0); err != nil {
				t.Fatal(err)
			}
			if st := w.Core.Stats(); st.Decoding > 0 {
				most = max(most, st.BlocksActive)
				if q := w.Core.Requests(nil)[0]; q.Blocks != st.BlocksActive || q.Committed > q.Blocks {
					t.Fatalf("%d blocks are in use, it is said to have %d, %d of them shared", st.BlocksActive, q.Blocks, q.Committed)
				}
			}
		}
		mustRun(t, w)
		verify(t, w)
		// 10 positions lie in at most 4 blocks of 4; steps ahead fill one more.
		if st := w.Core.Stats(); most > 5 || st.WindowFreed < 28 {
			t.Errorf("overlap %v: up to %d blocks while decoding, %d given back", overlap, most, st.WindowFreed)
		}
	}
}

// Choices of one request share the prompt's blocks until the window has passed them.
func TestWindowFreesBlocksOfEveryChoice(t *testing.T) {
	c := config(4, 100)
	c.Window = 10
	w := worker(t, c)
	w.Strict = true
	r := full(0, prompt(0, 30), 60)
	r.Choices = 3
	w.Submit(0, r, nil)
	last := 0
	for w.Tracks[0] == nil || w.Tracks[0].Finish == request.Running {
		if _, err := w.Step(0); err != nil {
			t.Fatal(err)
		}
		if st := w.Core.Stats(); st.Decoding == 3 {
			last = st.BlocksActive
		}
	}
	mustRun(t, w)
	verify(t, w)
	if st := w.Core.Stats(); last == 0 || last > 3*4 || st.WindowFreed < 3*18 {
		t.Errorf("%d blocks at the end, %d given back", last, st.WindowFreed)
	}
}

// What the window has passed can be found by later prompts until its room is taken.
func TestWindowedBlocksAreReused(t *testing.T) {
	c := config(4, 40)
	c.Window = 10
	w := worker(t, c)
	w.Submit(0, full(0, prompt(0, 30), 20), nil)
	mustRun(t, w)
	again := w.Submit(0, full(1, prompt(0, 30), 20), nil)
	mustRun(t, w)
	verify(t, w)
	if again.Usage.CachedTokens != 28 {
		t.Errorf("%d tokens were found, want 28", again.Usage.CachedTokens)
	}
}

// The fake model finds a core that lets go of blocks too early.
func TestEarlyReleaseIsFound(t *testing.T) {
	c := config(4, 40)
	c.Window = 10
	w := worker(t, c)
	w.Model.Window = 14 // the core frees for 10
	submit(w, 1, 30, 40)
	if err := w.Run(0, 1000); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("error %v", err)
	}
}
