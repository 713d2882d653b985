//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// storm sends n requests of all kinds from several clients and hangs up on each
// at a moment drawn from seed. It returns how many ended by themselves.
func storm(url string, seed uint64, n int, longest time.Duration) (finished int) {
	const clients = 16
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 2))
	draw := func() (s sample, stream bool, patience time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		text := prose(rng.Uint64N(40), 5+rng.IntN(20)*rng.IntN(20))
		prompt, path := any(user(text)), chatPath
		if rng.IntN(3) == 0 {
			prompt, path = text, textPath
		}
		s = sampleOf("", path, prompt, "max_tokens", 1+rng.IntN(20), "ignore_eos", true)
		if rng.IntN(4) == 0 {
			s.body["cache_salt"] = fmt.Sprint(rng.Uint64())
		}
		// Squared: short patience is frequent, since much happens early.
		f := rng.Float64()
		return s, rng.IntN(2) == 0, time.Duration(f * f * float64(longest))
	}
	var wg sync.WaitGroup
	jobs := make(chan struct{}, n)
	for range n {
		jobs <- struct{}{}
	}
	close(jobs)
	for range clients {
		wg.Go(func() {
			for range jobs {
				s, stream, patience := draw()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				_, err := ask(ctx, url, s.path, s.streamed(stream))
				cancel()
				if err == nil {
					mu.Lock()
					finished++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return finished
}

// TestCancelStorm cancels 200 requests at random moments. Nothing of them may
// be left: no block, no hand-over, no goroutine, no descriptor.
func TestCancelStorm(t *testing.T) {
	t.Parallel() // mostly waits
	c := startCluster(t, workerConfig{}, "")
	all := []*process{c.process, c.ctx, c.gen}
	normal(t, c.url, 4)
	waitClean(t, settleLimit, c.ctx, c.gen)
	before := footprints(t, all...)
	begin := time.Now()
	finished := storm(c.url, 1, 200, 6*time.Second)
	t.Logf("the storm took %v", time.Since(begin))
	t.Logf("%d of 200 requests were faster than their client's patience", finished)
	waitClean(t, settleLimit, c.ctx, c.gen)
	normal(t, c.url, 10)
	waitClean(t, settleLimit, c.ctx, c.gen)
	for _, p := range all {
		checkFootprint(t, p, before[p])
	}
	idleGauges(t, c.process)
}

// normal sends requests that must succeed.
func normal(t *testing.T, url string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			s := sampleOf("", chatPath, user("What is the capital of France?"))
			r, err := ask(ctx, url, s.path, s.streamed(i%2 == 0))
			if err != nil || r.Text != "The capital of France is Paris." {
				t.Errorf("a normal request: %v %+v", err, r)
			}
		})
	}
	wg.Wait()
}

// idleGauges waits until the frontend counts nothing as running; clients have their answers a little earlier.
func idleGauges(t *testing.T, p *process) {
	t.Helper()
	text := get(t, p.url+"/metrics")
	for _, name := range []string{"tandem_handoffs_open", "tandem_reservations_open", "tandem_inflight_requests"} {
		if !strings.Contains(text, "\n"+name) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	(&rig{process: p}).waitIdle(t)
}

// cancelLimit is for a step that had begun, on a machine that does other things too. That a cancelled prompt was not computed to
// its end is seen by counting its tokens.
const cancelLimit = 20 * time.Second

// prefilled counts the prompt tokens that a worker has computed.
func prefilled(t *testing.T, p *process) int {
	t.Helper()
	text := metric(get(t, p.url+"/metrics"), `tandem_batch_tokens_total{kind="prefill"}`)
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("tokens of prefill: %q: %v", text, err)
	}
	return int(n)
}

// TestDisconnectInPrefill hangs up while ctx computes a long prompt.
func TestDisconnectInPrefill(t *testing.T) {
	c := startCluster(t, workerConfig{noReuse: true}, "")
	for _, stream := range []bool{false, true} {
		before := prefilled(t, c.ctx)
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		done := make(chan error, 1)
		go func() {
			s := sampleOf("", chatPath, user(prose(3, 6500)))
			_, err := ask(ctx, c.url, s.path, s.streamed(stream))
			done <- err
		}()
		waitBusy(t, c.ctx)
		cancel()
		waitClean(t, cancelLimit, c.ctx, c.gen)
		if err := <-done; err == nil {
			t.Error("the prompt was too short: the request ended by itself")
		}
		if n := prefilled(t, c.ctx) - before; n >= 6500 {
			t.Errorf("%d tokens were computed for nobody", n)
		}
	}
	idleGauges(t, c.process)
}

// TestDisconnectInDecode hangs up while gen writes.
func TestDisconnectInDecode(t *testing.T) {
	c := startCluster(t, workerConfig{}, "")
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	resp, err := post(ctx, c.url+chatPath, endless(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 2000)); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	waitClean(t, cancelLimit, c.ctx, c.gen)

	// A client that does not stream hangs up too.
	ctx2, hangUp := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := ask(ctx2, c.url, chatPath, endless(false))
		done <- err
	}()
	waitBusy(t, c.gen)
	hangUp()
	waitClean(t, cancelLimit, c.ctx, c.gen)
	if err := <-done; err == nil {
		t.Error("the endless request ended")
	}
	idleGauges(t, c.process)
}

// TestDisconnectFromWorker hangs up on a worker that serves alone: no frontend
// tells it so.
func TestDisconnectFromWorker(t *testing.T) {
	mixed := startWorker(t, "mixed", workerConfig{})
	long := sampleOf("", chatPath, user(prose(4, 6500)))
	for _, body := range []object{endless(true), endless(false), long.streamed(true), long.streamed(false)} {
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		done := make(chan error, 1)
		go func() {
			_, err := ask(ctx, mixed.url, chatPath, body)
			done <- err
		}()
		waitBusy(t, mixed)
		cancel()
		waitClean(t, cancelLimit, mixed)
		if err := <-done; err == nil {
			t.Error("the request ended by itself")
		}
	}
}
