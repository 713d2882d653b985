package runner

import (
	"fmt"
	"slices"
	"testing"

	"tandem/engine/comm"
	"tandem/engine/request"
)

// collectAll reads a stream of several choices to its end.
func collectAll(t *testing.T, s *Stream, choices int) (ids [][]int32, last []Output) {
	t.Helper()
	ids, last = make([][]int32, choices), make([]Output, choices)
	for open := choices; open > 0; {
		o, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if last[o.Choice].Finish != request.Running {
			t.Fatalf("choice %d goes on after its end", o.Choice)
		}
		for _, tok := range o.Tokens {
			ids[o.Choice] = append(ids[o.Choice], tok.ID)
		}
		if last[o.Choice] = o; o.Finish != request.Running {
			open--
		}
	}
	return ids, last
}

// seeded draws from all tokens.
func seeded(e *Engine, maxTokens int, prompt ...int32) *request.Request {
	r := greedy(e, maxTokens, prompt...)
	r.Sampling.Temperature, r.Sampling.Seed, r.Sampling.Seeded = 1, 42, true
	r.Sampling.FrequencyPenalty, r.Sampling.Logprobs = 1, 2 // the sampler changes logits in place
	return r
}

// TestChoicesDrawFromTheirStreams compares with single requests that draw from
// the same streams, alone and on a rank of another process.
func TestChoicesDrawFromTheirStreams(t *testing.T) {
	check := func(t *testing.T, e *Engine) {
		t.Helper()
		r := seeded(e, 12, 1, 2, 3)
		r.Choices, r.DPRank = 4, e.Info().Ranks-1
		s, err := e.Submit(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids, last := collectAll(t, s, 4)
		for i := range 4 {
			one := seeded(e, 12, 1, 2, 3)
			one.Sampling.Stream = uint32(i)
			s, err := e.Submit(t.Context(), one, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, _ := collect(t, s)
			if !slices.Equal(ids[i], want) {
				t.Errorf("choice %d: %v, alone %v", i, ids[i], want)
			}
			if i > 0 && slices.Equal(ids[i], ids[0]) {
				t.Errorf("choices 0 and %d are equal", i)
			}
			if u := last[i].Usage; u.PromptTokens != 3 || u.CompletionTokens != 12 {
				t.Errorf("choice %d: %+v", i, u)
			}
		}
	}
	t.Run("alone", func(t *testing.T) {
		e, died := start(t, &counting{})
		check(t, e)
		stop(t, e, died)
	})
	t.Run("another process", func(t *testing.T) {
		w := newWorld(t, worldConfig{size: 2, spans: []comm.Span{{}, {First: 1, Last: 1}}})
		check(t, w.engines[0])
		w.stop()
	})
}

func TestCancelledChoicesAllEnd(t *testing.T) {
	d := &counting{hold: make(chan struct{}), ran: make(chan int, 100)}
	e, died := start(t, d)
	r := greedy(e, 50, 1, 2, 3)
	r.Choices = 3
	s, err := e.Submit(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-d.ran
		d.hold <- struct{}{}
	}
	<-d.ran
	s.Cancel()
	close(d.hold)
	if _, last := collectAll(t, s, 3); last[0].Finish != request.FinishCancelled || last[2].Finish != request.FinishCancelled {
		t.Errorf("%q %q", last[0].Finish, last[2].Finish)
	}
	stop(t, e, died)
	if n := len(e.ranks[0].samples.of); n != 0 {
		t.Errorf("the sampler remembers %d requests", n)
	}
}

func TestTooManyChoicesAreRefused(t *testing.T) {
	w := newWorld(t, worldConfig{size: 2})
	e := w.engines[0]
	r := greedy(e, 4, 1)
	r.Choices = e.cfg.Core.MaxBatch + 1
	_, err := e.Submit(t.Context(), r, nil)
	if re, ok := err.(*request.Error); !ok || re.Code != request.CapacityNever || re.Param != "n" { //nolint:errorlint // Submit says that it is one
		t.Errorf("%v", fmt.Sprint(err))
	}
	w.stop()
}
