package parallel

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/scheduler"
	"tandem/test/tinymodel"
)

// stopper is a text in which every token is a letter; it ends at one of them.
type stopper struct{ stop int32 }

func (s stopper) Push(t int32) (string, bool) { return string('a' + t%26), t%26 == s.stop }
func (s stopper) Flush() string               { return "." }

// wish is what a client asks for, and when it loses interest.
type wish struct {
	request request.Request
	stop    int32
	cancel  int // after so many events, 0 = never
	split   bool
}

func drawWish(vocab int) func(*rapid.T) wish {
	return func(t *rapid.T) wish {
		token := rapid.Int32Range(0, int32(vocab-1))
		p := request.DefaultSampling()
		p.Temperature = rapid.SampledFrom([]float64{0, 0.8, 1.5}).Draw(t, "temperature")
		p.Seeded, p.Seed = true, rapid.Uint64().Draw(t, "seed")
		p.Logprobs = rapid.SampledFrom([]int{-1, 0, 3}).Draw(t, "logprobs")
		p.EOS = rapid.SliceOfN(token, 0, 3).Draw(t, "eos")
		p.MinTokens = rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "min")
		p.RepetitionPenalty = rapid.SampledFrom([]float64{1, 1, 1.3}).Draw(t, "penalty")
		return wish{
			request: request.Request{
				Prompt: rapid.SliceOfN(rapid.Int32Range(0, 1), rapid.SampledFrom([]int{1, 30, 60}).Draw(t, "least"), 90).Draw(t, "prompt"), MaxTokens: rapid.SampledFrom([]int{1, 2, 9, 30, 60}).Draw(t, "g"),
				Sampling: p, DPRank: -1, Choices: rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "n"),
			},
			stop:   rapid.SampledFrom([]int32{-1, -1, 4}).Draw(t, "stop"),
			cancel: rapid.SampledFrom([]int{0, 0, 0, 0, 2, 7}).Draw(t, "cancel"),
			split:  rapid.IntRange(0, 2).Draw(t, "split") == 0,
		}
	}
}

// events are all that a client sees of a choice.
type events []string

func (w *wish) texts(r *request.Request) {
	r.Text, r.ForkTexts = stopper{w.stop}, nil
	for range r.Answers() - 1 {
		r.ForkTexts = append(r.ForkTexts, stopper{w.stop})
	}
}

// serve asks an engine, or two in turn, and returns what was seen of each choice.
func (w *wish) serve(ctx context.Context, from, to *runner.Engine, id int64) ([]events, error) {
	r := w.request
	w.texts(&r)
	if !w.split {
		r.ID = to.NewID()
		return w.watch(ctx, to, &r, nil)
	}
	r.Choices = 1
	first := r
	first.ID, first.Kind, first.TransferID = from.NewID(), request.ContextOnly, id
	s, err := from.Submit(ctx, &first, nil)
	if err != nil {
		return nil, err
	}
	o, err := s.Next(ctx)
	if err != nil || o.Finish != request.FinishNotFinished {
		return []events{{show(&o)}}, err
	}
	rest := r
	rest.ID, rest.Kind, rest.TransferID, rest.FirstTokens = to.NewID(), request.GenerationOnly, id, o.Tokens
	w.texts(&rest)
	return w.watch(ctx, to, &rest, o.Opaque)
}

func (w *wish) watch(ctx context.Context, e *runner.Engine, r *request.Request, opaque []byte) ([]events, error) {
	s, err := e.Submit(ctx, r, opaque)
	if err != nil {
		return nil, err
	}
	all, seen := make([]events, r.Answers()), 0
	for open := r.Answers(); open > 0; {
		o, err := s.Next(ctx)
		if err != nil {
			return nil, err
		}
		// Tokens may come one by one or together.
		for _, tok := range o.Tokens {
			all[o.Choice] = append(all[o.Choice], fmt.Sprint(tok))
		}
		if seen += len(o.Tokens); w.cancel > 0 && seen >= w.cancel {
			s.Cancel()
		}
		if o.Finish != request.Running {
			all[o.Choice] = append(all[o.Choice], show(&o))
			open--
		}
	}
	return all, nil
}

func show(o *runner.Output) string {
	return fmt.Sprint(o.Finish, o.Err, o.Usage.PromptTokens, o.Usage.CompletionTokens)
}

// equal compares what two engines gave. A cancel comes at another moment, so the
// tokens of one are then the beginning of the other's.
func (w *wish) equal(a, b []events) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		if w.cancel > 0 {
			n := max(0, min(len(x), len(y))-1)
			x, y = x[:n], y[:n]
		}
		if fmt.Sprint(x) != fmt.Sprint(y) {
			return false
		}
	}
	return true
}

// crowd wants more blocks than there are once all of it runs.
func crowd() (wishes []wish) {
	for i := range 12 {
		p := request.DefaultSampling()
		p.IgnoreEOS = true
		wishes = append(wishes, wish{stop: -1, request: request.Request{Prompt: []int32{int32(i), 1, 2}, MaxTokens: 60, Sampling: p, DPRank: -1}})
	}
	return wishes
}

// TestOverlapOnTheCPU proves OV-8 to the last bit: engines whose steps overlap give
// the tokens, log-probabilities, ends and usage of engines whose steps do not, over
// pauses, chunks, reuse, several choices and hand-overs.
func TestOverlapOnTheCPU(t *testing.T) {
	m, err := tinymodel.Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	yes, no := true, false
	for _, policy := range []scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization} {
		start := func(role executor.Role, overlap *bool) *runner.Engine {
			return division{ranks: 1, role: role, overlap: overlap, batch: 40, pool: 352, core: func(c *executor.Config) {
				c.Policy = policy
			}}.start(t, m.Path)
		}
		pairs := [2][2]*runner.Engine{
			{start(executor.Ctx, &no), start(executor.Gen, &no)},
			{start(executor.Ctx, &yes), start(executor.Gen, &yes)},
		}
		id, ctx := int64(0), t.Context()
		compare := func(t rapid.TB, wishes []wish) {
			var seen [2][][]events
			for i, p := range pairs {
				seen[i] = make([][]events, len(wishes))
				var wg sync.WaitGroup
				for j := range wishes {
					id++
					transfer := id
					wg.Go(func() {
						var err error
						if seen[i][j], err = wishes[j].serve(ctx, p[0], p[1], transfer); err != nil {
							t.Errorf("request %d: %v", j, err)
						}
					})
				}
				wg.Wait()
			}
			for j := range wishes {
				if !wishes[j].equal(seen[0][j], seen[1][j]) {
					t.Fatalf("%s, request %d:\n%v, want\n%v", policy, j, seen[1][j], seen[0][j])
				}
			}
		}
		rapid.Check(t, func(t *rapid.T) {
			compare(t, rapid.SliceOfN(rapid.Custom(drawWish(m.Vocab)), 1, 12).Draw(t, "wishes"))
		})
		paused := func() bool { return pairs[1][1].Stats(time.Minute).Paused > 0 }
		for pass := 0; policy == scheduler.MaxUtilization && !paused() && pass < 50; pass++ { // who comes when is not drawn
			compare(t, crowd())
		}
		if paused() != (policy == scheduler.MaxUtilization) {
			t.Errorf("%s: paused %v", policy, paused())
		}
	}
}
