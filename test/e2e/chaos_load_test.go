//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// quick asks processes that may stand still.
var quick = &http.Client{Timeout: 3 * time.Second}

func readSome(resp *http.Response) string {
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return string(text)
}

// silence is how long a client hears nothing before it says that its request hangs: longer than all limits of frontend and
// workers together, with their retries.
const silence = 75 * time.Second

var errHangs = errors.New("no byte came for " + silence.String())

// chaosSamples are requests whose answers are the same on every run: greedy and seeded, short and long, with stop strings,
// penalties and log-probabilities.
func chaosSamples(n, longest int) (out []sample) {
	for i := range n {
		rng := rand.New(rand.NewPCG(uint64(i), 4))
		text := prose(uint64(i%(n/2)), 8+rng.IntN(6)*rng.IntN(12)) // some begin alike
		prompt, path := any(text), textPath
		if i%3 == 0 {
			prompt, path = user(text), chatPath
		}
		more := []any{"model", chaosName, "max_tokens", 1 + rng.IntN(longest)}
		if i%4 != 0 {
			more = append(more, "ignore_eos", true)
		}
		switch i % 5 {
		case 1, 2:
			more = append(more, "temperature", 1, "seed", i)
		case 3:
			more = append(more, "temperature", 0.9, "seed", i, "top_p", 0.95, "frequency_penalty", 0.3, "stop", []string{"qq", "never said"})
		case 4:
			more = append(more, "temperature", 1, "seed", i, "logprobs", 1)
			if path == chatPath {
				more = append(more, "logprobs", true, "top_logprobs", 2)
			}
		}
		out = append(out, sampleOf(fmt.Sprintf("sample %d", i), path, prompt, more...))
	}
	return out
}

// oracle asks a worker that runs alone, once for each sample.
func oracle(t *testing.T, samples []sample, url string) []*result {
	t.Helper()
	out := run(t, samples, pass{"oracle", url, true, whole})
	if t.Failed() {
		t.FailNow()
	}
	for i, r := range out {
		check(t, samples[i], r)
	}
	return out
}

// The ways in which a request may end.
const (
	endComplete = "complete"
	endLeft     = "client left"
	endError    = "clean error"
	endBad      = "BAD"
)

// ending is how one request ended.
type ending struct {
	kind, class string // class: of errors
	id          string
	stream      bool
	begun, over time.Time
	gen         string        // the worker that began the answer
	gaps        []gap         // pauses within the stream
	first       time.Duration // to the first byte
}

// gap is a pause between two events of a stream.
type gap struct{ from, to time.Time }

// shortestGap is what counts as a pause.
const shortestGap = 100 * time.Millisecond

// load is a number of clients that ask one after another, without end.
type load struct {
	t       *testing.T
	url     string
	samples []sample
	want    []*result
	seed    uint64
	dump    func(*testing.T) // called once, when a request hangs

	stop    chan struct{}
	wg      sync.WaitGroup
	sent    atomic.Int64
	running sync.Map // ending of each request that is open
	hung    sync.Once

	mu   sync.Mutex
	ends []ending
	told map[string]int // errors of each class so far
}

func (l *load) begin(clients int) {
	l.stop, l.told = make(chan struct{}), map[string]int{}
	for i := range clients {
		l.wg.Go(func() { l.client(uint64(i)) })
	}
}

// end lets the clients finish what they have asked.
func (l *load) end() {
	close(l.stop)
	l.wg.Wait()
}

func (l *load) client(i uint64) {
	rng := rand.New(rand.NewPCG(l.seed, i))
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		e := l.one(rng)
		l.mu.Lock()
		l.ends = append(l.ends, e)
		l.mu.Unlock()
		if e.kind != endComplete && e.kind != endLeft {
			time.Sleep(time.Duration(200+rng.IntN(600)) * time.Millisecond) // as a client that retries
		}
	}
}

// open counts the requests that are open.
func (l *load) open() (n int) {
	l.running.Range(func(any, any) bool { n++; return true })
	return n
}

// turnOver waits until the requests that are open now have ended.
func (l *load) turnOver(limit time.Duration) {
	now := time.Now()
	eventually(limit, func() bool {
		old := false
		l.running.Range(func(_, begun any) bool {
			old = begun.(time.Time).Before(now)
			return !old
		})
		return !old
	})
}

