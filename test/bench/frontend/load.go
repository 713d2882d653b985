package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// loader sends streamed chats to one address.
type loader struct {
	client *http.Client
	url    string
	auth   string
}

func newLoader(url string) *loader {
	return &loader{url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true, ReadBufferSize: 16 << 10}}}
}

// chat sends one chat and returns the time to its first token. held, if not
// nil, is called after that token, and the rest is read after it returns.
func (l *loader) chat(ctx context.Context, prompt string, tokens int, held func()) (time.Duration, error) {
	body := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, modelName, tokens, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if l.auth != "" {
		req.Header.Set("Authorization", "Bearer "+l.auth)
	}
	begin := time.Now()
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, err //nolint:wrapcheck // it names the URL
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 400))
		return 0, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return readStream(resp.Body, begin, tokens, held)
}

func readStream(body io.Reader, begin time.Time, tokens int, held func()) (first time.Duration, err error) {
	lines := bufio.NewScanner(body)
	seen := 0
	for lines.Scan() {
		line := lines.Text()
		if strings.Contains(line, `"content":"`+word+`"`) {
			if seen++; seen == 1 {
				first = time.Since(begin)
				if held != nil {
					held()
				}
			}
		}
		if line == "data: [DONE]" {
			if seen != tokens {
				return 0, fmt.Errorf("%d tokens came, not %d", seen, tokens)
			}
			return first, nil
		}
	}
	if err := lines.Err(); err != nil {
		return first, fmt.Errorf("stream: %w", err)
	}
	return first, errors.New("the stream ended without [DONE]")
}

// sample is what a load gave.
type sample struct {
	first []time.Duration
	all   int // answers, with those of the warm-up
	errs  int
	err   error // the last
}

func (s *sample) add(o sample) {
	s.first = append(s.first, o.first...)
	s.all += o.all
	s.errs += o.errs
	if o.err != nil {
		s.err = o.err
	}
}

// quantile of the times to the first token; 0 without any.
func (s *sample) quantile(q float64) time.Duration {
	if len(s.first) == 0 {
		return 0
	}
	slices.Sort(s.first)
	return s.first[min(len(s.first)-1, int(q*float64(len(s.first))))]
}

// run keeps streams chats going for a while. Times of what was sent in the first
// tenth of it are not counted, nor those of paced streams that open connections.
func (l *loader) run(streams, tokens int, prompt string, d time.Duration) sample {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	from := time.Now().Add(d / 10)
	if prompt == pacePrompt {
		from = time.Now().Add(time.Duration(tokens) * tick)
	}
	var mu sync.Mutex
	var out sample
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			if prompt == pacePrompt { // not all at the same moment
				time.Sleep(time.Duration(rand.Int64N(int64(tokens) * int64(tick)))) //nolint:gosec // no secret
			}
			var own sample
			for ctx.Err() == nil {
				begin := time.Now()
				first, err := l.chat(context.Background(), prompt, tokens, nil)
				switch {
				case err != nil:
					own.errs, own.err = own.errs+1, err
					time.Sleep(10 * time.Millisecond)
				case begin.After(from):
					own.first = append(own.first, first)
					own.all++
				default:
					own.all++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			out.add(own)
		})
	}
	wg.Wait()
	return out
}

// rounds are what a load gave each time.
type rounds []sample

// quantile is the median over the rounds of the quantile of each, so that a
// round in which the machine was busy with something else does not count.
func (r rounds) quantile(q float64) time.Duration {
	each := make([]time.Duration, 0, len(r))
	for i := range r {
		if len(r[i].first) > 0 {
			each = append(each, r[i].quantile(q))
		}
	}
	if len(each) == 0 {
		return 0
	}
	slices.Sort(each)
	return each[len(each)/2]
}

// sum puts the rounds together.
func (r rounds) sum() (s sample) {
	for i := range r {
		s.add(r[i])
	}
	return s
}

// opening bounds the time that hold takes to open streams.
const opening = 45 * time.Second

// hold opens n streams, or as many as there is time for, that stay after their
// first token, calls at with how many there are, and closes them.
func (l *loader) hold(n int, at func(open int)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg, opened sync.WaitGroup
	var mu sync.Mutex
	open := 0
	gate := make(chan struct{}, 32) // so many begin at once
	until := time.Now().Add(opening)
	for range n {
		opened.Add(1)
		wg.Go(func() {
			once := sync.OnceFunc(func() { <-gate; opened.Done() })
			defer once()
			gate <- struct{}{}
			if time.Now().After(until) {
				return
			}
			hctx, stop := context.WithTimeout(ctx, 3*opening)
			defer stop()
			_, _ = l.chat(hctx, holdPrompt, 1<<20, func() {
				mu.Lock()
				open++
				mu.Unlock()
				once()
			})
		})
	}
	opened.Wait()
	time.Sleep(500 * time.Millisecond)
	at(open)
	cancel()
	wg.Wait()
	l.client.CloseIdleConnections()
}
