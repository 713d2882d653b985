package handover

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/guided"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer/wire"
)

// The device's tokens as text: printable characters, an end, and two of more bytes.
const endToken = 95

func textOf(id int32) []byte {
	switch {
	case id < endToken:
		return []byte{byte(' ' + id)}
	case id == endToken:
		return nil
	}
	return []byte(`": "`)
}

// grammar is a compiled grammar as a request takes it.
type grammar struct{ *guided.Grammar }

func (g grammar) Start() request.GuideMatcher { return g.Grammar.Start() }

// beats notes the step in which each token of a request was applied, and its text.
type beats struct {
	step *int // of the device, whose goroutine applies too
	at   []int
	text strings.Builder
}

func (b *beats) Push(id int32) (string, bool) {
	b.at = append(b.at, *b.step)
	b.text.Write(textOf(id))
	return "", false
}

func (b *beats) Flush() string { return "" }

const kinds = 20 // of schemas

func schemaOf(i int) string {
	return fmt.Sprintf(`{"type":"object","properties":{"n%d":{"type":"integer","minimum":%d,"maximum":99},"s":{"type":"string","maxLength":4},
"k":{"enum":["k%d",null,true]}},"required":["n%d","k"],"additionalProperties":false}`, i, i, i, i)
}

// TestScenario25GuidedAmongFree answers 200 requests with schemas among 200 free ones,
// while another schema does not come to the end of its compilation. All 200 parse,
// the free ones say what they say without them, and none waits longer for a token:
// p99 changes by less than 5 %, counted in steps, with masks that are made beside
// these (see TestMasksAreMadeBesideTheStep of the runner).
func TestScenario25GuidedAmongFree(t *testing.T) {
	const n = 200
	v := guided.NewVocab(vocab, textOf)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := guided.Compile(guided.Schema, schemaOf(0), v, func() bool { <-stop; return true })
		ended <- err
	}()
	var guides []grammar
	for i := range kinds {
		g, err := guided.Compile(guided.Schema, schemaOf(i), v, func() bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		guides = append(guides, grammar{g})
	}
	free, base := answers(t, n, nil)
	among, p99 := answers(t, n, guides)
	for i := range n {
		if a, b := free[i].text.String(), among[i].text.String(); a != b {
			t.Errorf("free request %d says %q, alone %q", i, b, a)
		}
	}
	parsed := 0
	for i, b := range among[n:] {
		var out map[string]any
		d := json.NewDecoder(strings.NewReader(b.text.String()))
		err := d.Decode(&out)
		num, _ := out[fmt.Sprintf("n%d", i%kinds)].(float64)
		if err != nil || d.More() || num < float64(i%kinds) || num > 99 {
			t.Errorf("guided request %d: %q, %v", i, b.text.String(), err)
			continue
		}
		parsed++
	}
	if change := float64(p99-base) / float64(base); parsed != n || change >= 0.05 {
		t.Errorf("%d of %d parse; p99 between tokens is %d steps, and %d without them", parsed, n, p99, base)
	}
	close(stop)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("the compilation that takes too long: %v", err)
	}
}

// answers runs n free requests, and n with guides if there are some, and returns what
// they got and the p99 of the steps between two tokens of a free one.
func answers(t *testing.T, n int, guides []grammar) (all []*beats, p99 int) {
	w := start(t, executor.Mixed, wire.Config{}, func(c *executor.Config) { c.MaxBatch = 64 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	step := 0
	w.dev.before = func(*tensor.Batch) { step++ }
	var wg sync.WaitGroup
	for i := range n * 2 {
		if i >= n && guides == nil {
			break
		}
		b := &beats{step: &step}
		all = append(all, b)
		s := request.DefaultSampling()
		s.Seeded, s.Seed, s.EOS = true, uint64(i), []int32{endToken}
		r := &request.Request{ID: w.NewID(), Prompt: prompt(i, 3+i%9), MaxTokens: 30, Sampling: s, DPRank: -1, Text: b}
		if i >= n {
			r.MaxTokens, r.Guide = 90, guides[i%kinds]
		}
		wg.Go(func() {
			if finish, err := w.toEnd(ctx, r); err != nil || r.Guide != nil && finish != request.FinishStop {
				t.Errorf("request %d: %s %v", i, finish, err)
			}
		})
	}
	wg.Wait()
	var gaps []int
	for _, b := range all[:n] {
		for i := 1; i < len(b.at); i++ {
			gaps = append(gaps, b.at[i]-b.at[i-1])
		}
	}
	slices.Sort(gaps)
	return all, gaps[len(gaps)*99/100]
}

// toEnd runs a request and returns how it ended.
func (w *worker) toEnd(ctx context.Context, r *request.Request) (request.Finish, error) {
	s, err := w.Submit(ctx, r, nil)
	for err == nil {
		o, e := s.Next(ctx)
		if err = e; err == nil && o.Finish != request.Running {
			if o.Err != nil {
				return o.Finish, o.Err
			}
			return o.Finish, nil
		}
	}
	return "", err
}
