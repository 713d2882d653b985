package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"tandem/test/gpucheck/report"
)

// answer is what a client saw of one request.
type answer struct {
	first  time.Duration // to the first piece of text
	gaps   []time.Duration
	tokens int
	path   string
}

// burst sends all requests at their times and sums up what clients saw.
func (s stand) burst(ctx context.Context, url string) (*report.Latency, error) {
	answers, errs := make([]answer, s.requests), make([]error, s.requests)
	var wg sync.WaitGroup
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for i := range s.requests {
		wg.Go(func() { answers[i], errs[i] = s.ask(ctx, url, i) })
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	out := &report.Latency{Requests: s.requests, Path: answers[0].path}
	var firsts, gaps []time.Duration
	for _, a := range answers {
		firsts, gaps, out.Tokens = append(firsts, a.first), append(gaps, a.gaps...), out.Tokens+a.tokens
		if a.path != out.Path {
			out.Path = "several"
		}
	}
	out.TTFT50, out.TTFT95 = quantile(firsts, 0.5), quantile(firsts, 0.95)
	out.ITL50, out.ITL99 = quantile(gaps, 0.5), quantile(gaps, 0.99)
	return out, nil
}

// quantile is in seconds; 0 of none.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))].Seconds()
}

// ask sends one request of its own text, which no cache has, and reads its stream.
func (s stand) ask(ctx context.Context, url string, i int) (answer, error) {
	rng := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano()))) //nolint:gosec // no secret
	prompt := make([]byte, s.prompt)
	for j := range prompt {
		prompt[j] = "abcdefghijklmnopqrstuvwxyz"[rng.IntN(26)]
	}
	body, err := json.Marshal(map[string]any{
		"model": "check", "prompt": string(prompt), "max_tokens": s.answer, "ignore_eos": true, "temperature": 0, "stream": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	begin := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, fmt.Errorf("request %d: %w", i, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 400))
		return answer{}, fmt.Errorf("request %d: status %d: %s", i, resp.StatusCode, text)
	}
	a, err := readStream(resp.Body, begin)
	if err == nil && a.tokens != s.answer {
		err = fmt.Errorf("%d tokens came, not %d", a.tokens, s.answer)
	}
	if err != nil {
		return a, fmt.Errorf("request %d: %w", i, err)
	}
	a.path = resp.Header.Get("X-Disagg-Path")
	return a, nil
}

// event is what is read of a piece of a stream.
type event struct {
	Choices []struct{ Text string }
	Usage   *struct {
		Tokens int `json:"completion_tokens"`
	}
	Error *struct{ Message string }
}

func readStream(body io.Reader, begin time.Time) (a answer, err error) {
	in := bufio.NewScanner(body)
	in.Buffer(nil, 1<<20)
	last := begin
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return a, nil
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return a, fmt.Errorf("stream: %w", err)
		}
		if e.Error != nil {
			return a, errors.New(e.Error.Message)
		}
		if e.Usage != nil {
			a.tokens = e.Usage.Tokens
		}
		if len(e.Choices) == 0 {
			continue
		}
		now := time.Now()
		if a.first == 0 {
			a.first = now.Sub(begin)
		} else {
			a.gaps = append(a.gaps, now.Sub(last))
		}
		last = now
	}
	return a, errors.Join(in.Err(), errors.New("the stream ended without [DONE]"))
}
