//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSoakGuided is scenario 25 with clocks: 200 answers of a schema among 200 free
// ones, all of which parse, and the time between two tokens of the free ones while a
// schema is compiled that takes too long, beside that while none is. Both are taken
// in turns, so that what else the machine does is in both.
func TestSoakGuided(t *testing.T) {
	_ = soakFor(t)
	w := startWorker(t, "mixed", workerConfig{threads: 1})
	const n, turns = 200, 10
	var quiet, busy []time.Duration
	for turn := range 2 * turns {
		stop := func() {}
		if turn%2 == 1 {
			stop = compileInVain(t, w.url)
		}
		gaps := askMixed(t, w.url, turn, n/turns/2)
		stop()
		if turn%2 == 1 {
			busy = append(busy, gaps...)
		} else {
			quiet = append(quiet, gaps...)
		}
	}
	a, b := p99(quiet), p99(busy)
	t.Logf("%d and %d gaps, p99 %v and %v", len(quiet), len(busy), a, b)
	if b > a+a/20 {
		t.Errorf("p99 between tokens is %v while a schema compiles, and %v without: more than 5 %% apart", b, a)
	}
}

func p99(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)*99/100]
}

// askMixed runs n answers of a schema among n free ones and returns the times between
// the tokens of the latter.
func askMixed(t *testing.T, url string, turn, n int) (gaps []time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		chat := user(fmt.Sprintf("Tell me of animal number %d.", turn*n+i))
		wg.Go(func() {
			one, err := streamTimes(ctx, url, sampleOf("", chatPath, chat, "max_tokens", 48, "ignore_eos", true).body)
			if err != nil {
				t.Errorf("free request %d: %v", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			gaps = append(gaps, one...)
		})
		wg.Go(func() {
			s := sampleOf(fmt.Sprint("schema ", i), chatPath, chat, "max_tokens", 160, "temperature", 1, "seed", turn*n+i, "response_format",
				object{"type": "json_schema", "json_schema": object{"name": "animal", "schema": json.RawMessage(guidedSchema)}})
			r, err := ask(ctx, url, s.path, s.body)
			if err != nil {
				t.Errorf("%s: %v", s.name, err)
				return
			}
			checkGuided(t, s.name, r)
		})
	}
	wg.Wait()
	return gaps
}

// streamTimes returns the times between the events of a stream.
func streamTimes(ctx context.Context, url string, body object) (gaps []time.Duration, err error) {
	body["stream"] = true
	resp, err := post(ctx, url+chatPath, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var last time.Time
	return gaps, streamOf(resp, func(*reply) error {
		now := time.Now()
		if !last.IsZero() {
			gaps = append(gaps, now.Sub(last))
		}
		last = now
		return nil
	})
}

// compileInVain has the worker compile schemas that take too long, one after the
// other, until stop.
func compileInVain(t *testing.T, url string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		deep := strings.Repeat(`{"type":"array","items":`, 5000) + `{}` + strings.Repeat("}", 5000)
		for ctx.Err() == nil {
			_, err := ask(ctx, url, textPath, sampleOf("", textPath, "x", "guided_json", deep).body)
			var refused *statusError
			if ctx.Err() == nil && (!errors.As(err, &refused) || refused.status != 400 || refused.Code == nil || *refused.Code != "invalid_grammar") {
				t.Errorf("a schema that takes too long: %v", err)
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
