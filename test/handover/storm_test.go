package handover

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/scheduler"
	"tandem/engine/transfer/wire"
)

// TestScenario12CancelStormLeavesNothing cancels 10,000 requests of two real
// workers at random moments, of one leg and of two, with steps that overlap.
// Afterwards both are empty and the process has the memory that it had.
func TestScenario12CancelStormLeavesNothing(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 1000
	}
	squeeze := func(c *executor.Config) { c.Policy, c.Blocks = scheduler.MaxUtilization, 160 }
	ctx, gen := startEngine(t, executor.Ctx, wire.Config{}, squeeze, true), startEngine(t, executor.Gen, wire.Config{}, squeeze, true)
	var id int64
	storm := func(n int) {
		var wg sync.WaitGroup
		for client := range 32 {
			rng, first := rand.New(rand.NewPCG(uint64(client), uint64(n))), id
			wg.Go(func() {
				for i := client; i < n; i += 32 {
					if err := leave(t.Context(), ctx, gen, rng, first+int64(i)+1); err != nil {
						t.Errorf("request %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
		id += int64(n)
		settled(t, gen, "idle", idle)
		settled(t, ctx, "idle", idle)
	}
	storm(1000) // buffers and pools get their size
	before := resident(t)
	storm(n)
	if grown := resident(t) - before; grown > 16<<20 {
		t.Errorf("the process has grown by %d MiB", grown>>20)
	}
	for _, w := range []*worker{ctx, gen} {
		st := w.Stats(0)
		if st.BlocksFree+st.BlocksReusable != st.BlocksTotal || st.Holds != 0 || st.Deadlocks+st.IllegalTransition != 0 {
			t.Errorf("left over: %+v", st)
		}
	}
}

// leave sends one request and goes away at a random moment.
func leave(ctx context.Context, from, to *worker, rng *rand.Rand, id int64) error {
	r := &request.Request{
		Kind: request.Full, Prompt: prompt(rng.IntN(40), 1+rng.IntN(120)), MaxTokens: 1 + rng.IntN(60), DPRank: -1,
		Sampling: request.DefaultSampling(),
	}
	var opaque []byte
	if rng.IntN(2) == 0 {
		first := *r
		first.Kind, first.TransferID = request.ContextOnly, id
		begin, handle, gone, err := read(ctx, from, &first, nil, rng.IntN(4)-1)
		if err != nil || gone || handle == nil {
			_, aborted := from.Abort(ctx, id)
			return errors.Join(err, aborted)
		}
		if rng.IntN(4) == 0 { // it goes between the legs
			_, err = from.Abort(ctx, id)
			return err
		}
		r.Kind, r.TransferID, r.FirstTokens, opaque = request.GenerationOnly, id, begin, handle
	}
	_, _, gone, err := read(ctx, to, r, opaque, rng.IntN(30)-2)
	if gone && opaque != nil {
		_, aborted := from.Abort(ctx, id)
		err = errors.Join(err, aborted)
	}
	return err
}

// read takes the answer of a request until its client leaves after so many
// events, below 0 at once.
func read(ctx context.Context, w *worker, r *request.Request, opaque []byte, events int) (tokens []request.Token, handle []byte, gone bool, err error) {
	r.ID = w.NewID()
	s, err := w.Submit(ctx, r, opaque)
	if err != nil {
		return nil, nil, false, err
	}
	for {
		if events < 0 {
			s.Cancel()
			return tokens, nil, true, nil
		}
		events--
		var o runner.Output
		if o, err = s.Next(ctx); err != nil {
			return tokens, nil, false, err
		}
		if tokens = append(tokens, o.Tokens...); o.Finish != request.Running {
			if o.Err != nil {
				err = o.Err
			}
			return tokens, o.Opaque, false, err
		}
	}
}

// resident is the memory of this process that is not free.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc here")
	}
	pages, err := strconv.Atoi(string(bytes.Fields(text)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
