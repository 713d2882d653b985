package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func take(t *testing.T, c *Claim, want int) (leave func()) {
	t.Helper()
	if got, err := c.Take(t.Context()); err != nil || got != want {
		t.Fatalf("took %d, %v; want %d", got, err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Keep(ctx) }()
	return func() { cancel(); <-done }
}

// A key belongs to one process at a time: to the first that comes, as long as it lives.
func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := Local{NewStorage(nil)}
		claim := func(keys ...string) *Claim {
			return NewClaim(store, keys, "somebody", 10*time.Second, 2*time.Second, slog.New(slog.DiscardHandler))
		}
		leave := take(t, claim("a", "b"), 0)
		leaveSecond := take(t, claim("a", "b"), 1)
		begun := time.Now()
		if _, err := claim("a", "b").Take(t.Context()); !errors.Is(err, ErrExists) {
			t.Errorf("a third of two: %v", err)
		}
		if d := time.Since(begun); d < 10*time.Second || d > 15*time.Second {
			t.Errorf("refused after %v", d)
		}
		time.Sleep(time.Minute) // both are kept
		if list, _ := store.List(""); len(list) != 2 {
			t.Errorf("%v", list)
		}
		leave()
		begun = time.Now()
		take(t, claim("a"), 0)() // the one that left gave it up
		if d := time.Since(begun); d > 0 {
			t.Errorf("%v after its holder had left", d)
		}
		leaveSecond()

		killed := claim("a")
		if _, err := killed.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		begun = time.Now()
		leave = take(t, claim("a"), 0) // the killed one's key expires
		if d := time.Since(begun); d < 5*time.Second || d > 11*time.Second {
			t.Errorf("%v after its holder was killed", d)
		}
		store.Storage.Delete("a") // as if the storage had restarted
		time.Sleep(3 * time.Second)
		if _, ok := store.Get("a"); !ok {
			t.Error("it is not put there again")
		}
		leave()
		if list, _ := store.List(""); len(list) != 0 {
			t.Errorf("left behind: %v", list)
		}
	})
}

// One that lost its key while the storage was away says so, and leaves the key of the other alone.
func TestLostClaimIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := Local{NewStorage(nil)}
		var log strings.Builder
		leave := take(t, NewClaim(store, []string{"a"}, "x", 10*time.Second, time.Second, slog.New(slog.NewTextHandler(&log, nil))), 0)
		synctest.Wait()
		store.Storage.Delete("a")
		if err := store.Create(t.Context(), "a", "another", 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		leave()
		if v, _ := store.Get("a"); v != "another" {
			t.Errorf("the key is %q", v)
		}
		if n := strings.Count(log.String(), "same request ids"); n != 1 {
			t.Errorf("told %d times: %s", n, log.String())
		}
	})
}

// A storage that does not answer is waited for, and over HTTP a key is as much one process's as within it.
func TestClaimOverHTTP(t *testing.T) {
	storage := NewStorage(nil)
	srv := httptest.NewServer(storage.Handler(Access{}))
	defer srv.Close()
	client := NewClient(ClientConfig{URL: srv.URL})
	defer client.Close()
	ctx := t.Context()
	if err := client.Create(ctx, "a", "1", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := client.Create(ctx, "a", "2", time.Minute); !errors.Is(err, ErrExists) {
		t.Errorf("a second: %v", err)
	}
	if v, _ := storage.Get("a"); v != "1" {
		t.Errorf("it is %q now", v)
	}
	take(t, NewClaim(client, []string{"a", "b"}, "x", time.Minute, time.Second, slog.New(slog.DiscardHandler)), 1)()
	if list, _ := storage.List(""); len(list) != 1 {
		t.Errorf("%v", list)
	}
	away := NewClient(ClientConfig{URL: "http://127.0.0.1:1"})
	defer away.Close()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := NewClaim(away, []string{"a"}, "x", time.Minute, time.Second, slog.New(slog.DiscardHandler)).Take(short); err == nil || errors.Is(err, ErrExists) {
		t.Errorf("of nobody: %v", err)
	}
}
