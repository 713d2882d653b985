//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// leaves sends a request and hangs up when told to.
func (r *rig) leaves(path, body string, when <-chan struct{}) (left chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	left = make(chan struct{})
	go func() {
		defer close(left)
		send(ctx, r.url+path, body)
	}()
	go func() {
		<-when
		cancel()
	}()
	return left
}

func TestScenario26(t *testing.T) {
	scenario(t)
	for _, body := range []string{helloText, strings.Replace(helloText, "}", `,"stream":true}`, 1)} {
		r := newRig(t, rigOf{})
		began, leave := make(chan struct{}), make(chan struct{})
		r.ctx[0].setScript(func(c *call) {
			close(began)
			if c.wait(time.Minute) {
				ctxReply{}.script(c)
			}
		})
		left := r.leaves(textPath, body, leave)
		<-began
		time.Sleep(100 * time.Millisecond)
		close(leave)
		<-left
		id := wantLegs(t, r.ctx[0], 1)[0].params.ID
		within(t, "abort at ctx", func() bool { return slices.Contains(r.ctx[0].aborted(), id) })
		within(t, "ctx is clean", r.ctx[0].clean)
		r.waitIdle(t)
		wantLegs(t, r.gen[0], 0)
	}
}

// TestScenario27 holds the moment between the ctx reply and the gen leg open until the client has left.
func TestScenario27(t *testing.T) {
	t.Setenv("TANDEM_TEST_HOLD", "1") // so the scenario does not run beside others
	r := newRig(t, rigOf{bin: buildHooked(t)})
	replied := make(chan struct{})
	r.ctx[0].setScript(func(c *call) {
		ctxReply{}.script(c)
		c.w.(http.Flusher).Flush()
		close(replied)
	})
	leave := make(chan struct{})
	left := r.leaves(textPath, helloText, leave)
	<-replied
	within(t, "the hand-over is open", func() bool { return strings.Contains(strings.Join(r.open(t), "\n"), "tandem_handoffs_open") })
	close(leave)
	<-left
	id := wantLegs(t, r.ctx[0], 1)[0].params.ID
	within(t, "abort at ctx", func() bool { return slices.Contains(r.ctx[0].aborted(), id) })
	within(t, "ctx is clean", r.ctx[0].clean)
	r.waitIdle(t)
	wantLegs(t, r.gen[0], 0)
	if ids := r.gen[0].aborted(); len(ids) > 0 {
		t.Errorf("gen heard of %v", ids)
	}
}

// TestClientLeavesWithTheReply hangs up about when the ctx reply comes, again and again at other moments.
func TestClientLeavesWithTheReply(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOf{})
	r.gen[0].setScript(func(c *call) { c.wait(time.Minute) })
	for i := range 40 {
		replied := make(chan struct{})
		r.ctx[0].setScript(func(c *call) {
			ctxReply{}.script(c)
			c.w.(http.Flusher).Flush()
			close(replied)
		})
		when := make(chan struct{})
		go func() {
			<-replied
			time.Sleep(time.Duration(i) * 50 * time.Microsecond)
			close(when)
		}()
		<-r.leaves(textPath, helloText, when)
		id := legIDs(r.ctx[0].legs())[i]
		within(t, "ctx is clean", r.ctx[0].clean)
		within(t, "gen is clean", r.gen[0].clean)
		claimed := slices.Contains(legIDs(r.gen[0].legs()), id)
		within(t, "abort", func() bool {
			return slices.Contains(r.ctx[0].aborted(), id) && (!claimed || slices.Contains(r.gen[0].aborted(), id))
		})
		if t.Failed() {
			t.Fatalf("round %d, id %d, gen was asked: %t", i, id, claimed)
		}
	}
}

func TestScenario28(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{})
	began, leave := make(chan struct{}), make(chan struct{})
	r.gen[0].setScript(func(c *call) {
		c.send(events(textChunk(c.leg, "A")))
		close(began)
		c.wait(time.Minute)
	})
	left := r.leaves(textPath, strings.Replace(helloText, "}", `,"stream":true}`, 1), leave)
	<-began
	close(leave)
	<-left
	within(t, "gen is clean", r.gen[0].clean)
	id := wantLegs(t, r.gen[0], 1)[0].params.ID
	within(t, "abort at gen", func() bool { return slices.Contains(r.gen[0].aborted(), id) })
}

func TestScenario29(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{ctx: 2, gen: 2})
	for _, s := range r.ctx {
		s.setScript(func(c *call) {
			if c.wait(time.Duration(rand.IntN(100)) * time.Millisecond) {
				ctxReply{}.script(c)
			}
		})
	}
	for _, s := range r.gen {
		s.setScript(func(c *call) {
			if !c.stream() {
				if c.wait(time.Duration(rand.IntN(200)) * time.Millisecond) {
					genReply{}.script(c)
				}
				return
			}
			whole := genReply{}.stream(c.leg)
			for _, event := range strings.SplitAfter(whole, "\n\n") {
				if !c.wait(time.Duration(rand.IntN(40)) * time.Millisecond) {
					return
				}
				c.send(event)
			}
		})
	}
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
	before := footprints(t, r.process)[r.process]
	for range 5 {
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rand.IntN(300))*time.Millisecond)
				defer cancel()
				path, body := textPath, helloText
				if i%2 == 0 {
					path, body = chatPath, helloChat
				}
				send(ctx, r.url+path, body)
			})
		}
		wg.Wait()
	}
	for i := range 10 {
		begin := time.Now()
		r.ask(t, textPath, helloText).wantOK(t, "ABC")
		if took := time.Since(begin); took > noWait {
			t.Errorf("request %d after the storm took %v", i, took)
		}
	}
	for _, s := range append(slices.Clone(r.ctx), r.gen...) {
		within(t, s.name+" is clean", s.clean)
	}
	r.waitIdle(t)
	ok := eventually(leakLimit, func() bool {
		client.CloseIdleConnections()
		return footprintOf(t, r.process).goroutines <= before.goroutines+10
	})
	if !ok {
		t.Errorf("goroutines: %+v before, %+v after", before, footprintOf(t, r.process))
	}
}

// TestSlowReaders must not make the frontend's memory grow: who does not read
// stops the worker's stream.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOf{busy: true})
	stopped := make(chan int, 1)
	r.gen[0].setScript(func(c *call) {
		n, event := 0, events(textChunk(c.leg, strings.Repeat("x", 64<<10)))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for c.ctx.Err() == nil {
				if _, err := io.WriteString(c.w, event); err != nil {
					return
				}
				n += len(event)
			}
		}()
		c.wait(3 * time.Second)
		stopped <- 0
		<-c.ctx.Done()
		<-done
		stopped <- n
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url+textPath, strings.NewReader(strings.Replace(helloText, "}", `,"stream":true}`, 1)))
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-stopped
	cancel()
	if n := <-stopped; n > 64<<20 {
		t.Errorf("the frontend took %s from a worker for a client that reads nothing", fmt.Sprintf("%d MiB", n>>20))
	}
}