// one sends a request and judges what comes.
func (l *load) one(rng *rand.Rand) ending {
	i := rng.IntN(len(l.samples))
	s, want := l.samples[i], l.want[i]
	e := ending{begun: time.Now(), stream: rng.IntN(8) != 0}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	leaves := rng.IntN(40) == 0
	if leaves {
		defer time.AfterFunc(time.Duration(rng.IntN(2000))*time.Millisecond, func() { cancel(context.Canceled) }).Stop()
	}
	l.running.Store(&e, e.begun)
	got, err := l.ask(ctx, cancel, &e, s)
	l.running.Delete(&e)
	e.over = time.Now()
	switch {
	case leaves && err != nil && errors.Is(context.Cause(ctx), context.Canceled):
		e.kind = endLeft
	case err == nil && same(got, want):
		e.kind = endComplete
	default:
		l.judge(&e, s, got, want, err)
	}
	return e
}

// judge accepts an error if it is clean: an error object with a status for servers' troubles, or an error event behind a
// true beginning of the answer.
func (l *load) judge(e *ending, s sample, got, want *result, err error) {
	var refused *statusError
	var event *eventError
	switch {
	case errors.As(err, &refused) && refused.Message != "" && refused.Type != "" && cleanStatus(refused.status):
		e.kind, e.class = endError, fmt.Sprintf("%d %s", refused.status, refused.Type)
	case errors.As(err, &event) && event.Message != "" && cleanType(event.Type) && begins(want, got):
		e.kind, e.class = endError, "event "+event.Type
	default:
		e.kind = endBad
		if got == nil {
			got = &result{}
		}
		l.t.Errorf("%s, %s (stream %t, at %s, %v after its begin): %v\n got %s\nwant %s", s.name, e.id, e.stream, e.gen, e.over.Sub(e.begun), err, show(got), show(want))
		if errors.Is(err, errHangs) {
			l.hung.Do(func() { l.dump(l.t) })
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told[e.class]++; l.told[e.class] <= 3 {
		l.t.Logf("%s, %s after %v (stream %t, at %s): %v", s.name, e.id, e.over.Sub(e.begun).Round(time.Millisecond), e.stream, e.gen, err)
	}
}

func cleanStatus(status int) bool {
	return slices.Contains([]int{http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, status)
}

func cleanType(kind string) bool {
	return slices.Contains([]string{"upstream_error", "service_unavailable", "timeout", "overloaded"}, kind)
}

// begins tells whether what a client has is a beginning of the true answer, and not all of it.
func begins(want, got *result) bool {
	n, m := len(got.IDs), len(got.Logprobs)
	return strings.HasPrefix(want.Text, got.Text) && got.Finish == "" && n <= len(want.IDs) && slices.Equal(got.IDs, want.IDs[:n]) &&
		m <= len(want.Logprobs) && slices.Equal(got.Logprobs, want.Logprobs[:m])
}

// ask reads an answer under watch.
func (l *load) ask(ctx context.Context, cancel context.CancelCauseFunc, e *ending, s sample) (*result, error) {
	timer := time.AfterFunc(silence, func() { cancel(errHangs) })
	defer timer.Stop()
	e.id = fmt.Sprintf("chaos-%d", l.sent.Add(1)) // to find it in logs
	resp, err := post(ctx, l.url+s.path, s.streamed(e.stream), "X-Request-ID", e.id)
	if err != nil {
		return nil, because(ctx, err)
	}
	defer resp.Body.Close()
	e.gen, e.first = resp.Header.Get("X-Disagg-Gen-Server"), time.Since(e.begun)
	resp.Body = &watched{ReadCloser: resp.Body, timer: timer, last: time.Now(), e: e}
	r := &result{header: resp.Header, streamed: e.stream}
	if e.stream {
		return r, because(ctx, r.readStream(resp, s.path))
	}
	return r, because(ctx, r.readWhole(resp.Body))
}

// because puts the reason why a request was ended from here into its error.
func because(ctx context.Context, err error) error {
	if err != nil && context.Cause(ctx) != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// watched notes the pauses of a stream and resets the alarm at every byte.
type watched struct {
	io.ReadCloser
	timer *time.Timer
	last  time.Time
	e     *ending
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.timer.Reset(silence)
		now := time.Now()
		if now.Sub(w.last) >= shortestGap {
			w.e.gaps = append(w.e.gaps, gap{w.last, now})
		}
		w.last = now
	}
	return n, err
}
