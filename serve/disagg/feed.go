package disagg

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// Times of feeds. A feed that breaks begins anew with the whole index, so that nothing depends on these but freshness.
const (
	feedScan  = 500 * time.Millisecond // between two looks for new workers
	feedPoll  = time.Second            // between two questions to a worker that has no stream
	feedRetry = time.Second            // after a stream that ended
	feedAlive = 35 * time.Second       // without a sign of life
	feedLine  = 4 << 20                // bytes of an event
	feedReply = 64 << 20               // bytes of a polled list
	feedFirst = time.Second            // that the first requests wait for the first indexes
	feedWhole = 50 * time.Millisecond  // from the first event of an index to its last one, as a rule
)

var (
	errNoStream  = errors.New("the worker has no stream of cache events")
	errForeign   = errors.New("the worker names blocks in another way")
	errOutOfStep = errors.New("cache events are missing")
)

// feeds tells routers what workers can reuse: one goroutine for each worker of a leg whose router listens.
type feeds struct {
	s    *Server
	legs map[discovery.Role]router.Listener
	wg   sync.WaitGroup

	mu   sync.Mutex
	open map[string]*feed // by leg and process
}

// feed follows one process.
type feed struct {
	s      *Server
	to     router.Listener
	in     discovery.Instance
	cancel context.CancelFunc
	once   sync.Once
	first  chan struct{} // closed when its index is here, or will not come soon
}

// startFeeds follows the workers until the server closes. It does nothing when no router listens.
func (s *Server) startFeeds() {
	f := &feeds{s: s, legs: map[discovery.Role]router.Listener{}, open: map[string]*feed{}}
	for role, r := range s.routers {
		if l, ok := r.(router.Listener); ok {
			f.legs[role] = l
		}
	}
	if len(f.legs) > 0 {
		s.feeds = f
		s.background.Go(f.run)
	}
}

// prime waits until what the workers hold is known, but not long: without it routing is worse and not wrong.
func (f *feeds) prime() {
	if f == nil {
		return
	}
	f.scan()
	f.mu.Lock()
	open := make([]*feed, 0, len(f.open))
	for _, one := range f.open {
		open = append(open, one)
	}
	f.mu.Unlock()
	limit := time.After(feedFirst)
	for _, one := range open {
		select {
		case <-one.first:
		case <-limit:
			return
		}
	}
}

func (f *feeds) run() {
	tick := time.NewTicker(feedScan)
	defer tick.Stop()
	defer f.wg.Wait()
	for {
		f.scan()
		select {
		case <-tick.C:
		case <-f.s.stop.Done():
			return
		}
	}
}

// scan starts feeds of workers that came and ends those of workers that left.
func (f *feeds) scan() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.s.stop.Err() != nil {
		return
	}
	seen := map[string]bool{}
	for role, l := range f.legs {
		for _, in := range f.s.reg.Candidates(role, "") {
			if in.Info.HashAlgo != router.HashAlgo || !in.Info.KVEvents {
				continue // its blocks are guessed
			}
			key := fmt.Sprint(role, " ", in.ID, " ", in.Info.Incarnation)
			seen[key] = true
			if f.open[key] != nil {
				continue
			}
			ctx, cancel := context.WithCancel(f.s.stop)
			one := &feed{s: f.s, to: l, in: in, cancel: cancel, first: make(chan struct{})}
			f.open[key] = one
			f.wg.Go(func() { one.follow(ctx) })
		}
	}
	for key, one := range f.open {
		if !seen[key] {
			one.cancel()
			delete(f.open, key)
		}
	}
}

// follow keeps the listener informed until ctx ends.
func (f *feed) follow(ctx context.Context) {
	defer f.cancel()
	defer f.settled()
	defer f.to.Unobserved(f.in.ID, f.in.Info.Incarnation)
	for {
		err := f.stream(ctx)
		if errors.Is(err, errNoStream) {
			err = f.poll(ctx)
		}
		f.settled()
		if ctx.Err() != nil {
			return
		}
		f.s.log.Debug("cache events broke off", "server", f.in.ID, "error", err)
		f.to.Unobserved(f.in.ID, f.in.Info.Incarnation)
		if !sleep(ctx, feedRetry) {
			return
		}
	}
}

// settled ends the wait for the first index.
func (f *feed) settled() { f.once.Do(func() { close(f.first) }) }

