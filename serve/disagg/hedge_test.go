package disagg

import (
	"net/http"
	"testing"
	"time"

	"tandem/serve/discovery"
)

func hedged(c *Config) { c.HedgeAfter = time.Millisecond }

func TestSlowFirstLegIsHedged(t *testing.T) {
	began := make(chan struct{}, 8)
	slow := newStub(t, discovery.Context, block(began))
	r := newRig(t, []*stub{slow, newStub(t, discovery.Context, after(began, ctxReply{}.script))}, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(hedged))
	a := r.post(completions, hello)
	a.wantOK(t, "ABC")
	if a.header.Get("X-Disagg-Ctx-Server") != r.ctx[1].id {
		t.Errorf("headers %v", a.header)
	}
	if id := <-slow.aborts; id != slow.requests()[0].params.DisaggRequestID {
		t.Errorf("abort for %d", id)
	}
	if g := r.gen[0].requests()[0].params.DisaggRequestID; g != r.ctx[1].requests()[0].params.DisaggRequestID {
		t.Errorf("gen got %d", g)
	}
	if r.obs.count("hedged_requests_total ") != 1 {
		t.Errorf("counted %v", r.obs.seen)
	}
}

// Both answer: one serves, and what the other holds is given up.
func TestBothHedgesAnswer(t *testing.T) {
	both := make(chan struct{}, 2)
	release := make(chan struct{})
	script := func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		both <- struct{}{}
		<-release
		ctxReply{}.script(n, q, w, r)
	}
	r := newRig(t, []*stub{newStub(t, discovery.Context, script), newStub(t, discovery.Context, script)},
		[]*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(hedged))
	done := make(chan answer)
	go func() { done <- r.post(completions, hello) }()
	<-both
	<-both
	close(release)
	(<-done).wantOK(t, "ABC")
	served := r.gen[0].requests()[0].params.DisaggRequestID
	for _, c := range r.ctx {
		if id := c.requests()[0].params.DisaggRequestID; id != served && <-c.aborts != id {
			t.Error("the loser is not aborted")
		}
	}
}

func TestHedgeWithNobodyElse(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	c := newStub(t, discovery.Context, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-release
		ctxReply{}.script(n, q, w, r)
	})
	r := newRig(t, []*stub{c}, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(hedged))
	done := make(chan answer)
	go func() { done <- r.post(completions, hello) }()
	<-began
	close(release)
	(<-done).wantOK(t, "ABC")
	if len(c.requests()) != 1 {
		t.Errorf("%d requests", len(c.requests()))
	}
}

// The first fails after the second began: the second one's outcome counts.
func TestHedgeOutlivesAFailure(t *testing.T) {
	begun := make(chan struct{})
	first := newStub(t, discovery.Context, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		<-begun
		refuse(500, "broken")(n, q, w, r)
	})
	second := newStub(t, discovery.Context, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		close(begun)
		ctxReply{}.script(n, q, w, r)
	})
	r := newRig(t, []*stub{first, second}, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, withConfig(func(c *Config) { hedged(c); c.MaxRetries = 0 }))
	r.post(completions, hello).wantOK(t, "ABC")
}
