package etcd

import (
	"context"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"tandem/test/etcd"
)

// Two frontends keep homes in one etcd: the first to place a conversation wins, and a home moves only from where it was.
func TestHomes(t *testing.T) {
	s := etcd.Start(t)
	a, b := NewHomes(connect(t, s), "/disagg/t/homes/"), NewHomes(connect(t, s), "/disagg/t/homes/")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	want := func(what string, want string) func(string, error) {
		return func(got string, err error) {
			t.Helper()
			if got != want || err != nil {
				t.Errorf("%s: %q %v, want %q", what, got, err, want)
			}
		}
	}
	want("nothing yet", "")(a.Find(ctx, "k"))
	want("placed", "w1")(a.Keep(ctx, "k", "w1", ""))
	want("placed elsewhere at the same time", "w1")(b.Keep(ctx, "k", "w2", ""))
	want("found", "w1")(b.Find(ctx, "k"))
	want("moved", "w3")(b.Keep(ctx, "k", "w3", "w1"))
	want("moved from where it is no more", "w3")(a.Keep(ctx, "k", "w4", "w1"))
	want("kept alive", "w3")(a.Keep(ctx, "k", "w3", "w1"))
	if _, err := a.store.client.Revoke(ctx, a.lease); err != nil {
		t.Fatal(err)
	}
	want("its lease ended", "")(b.Find(ctx, "k"))
	want("with a new lease", "w5")(a.Keep(ctx, "k", "w5", "w3"))
	var wg sync.WaitGroup
	won := make([]string, 8)
	for i := range won {
		wg.Go(func() { won[i], _ = []*Homes{a, b}[i%2].Keep(ctx, "race", string(rune('a'+i)), "") })
	}
	wg.Wait()
	for _, w := range won {
		if w == "" || w != won[0] {
			t.Errorf("frontends disagree: %q", won)
		}
	}
	if got, err := a.store.client.Leases(ctx); err != nil || len(got.Leases) > 3 {
		t.Errorf("%d leases, %v", len(got.Leases), err)
	}
	var none clientv3.LeaseID
	if got, err := a.store.client.Get(ctx, "/disagg/t/homes/race"); err != nil || got.Kvs[0].Lease == int64(none) {
		t.Errorf("homes have no end: %v", err)
	}
}