// sleep returns false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stream follows a worker's events, from its whole index on, until they end or do not add up.
func (f *feed) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	alive := time.AfterFunc(feedAlive, cancel)
	defer alive.Stop()
	resp, err := f.s.ask(ctx, http.MethodGet, f.in.URL+"/kv_cache_events?snapshot=1")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return errNoStream
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(make([]byte, 0, 64<<10), feedLine)
	for begun := false; sc.Scan(); {
		alive.Reset(feedAlive)
		data, ok := bytes.CutPrefix(sc.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		var ev feedEvent
		if err := json.Unmarshal(data, &ev); err != nil {
			return fmt.Errorf("cache event: %w", err)
		}
		if err := ev.tell(f.to, f.in); err != nil {
			return err
		}
		if !begun {
			begun = true
			defer time.AfterFunc(feedWhole, f.settled).Stop()
		}
	}
	if sc.Err() != nil {
		return fmt.Errorf("cache events: %w", sc.Err())
	}
	return io.EOF
}

// poll asks for events again and again. What was told before this frontend came is lost, so the index begins empty.
func (f *feed) poll(ctx context.Context) error {
	for known := map[int]bool{}; ; {
		list, err := f.s.drain(ctx, f.in)
		if err != nil {
			return err
		}
		for i := range list {
			ev := &list[i]
			if !known[ev.Rank] && ev.Data.Type != string(router.EventCreated) {
				begin := feedEvent{ID: ev.ID - 1, Rank: ev.Rank}
				begin.Data.Type, ev.Gap = string(router.EventCreated), false
				_ = begin.tell(f.to, f.in)
			}
			known[ev.Rank] = true
			if err := ev.tell(f.to, f.in); errors.Is(err, errOutOfStep) {
				known[ev.Rank] = false // and empty until it is told more
			} else if err != nil {
				return err
			}
		}
		f.settled()
		if !sleep(ctx, feedPoll) {
			return context.Cause(ctx)
		}
	}
}

func (s *Server) drain(ctx context.Context, in discovery.Instance) (list []feedEvent, err error) {
	ctx, cancel := context.WithTimeout(ctx, feedAlive)
	defer cancel()
	resp, err := s.ask(ctx, http.MethodPost, in.URL+"/kv_cache_events")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, feedReply)).Decode(&list); err != nil {
		return nil, fmt.Errorf("cache events: %w", err)
	}
	return list, nil
}

// ask sends a request without a body. The error of an unknown path or method is errNoStream.
func (s *Server) ask(ctx context.Context, method, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("cache events: %w", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cache events: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp, nil
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		err = errNoStream
	default:
		err = fmt.Errorf("cache events: status %d", resp.StatusCode)
	}
	resp.Body.Close()
	return nil, err
}

// feedEvent is an event as workers write it.
type feedEvent struct {
	ID   uint64 `json:"event_id"`
	Rank int    `json:"attention_dp_rank"`
	Gap  bool   `json:"gap"`
	Data struct {
		Type        string   `json:"type"`
		HashAlgo    string   `json:"hash_algo"`
		Incarnation string   `json:"incarnation"`
		Removed     []uint64 `json:"block_hashes"`
		Stored      []struct {
			Hash uint64 `json:"block_hash"`
		} `json:"blocks"`
	} `json:"data"`
}

// tell gives the event to a listener.
func (ev *feedEvent) tell(l router.Listener, in discovery.Instance) error {
	d := &ev.Data
	out := router.Event{ID: ev.ID, Rank: ev.Rank, Gap: ev.Gap, Kind: router.EventKind(d.Type), Blocks: d.Removed}
	switch out.Kind {
	case router.EventCreated:
		switch {
		case d.HashAlgo != "" && d.HashAlgo != router.HashAlgo:
			return errForeign
		case d.Incarnation != "" && d.Incarnation != in.Info.Incarnation:
			return errOutOfStep // another process answers there: a probe will find it
		}
	case router.EventStored:
		out.Blocks = make([]uint64, len(d.Stored))
		for i := range d.Stored {
			out.Blocks[i] = d.Stored[i].Hash
		}
	}
	if !l.Observe(in.ID, in.Info.Incarnation, []router.Event{out}) {
		return errOutOfStep
	}
	return nil
}
