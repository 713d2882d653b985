package handover

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
)

// template is what a ctx worker tells gen workers of itself.
func (w *worker) template() []byte {
	return wire.EncodeHandle(&transfer.Handle{
		Incarnation: w.srv.Incarnation(), Endpoint: w.srv.Endpoint(), Lease: time.Minute, Layout: layout, GenFirst: true,
	})
}

// legs runs both legs of a generation-first request at once.
func legs(t *testing.T, ctx, gen *worker, id int64, prompt []int32, n int) (tokens []request.Token, ctxOut, genOut runner.Output) {
	t.Helper()
	r := func(k request.Kind) *request.Request {
		return &request.Request{Kind: k, GenFirst: true, Prompt: prompt, MaxTokens: n, TransferID: id}
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, ctxOut = ctx.ask(t, r(request.ContextOnly), nil) })
	tokens, genOut = gen.ask(t, r(request.GenerationOnly), ctx.template())
	wg.Wait()
	return tokens, ctxOut, genOut
}

// Generation-first gives the tokens of a single engine, the first one once, for
// prompts of any length, answers of one token, and many requests at a time.
func TestGenerationFirstEqualsSingle(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		one := start(t, executor.Mixed, wc, nil)
		ctx := start(t, executor.Ctx, wc, nil)
		gen := start(t, executor.Gen, wc, nil)
		var wg sync.WaitGroup
		for i, n := range []int{1, 3, 4, 5, 8, 63, 64, 65, 200} {
			for _, max := range []int{1, 2, 12} {
				p := prompt(i, n)
				want, _ := one.ask(t, &request.Request{Prompt: p, MaxTokens: max}, nil)
				wg.Go(func() {
					got, c, g := legs(t, ctx, gen, int64(100*i+max), p, max)
					same(t, fmt.Sprintf("prompt of %d", n), got, want)
					if g.Finish != request.FinishLength || max > 1 && c.Finish != request.FinishNotFinished || max == 1 && c.Finish != request.FinishLength {
						t.Errorf("finish %q, then %q", c.Finish, g.Finish)
					}
				})
			}
		}
		wg.Wait()
		if gen.dev.prefill != 0 {
			t.Errorf("gen computed %d prompt rows", gen.dev.prefill)
		}
		settled(t, ctx, "idle", idle)
		settled(t, gen, "idle", idle)
	})
}

// Log-probabilities of the first token come with it.
func TestGenerationFirstLogprobs(t *testing.T) {
	ctx := start(t, executor.Ctx, wire.Config{}, nil)
	gen := start(t, executor.Gen, wire.Config{}, nil)
	ask := func(w *worker, k request.Kind, opaque []byte) []request.Token {
		s := request.DefaultSampling()
		s.Temperature, s.Logprobs = 0, 3
		r := &request.Request{ID: w.NewID(), DPRank: -1, Kind: k, GenFirst: true, Prompt: prompt(1, 30), MaxTokens: 4, TransferID: 5, Sampling: s}
		limit, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		st, err := w.Submit(limit, r, opaque)
		if err != nil {
			t.Error(err)
			return nil
		}
		var out []request.Token
		for {
			o, err := st.Next(limit)
			if err != nil {
				t.Error(err)
				return nil
			}
			out = append(out, o.Tokens...)
			if o.Finish != request.Running {
				return out
			}
		}
	}
	var first []request.Token
	var wg sync.WaitGroup
	wg.Go(func() { first = ask(ctx, request.ContextOnly, nil) })
	all := ask(gen, request.GenerationOnly, ctx.template())
	wg.Wait()
	if len(first) != 1 || len(all) != 4 || fmt.Sprint(first[0]) != fmt.Sprint(all[0]) || len(all[0].Top) != 3 {
		t.Errorf("ctx %v\ngen %v", first, all)
	}
}

// Either leg may be cancelled at any time, or never have a partner: nothing stays.
func TestGenerationFirstCancels(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		soon := func(c *executor.Config) { c.PeerWait = 300 * time.Millisecond }
		ctx := start(t, executor.Ctx, wc, soon)
		gen := start(t, executor.Gen, wc, nil)
		submit := func(w *worker, k request.Kind, id int64, opaque []byte) *runner.Stream {
			r := &request.Request{ID: w.NewID(), DPRank: -1, Kind: k, GenFirst: true, Prompt: prompt(int(id), 200), MaxTokens: 50, TransferID: id, Sampling: request.DefaultSampling()}
			s, err := w.Submit(t.Context(), r, opaque)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		for i := range 24 {
			id := int64(i + 1)
			var c, g *runner.Stream
			if i%4 != 3 {
				g = submit(gen, request.GenerationOnly, id, ctx.template())
			}
			if i%4 != 2 {
				c = submit(ctx, request.ContextOnly, id, nil)
			}
			if i%3 == 0 && g != nil {
				settled(t, gen, "under way", func(s runner.Stats) bool { return s.Receiving > 0 || s.Running > 0 || s.Alive == 0 })
			}
			if g != nil {
				g.Cancel()
			}
			if c != nil && i%4 != 3 { // else nobody comes for it
				c.Cancel()
			}
		}
		settled(t, gen, "idle", idle)
		settled(t, ctx, "idle", idle)
		got, _, _ := legs(t, ctx, gen, 1000, prompt(3, 50), 9)
		if len(got) != 9 {
			t.Errorf("afterwards: %v", got)
		}
	})
}
