package main

import (
	"fmt"
	"sync"
	"time"

	"tandem/test/bench/load"
	"tandem/test/bench/plot"
)

// How often progress is shown: to a person, and to a log.
const (
	watchOften  = 250 * time.Millisecond
	watchSeldom = 10 * time.Second
)

// watch shows progress until stop is called.
func (m *measurement) watch(p *load.Progress, name string, limit time.Duration) (stop func()) {
	if m.out.quiet {
		return func() {}
	}
	live := isTerminal(m.log)
	every := watchSeldom
	if live {
		every = watchOften
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		w := watcher{p: p, name: name, begin: time.Now(), limit: limit, last: time.Now()}
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-done:
				if live {
					_, _ = fmt.Fprint(m.log, "\r\x1b[K")
				}
				return
			case now := <-t.C:
				line := w.line(now)
				if live {
					_, _ = fmt.Fprintf(m.log, "\r\x1b[K%s", line)
				} else {
					_, _ = fmt.Fprintln(m.log, line)
				}
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// watcher makes lines of progress.
type watcher struct {
	p      *load.Progress
	name   string
	begin  time.Time
	limit  time.Duration
	last   time.Time
	chunks int64
	rates  []float64
}

func (w *watcher) line(now time.Time) string {
	chunks := w.p.Chunks.Load()
	if d := now.Sub(w.last).Seconds(); d > 0 {
		w.rates = append(w.rates, float64(chunks-w.chunks)/d)
	}
	w.last, w.chunks = now, chunks
	if len(w.rates) > 24 {
		w.rates = w.rates[1:]
	}
	elapsed := now.Sub(w.begin).Round(time.Second).String()
	if w.limit > 0 {
		elapsed += "/" + w.limit.String()
	}
	t := w.p.TTFT()
	return fmt.Sprintf("%s %s  sent %d  done %d  failed %d  in flight %d  %.0f chunks/s %s  TTFT p50 %.0f p95 %.0f ms",
		w.name, elapsed, w.p.Sent.Load(), w.p.Done.Load(), w.p.Failed.Load(), w.p.Flying.Load(), w.rates[max(0, len(w.rates)-1)], plot.Spark(w.rates, 24), 1000*t.P50, 1000*t.P95)
}
