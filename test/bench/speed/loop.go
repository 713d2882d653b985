package speed

import (
	"context"
	"fmt"
	"time"

	"tandem/engine/request"
)

// Loop returns what of Measure's rate of one sequence arrives at the reader of a
// request in the running engine, scheduler and sampler included, from its first
// token on: a share for each of the pairs, in which both take turns. It may be
// called once, and no Measure after it.
func (e *Engine) Loop(depth, steps, pairs int) (shares []float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- e.Loaded.Engine.Run(ctx) }()
	defer func() {
		cancel()
		<-ended //nolint:errcheck // what failed is in the stream, or came too late to matter
	}()
	for range pairs {
		raw, err := e.Measure(Row{Batch: 1, Depth: depth, Steps: steps}) // the loop rests meanwhile
		if err != nil {
			return nil, err
		}
		rate, err := e.stream(ctx, depth, steps)
		if err != nil {
			return nil, err
		}
		shares = append(shares, rate/raw)
	}
	return shares, nil
}

// stream is the rate of the tokens of one request.
func (e *Engine) stream(ctx context.Context, depth, steps int) (rate float64, err error) {
	r := &request.Request{ID: e.Loaded.Engine.NewID(), MaxTokens: steps + 1, Sampling: request.DefaultSampling(), DPRank: -1}
	r.Sampling.Temperature, r.Sampling.IgnoreEOS = 0, true
	for i := range depth {
		r.Prompt = append(r.Prompt, e.token(i))
	}
	s, err := e.Loaded.Engine.Submit(ctx, r, nil)
	if err != nil {
		return 0, err
	}
	var first time.Time
	for n := 0; ; {
		o, err := s.Next(ctx)
		if err != nil {
			return 0, err
		}
		if n += len(o.Tokens); n > 0 && first.IsZero() {
			first, n = time.Now(), 0
		}
		if o.Finish == request.Running {
			continue
		}
		if n == 0 {
			return 0, fmt.Errorf("the engine ended a request of %d tokens after its first", steps)
		}
		return float64(n) / time.Since(first).Seconds(), nil
	}
}
