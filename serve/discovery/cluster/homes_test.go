package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHomesKeepWhatTheyPromise compares Homes with a plain map: compare and swap, a bounded number, changes in order.
func TestHomesKeepWhatTheyPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := NewHomes()
		h.limit = rapid.IntRange(1, 6).Draw(t, "limit")
		var model []home // oldest first
		at := func(key string) int {
			for i := range model {
				if model[i].Key == key {
					return i
				}
			}
			return -1
		}
		names, ctx := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"}), context.Background()
		seen, mirror := uint64(0), map[string]string{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			key, instance, was := names.Draw(t, "key"), names.Draw(t, "instance"), rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "was")
			i, want := at(key), instance
			if i >= 0 && model[i].Instance != was && model[i].Instance != instance {
				want = model[i].Instance
			} else {
				if i >= 0 {
					model = append(model[:i], model[i+1:]...)
				}
				if model = append(model, home{Key: key, Instance: instance}); len(model) > h.limit {
					model = model[1:]
				}
			}
			if got, err := h.Keep(ctx, key, instance, was); got != want || err != nil {
				t.Fatalf("keep %s at %s instead of %q: %q %v, want %q", key, instance, was, got, err, want)
			}
			if rapid.Bool().Draw(t, "follow") {
				list, next := h.changes(seen)
				for _, c := range list {
					mirror[c.Key] = c.Instance
				}
				seen = next
				for _, m := range model {
					if mirror[m.Key] != m.Instance {
						t.Fatalf("a follower knows %q of %v", mirror[m.Key], m)
					}
				}
			}
			for _, m := range model {
				if got, _ := h.Find(ctx, m.Key); got != m.Instance {
					t.Fatalf("%s: %q, want %q", m.Key, got, m.Instance)
				}
			}
			if len(h.items) != len(model) || h.order.Len() != len(model) {
				t.Fatalf("%d homes, want %d", len(h.items), len(model))
			}
		}
	})
}

// owner serves homes that a test can restart.
type owner struct {
	*httptest.Server
	homes atomic.Pointer[Homes] // nil = down
}

func newOwner(t *testing.T, access Access) *owner {
	t.Helper()
	o := &owner{}
	o.homes.Store(NewHomes())
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := o.homes.Load(); h != nil {
			h.Handler(access).ServeHTTP(w, r)
			return
		}
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(o.Close)
	return o
}

// TestHomesOutliveTheirFrontend: what one frontend keeps for another is given back to it after a restart.
func TestHomesOutliveTheirFrontend(t *testing.T) {
	key := []byte("a key of this test")
	o := newOwner(t, Access{Key: key})
	c := NewHomesClient(ClientConfig{URL: o.URL, Key: key, Poll: 10 * time.Millisecond})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx, func(error) {}) }()
	defer func() { cancel(); <-done }()
	const many = homesAnswer + 10
	for i := range many { // by the owner itself
		if _, err := o.homes.Load().Keep(ctx, fmt.Sprint("own ", i), "w1", ""); err != nil {
			t.Fatal(err)
		}
	}
	if at, err := c.Keep(ctx, "ours", "w2", ""); at != "w2" || err != nil {
		t.Fatal(at, err)
	}
	if at, err := c.Find(ctx, "nobody's"); at != "" || err != nil {
		t.Error(at, err)
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not in time: %s", what)
			}
		}
	}
	size := func(h *Homes) int { h.mu.Lock(); defer h.mu.Unlock(); return len(h.items) }
	until("the mirror has all", func() bool { return size(c.mirror) == many+1 })
	o.homes.Store(nil)
	if at, err := c.Find(ctx, "own 7"); at != "w1" || err != nil {
		t.Errorf("while the owner is away: %q %v", at, err)
	}
	if _, err := c.Keep(ctx, "meanwhile", "w3", ""); err == nil {
		t.Error("kept at an owner that is away")
	}
	fresh := NewHomes()
	_, _ = fresh.Keep(ctx, "own 7", "w9", "") // placed anew before the mirror came
	o.homes.Store(fresh)
	until("the owner has all again", func() bool { return size(fresh) == many+2 })
	for key, want := range map[string]string{"own 0": "w1", "ours": "w2", "meanwhile": "w3", "own 7": "w9"} {
		if at, _ := fresh.Find(ctx, key); at != want {
			t.Errorf("%s: %q, want %q", key, at, want)
		}
	}
	until("and its word holds", func() bool { at, _ := c.Find(ctx, "own 7"); return at == "w9" })
}

// TestHomesAreGuarded: strangers neither read nor write where conversations live, and malformed requests do no harm.
func TestHomesAreGuarded(t *testing.T) {
	key := []byte("a key of this test")
	o := newOwner(t, Access{Key: key})
	for _, k := range [][]byte{nil, []byte("another key, as long")} {
		c := NewHomesClient(ClientConfig{URL: o.URL, Key: k})
		if _, err := c.Find(t.Context(), "a"); !errors.Is(err, ErrDenied) {
			t.Errorf("find: %v", err)
		}
		if _, err := c.Keep(t.Context(), "a", "evil", ""); !errors.Is(err, ErrDenied) {
			t.Errorf("keep: %v", err)
		}
		_ = c.Close()
	}
	open := newOwner(t, Access{})
	for _, q := range [][3]string{
		{"POST", "/homes/keep", `{"key":`},
		{"POST", "/homes/keep", `{"key":"","instance":"x"}`},
		{"POST", "/homes/keep", `{"key":"` + strings.Repeat("k", 600) + `","instance":"x"}`},
		{"POST", "/homes/merge", `[]`},
		{"GET", "/homes/changes?from=x", ""},
	} {
		req, _ := http.NewRequestWithContext(t.Context(), q[0], open.URL+q[1], strings.NewReader(q[2]))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%v: %d", q[:2], resp.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if len(open.homes.Load().items) != 0 {
		t.Error("something was kept")
	}
}
