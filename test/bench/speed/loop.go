package speed

import (
	"context"
	"fmt"
	"time"

	"tandem/engine/request"
)

// Loop returns tokens per second of one request in the running engine, scheduler
// and sampler included, from its first token on: what of Measure's rate arrives.
// It may be called once, and no Measure after it.
func (e *Engine) Loop(depth, steps int) (rate float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- e.Loaded.Engine.Run(ctx) }()
	defer func() {
		cancel()
		<-ended //nolint:errcheck // what failed is in the stream, or came too late to matter
	}()
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
