package etcd

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/goleak"

	"tandem/serve/discovery"
	"tandem/serve/discovery/cluster"
	"tandem/test/etcd"
)

func TestMain(m *testing.M) {
	code := m.Run()
	etcd.Remove()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

var (
	_ cluster.Store  = (*Store)(nil)
	_ cluster.Source = (*Store)(nil)
)

const limit = 30 * time.Second

func connect(t *testing.T, s *etcd.Server) *Store {
	t.Helper()
	store, err := New([]string{s.Addr}, Access{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// follower hands lists and problems to a test.
type follower struct {
	lists    chan string
	problems chan error
}

func follow(t *testing.T, s *Store, prefix string) *follower {
	t.Helper()
	f := &follower{lists: make(chan string, 64), problems: make(chan error, 64)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		s.Follow(ctx, prefix, func(list map[string]string) {
			f.lists <- strings.Join(slices.Sorted(maps.Keys(list)), " ")
		}, func(err error) { f.problems <- err })
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return f
}

// until waits for a list.
func (f *follower) until(t *testing.T, want string) {
	t.Helper()
	got := "nothing"
	for end := time.After(limit); ; {
		select {
		case got = <-f.lists:
			if got == want {
				return
			}
		case <-end:
			t.Fatalf("the list is %q, want %q", got, want)
		}
	}
}

func TestStoreAgainstEtcd(t *testing.T) {
	server := etcd.Start(t)
	store, ctx := connect(t, server), t.Context()
	f := follow(t, store, "/disagg/a/workers/")
	f.until(t, "")
	put := func(key string, ttl time.Duration) {
		t.Helper()
		if err := store.Put(ctx, key, "{}", ttl); err != nil {
			t.Fatal(err)
		}
	}
	put("/disagg/a/workers/w1", time.Minute)
	put("/disagg/ab/workers/w", time.Minute) // another cluster
	put("/disagg/a/workers/w2", 2*time.Second)
	f.until(t, "/disagg/a/workers/w1 /disagg/a/workers/w2")
	f.until(t, "/disagg/a/workers/w1") // w2 is not refreshed
	if err := store.Refresh(ctx, "/disagg/a/workers/w2", time.Second); !errors.Is(err, cluster.ErrAbsent) {
		t.Errorf("an expired lease: %v", err)
	}
	if err := store.Refresh(ctx, "/disagg/a/workers/w1", time.Second); err != nil {
		t.Errorf("a live lease: %v", err)
	}
	if _, err := store.client.Delete(ctx, "/disagg/a/workers/w1"); err != nil { // by hand
		t.Fatal(err)
	}
	f.until(t, "")
	if err := store.Refresh(ctx, "/disagg/a/workers/w1", time.Second); !errors.Is(err, cluster.ErrAbsent) {
		t.Errorf("a key deleted by others: %v", err)
	}
	if err := store.Refresh(ctx, "/disagg/a/workers/never", time.Second); !errors.Is(err, cluster.ErrAbsent) {
		t.Errorf("a key never put: %v", err)
	}
	const claim = "/disagg/a/frontends/1-1"
	if _, err := store.Read(ctx, claim); !errors.Is(err, cluster.ErrAbsent) {
		t.Errorf("a key that is not there: %v", err)
	}
	if err := store.Create(ctx, claim, "one", time.Minute); err != nil {
		t.Error(err)
	}
	if err := store.Create(ctx, claim, "two", time.Minute); !errors.Is(err, cluster.ErrExists) {
		t.Errorf("created twice: %v", err)
	}
	if err := store.Refresh(ctx, claim, time.Minute); err != nil {
		t.Errorf("its lease: %v", err)
	}
	if v, err := store.Read(ctx, claim); v != "one" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	put("/disagg/a/workers/w3", time.Minute)
	f.until(t, "/disagg/a/workers/w3")
	if err := store.Delete(ctx, "/disagg/a/workers/w3"); err != nil {
		t.Error(err)
	}
	f.until(t, "")
}

// problem waits until the follower is told that there is one, or that there is none any more.
func (f *follower) problem(t *testing.T, want bool) {
	t.Helper()
	for end := time.After(limit); ; {
		select {
		case err := <-f.problems:
			if (err != nil) == want {
				return
			}
		case <-end:
			t.Fatalf("nobody said that there is a problem: %v", want)
		}
	}
}

// TestFollowSurvivesEtcd: an etcd that stops and comes back leaves the last list in force, says that it is away, and the
// watch goes on.
func TestFollowSurvivesEtcd(t *testing.T) {
	server := etcd.Start(t)
	store, ctx := connect(t, server), t.Context()
	if err := store.Put(ctx, "/p/w1", "{}", time.Minute); err != nil {
		t.Fatal(err)
	}
	store.check = 100 * time.Millisecond
	f := follow(t, store, "/p/")
	f.until(t, "/p/w1")
	f.problem(t, false)
	server.Stop(t)
	f.problem(t, true)
	server.Restart(t)
	f.problem(t, false)
	for end := time.Now().Add(limit); ; {
		pctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := store.Put(pctx, "/p/w2", "{}", time.Minute)
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	f.until(t, "/p/w1 /p/w2")
}

// TestWatchOfAnAbsentEtcd: one that stops between the listing and the watch is noticed, too.
func TestWatchOfAnAbsentEtcd(t *testing.T) {
	server := etcd.Start(t)
	store, ctx := connect(t, server), t.Context()
	store.check = 100 * time.Millisecond
	if _, _, err := store.list(ctx, "/p/"); err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	ended := make(chan error, 1)
	go func() { ended <- store.watch(ctx, "/p/", nil, 1, func(map[string]string) {}) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the watch ended well")
		}
	case <-time.After(limit):
		t.Fatal("nobody noticed")
	}
}

// TestFollowAfterCompaction: a watch from a revision that is gone ends, so that Follow lists anew.
func TestFollowAfterCompaction(t *testing.T) {
	server := etcd.Start(t)
	store, ctx := connect(t, server), t.Context()
	var last int64
	for range 3 {
		got, err := store.client.Put(ctx, "/p/w1", "{}")
		if err != nil {
			t.Fatal(err)
		}
		last = got.Header.Revision
	}
	if _, err := store.client.Compact(ctx, last); err != nil {
		t.Fatal(err)
	}
	err := store.watch(ctx, "/p/", nil, 1, func(map[string]string) { t.Error("something changed") })
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatalf("the watch ended with %v", err)
	}
	f := follow(t, store, "/p/")
	f.until(t, "/p/w1")
}

// TestWorkersOverEtcd: registrations of two workers become members and leave again.
func TestWorkersOverEtcd(t *testing.T) {
	server := etcd.Start(t)
	mine, theirs := connect(t, server), connect(t, server)
	members := make(memberList, 64)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { cluster.Follow(ctx, mine, "c", members, slog.New(slog.DiscardHandler)) })
	defer func() { cancel(); wg.Wait() }()
	members.until(t, "")
	wctx, leave := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for _, w := range []cluster.Worker{{Host: "10.0.0.1", Port: 1, Role: discovery.Context}, {Host: "10.0.0.1", Port: 2, Role: discovery.Generation}} {
		r := cluster.NewRegistrar(theirs, cluster.RegistrarConfig{ClusterName: "c", Heartbeat: time.Second, TTL: 2 * time.Second, Worker: w})
		workers.Go(func() { r.Run(wctx) })
	}
	members.until(t, "context 10.0.0.1:1, generation 10.0.0.1:2")
	leave()
	workers.Wait()
	members.until(t, "")
}

// memberList is a registry that writes down what it is told.
type memberList chan string

func (m memberList) SetWarning(string, string) {}

func (m memberList) SetMembers(list []discovery.Member) {
	var out []string
	for _, w := range list {
		out = append(out, string(w.Role)+" "+w.ID)
	}
	m <- strings.Join(out, ", ")
}

func (m memberList) until(t *testing.T, want string) {
	t.Helper()
	(&follower{lists: m}).until(t, want)
}
