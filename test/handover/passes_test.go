package handover

import (
	"fmt"
	"sync"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tensor"
	"tandem/engine/transfer/wire"
)

// hold lets the next pass of the device reach begun, and end once release is closed.
func (d *device) hold(release <-chan struct{}) (begun <-chan struct{}) {
	reached, once := make(chan struct{}), sync.Once{}
	d.before = func(*tensor.Batch) {
		once.Do(func() { close(reached) })
		<-release
	}
	return reached
}

// TestHandOverDuringPasses: ctx is in the middle of a pass that does not end before
// blocks were pulled from it, and gen in one that does not end before blocks have
// come. What they tell each other waits for no pass.
func TestHandOverDuringPasses(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		t.Run(fmt.Sprintf("overlap %t", overlap), func(t *testing.T) {
			paths(t, func(t *testing.T, wc wire.Config) { handOverDuringPasses(t, wc, overlap) })
		})
	}
}

func handOverDuringPasses(t *testing.T, wc wire.Config, overlap bool) {
	one := start(t, executor.Mixed, wc, nil)
	ctx := startEngine(t, executor.Ctx, wc, nil, overlap)
	gen := startEngine(t, executor.Gen, wc, nil, overlap)
	inCtx, inGen := make(chan struct{}), make(chan struct{})
	var ended sync.WaitGroup
	defer ended.Wait()
	defer close(inGen)
	ctxGoesOn := sync.OnceFunc(func() { close(inCtx) })
	defer ctxGoesOn()
	want := func(p []int32) []request.Token {
		tokens, _ := one.ask(t, &request.Request{Prompt: p, MaxTokens: 6}, nil)
		return tokens
	}

	early, late := prompt(1, 60), prompt(2, 60)
	wantEarly, wantLate := want(early), want(late)
	r, opaque := handOver(t, ctx, 1, early, 6)
	ended.Go(func() { // generation-first: gen waits for what ctx does not know of yet
		first := &request.Request{Kind: request.GenerationOnly, GenFirst: true, Prompt: late, MaxTokens: 6, TransferID: 2}
		got, _ := gen.ask(t, first, ctx.template())
		same(t, "the later prompt", got, wantLate)
	})
	settled(t, gen, "waiting for blocks", func(s runner.Stats) bool { return s.Receiving == 1 })

	begun, genBegun := ctx.dev.hold(inCtx), gen.dev.hold(inGen)
	ended.Go(func() {
		ctx.ask(t, &request.Request{Kind: request.ContextOnly, GenFirst: true, Prompt: late, MaxTokens: 6, TransferID: 2}, nil)
	})
	<-begun
	ended.Go(func() {
		got, _ := gen.ask(t, r, opaque)
		same(t, "the earlier prompt", got, wantEarly)
	})
	<-genBegun // it could ask for the blocks and got them
	settled(t, ctx, "without leases", func(s runner.Stats) bool { return s.BlocksLeased == 0 })
	ctxGoesOn()
	settled(t, gen, "with all blocks", func(s runner.Stats) bool { return s.Receiving == 0 })
}
