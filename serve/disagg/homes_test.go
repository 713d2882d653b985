package disagg

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// sharedHomes is a store that tests look into and break.
type sharedHomes struct {
	mu    sync.Mutex
	at    map[string]string
	down  bool
	finds int
}

func (s *sharedHomes) Find(_ context.Context, key string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finds++
	if s.down {
		return "", errors.New("the store is down")
	}
	return s.at[key], nil
}

func (s *sharedHomes) Keep(_ context.Context, key, instance, was string) (string, error) {
	time.Sleep(5 * time.Millisecond) // a store takes its time
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return "", errors.New("the store is down")
	}
	if now := s.at[key]; now != "" && now != was && now != instance {
		return now, nil
	}
	s.at[key] = instance
	return instance, nil
}

func (s *sharedHomes) of(role discovery.Role, id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[homeKey(role, id)]
}

func (s *sharedHomes) set(down bool) (finds int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	return s.finds
}

// frontends makes frontends over the same stubs, one after the other.
type frontends struct {
	t        *testing.T
	ctx, gen []*stub
	store    *sharedHomes
	clock    *manualClock // nil = time itself
}

func newFrontends(t *testing.T) *frontends {
	f := &frontends{t: t, store: &sharedHomes{at: map[string]string{}}}
	for range 3 {
		f.ctx = append(f.ctx, newStub(t, discovery.Context, ctxReply{}.script))
		f.gen = append(f.gen, newStub(t, discovery.Generation, genReply{}.script))
	}
	return f
}

// start makes a frontend that has placed skew conversations of its own, so that its next choice is another one than that
// of a frontend which has not.
func (f *frontends) start(skew int) *rig {
	r := newRig(f.t, f.ctx, f.gen, func(_ *rig, p *Parts) {
		p.Homes = f.store
		if f.clock != nil {
			p.Now = f.clock.now
		}
		p.Context, p.Generation = router.NewConversation(router.Config{Type: router.KindConversation}), router.NewHybrid(router.Config{Type: router.KindHybrid})
	})
	for i := range skew {
		f.at(r, strings.Repeat("x", i+1))
	}
	return r
}

// at asks as a conversation and tells who served it.
func (f *frontends) at(r *rig, id string, headers ...string) (ctx, gen string) {
	f.t.Helper()
	a := r.post(completions, hello, append(headers, "X-Session-Id", id)...)
	a.wantOK(f.t, "ABC")
	return a.header.Get("X-Disagg-Ctx-Server"), a.header.Get("X-Disagg-Gen-Server")
}

// A conversation stays at its workers whichever frontend it comes to, also one that has just started.
func TestConversationsAreSharedAmongFrontends(t *testing.T) {
	f := newFrontends(t)
	a := f.start(0)
	ctx, gen := f.at(a, "c")
	if f.store.of(discovery.Context, "c") != ctx || f.store.of(discovery.Generation, "c") != gen {
		t.Error("the answer is complete, and another frontend cannot know where its conversation lives")
	}
	if a.post(completions, streamed, "X-Session-Id", "s"); f.store.of(discovery.Context, "s") == "" || f.store.of(discovery.Generation, "s") == "" {
		t.Error("a stream is complete, and another frontend cannot know where its conversation lives")
	}
	for skew := 1; skew < 3; skew++ {
		b := f.start(skew)
		before := b.obs.count("conversation_lookups_total found")
		if gotCtx, gotGen := f.at(b, "c"); gotCtx != ctx || gotGen != gen {
			t.Errorf("another frontend: %s and %s, home is %s and %s", gotCtx, gotGen, ctx, gen)
		}
		if b.obs.count("conversation_lookups_total found") != before+2 {
			t.Errorf("counted %v", b.obs.seen)
		}
	}
	// Placed by two at once: the later one follows from its next turn on.
	late := f.start(1)
	k := late.s.routers[discovery.Context].(router.Keeper)
	other := f.ctx[2].id
	if other == ctx {
		other = f.ctx[0].id
	}
	k.Settle("c", other)
	f.at(late, "c")
	for end := time.Now().Add(30 * time.Second); k.Home("c") != ctx; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("two frontends disagree for good: %s and %s", k.Home("c"), ctx)
		}
	}
}

// While the store is down conversations are placed by what this frontend knows, and nobody waits for it twice.
func TestConversationsWithoutTheirStore(t *testing.T) {
	f := newFrontends(t)
	f.store.set(true)
	f.clock = newClock() // the rest after a failure is as long as the test wants
	r := f.start(0)
	ctx, gen := f.at(r, "c")
	for range 3 {
		f.at(r, "d")
		if c, g := f.at(r, "c"); c != ctx || g != gen {
			t.Errorf("moved to %s and %s", c, g)
		}
	}
	if n := f.store.set(false); n > 4 {
		t.Errorf("a store that is down was asked %d times", n)
	}
	warned := func() bool {
		for _, w := range r.reg.Status().Warnings {
			if w.Code == WarnHomes {
				return true
			}
		}
		return false
	}
	if !warned() {
		t.Error("no warning")
	}
	f.clock.move(homeRest)
	for end := time.Now().Add(30 * time.Second); f.store.of(discovery.Context, "c") != ctx || warned(); time.Sleep(5 * time.Millisecond) {
		f.at(r, "c")
		if time.Now().After(end) {
			t.Fatal("the store is back, and nobody told it")
		}
	}
}
