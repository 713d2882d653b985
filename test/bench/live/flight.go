package live

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"tandem/serve/worker"
	"tandem/test/bench/profile"
)

// Step is an iteration of a worker's first rank: what it computed, and how long the worker took until it could begin the next.
type Step struct {
	Worker int
	Start  time.Duration // on the clock of Flights
	profile.Point
}

// Flights collects the steps of workers.
type Flights struct {
	mu    sync.Mutex
	last  map[int]uint64 // worker to the newest iteration that was taken
	steps []Step
}

// Steps are those taken so far, in order of their start.
func (f *Flights) Steps() []Step {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.steps)
	slices.SortStableFunc(out, func(a, b Step) int { return cmp.Compare(a.Start, b.Start) })
	return out
}

// Take takes the steps of a page of /debug/flight that are new, began at or after time 0, and have ended well. now is when the page
// was made.
func (f *Flights) Take(number int, now time.Duration, page *worker.DebugFlight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		f.last = map[int]uint64{}
	}
	if len(page.Ranks) == 0 {
		return
	}
	steps := page.Ranks[0].Steps
	for i := range steps {
		s := &steps[i]
		if s.Iter <= f.last[number] || s.Outcome != "ok" || s.RunMs == 0 {
			continue
		}
		f.last[number] = s.Iter
		took := s.SchedMs + s.RunMs + s.ApplyMs
		if i+1 < len(steps) && steps[i+1].Iter == s.Iter+1 && steps[i+1].Arrived == 0 { // else it may have had nothing to do meanwhile
			took = max(took, s.AgoMs-steps[i+1].AgoMs)
		}
		begun := now - time.Duration(s.AgoMs*1e6)
		if begun < 0 {
			continue
		}
		f.steps = append(f.steps, Step{number, begun, profile.Point{
			CtxTokens: s.CtxTokens, CtxPrior: s.CtxPrior, GenRequests: s.GenRows, GenContext: s.GenDepth, Seconds: took / 1000,
		}})
	}
}

// Poll takes the steps of workers, of which admins are the URLs for debugging, every so often until ctx ends, and once more
// then. Workers keep 256 steps: what they did before is lost.
func (f *Flights) Poll(ctx context.Context, admins []string, every time.Duration, now func() time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-t.C:
		}
		for i, at := range admins {
			page, err := fetch(context.WithoutCancel(ctx), at+"/debug/flight")
			if err != nil {
				return err
			}
			f.Take(i, now(), page)
		}
	}
	return nil
}

// patience is how long a page may take.
const patience = 30 * time.Second

func fetch(ctx context.Context, url string) (*worker.DebugFlight, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("flight recorder: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("flight recorder: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	page := &worker.DebugFlight{}
	if err == nil {
		err = json.Unmarshal(data, page)
	}
	if err != nil {
		return nil, fmt.Errorf("flight recorder: %s: %w", url, err)
	}
	return page, nil
}
