package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// homeTTL is how long etcd remembers a conversation that nobody continues. A lease is shared by all homes that are kept
// within its first quarter, so that there are few leases.
const homeTTL = 4 * time.Hour

// Homes keeps in etcd where conversations live, for all frontends over the same workers. Safe for concurrent use.
type Homes struct {
	store  *Store
	prefix string
	now    func() time.Time

	mu    sync.Mutex
	lease clientv3.LeaseID
	until time.Time // no longer for new homes
}

// NewHomes keeps homes below prefix.
func NewHomes(store *Store, prefix string) *Homes {
	return &Homes{store: store, prefix: prefix, now: time.Now}
}

// Find returns the instance of a key, "" = not known.
func (h *Homes) Find(ctx context.Context, key string) (string, error) {
	got, err := h.store.client.Get(ctx, h.prefix+key)
	if err != nil {
		return "", h.store.failed(err)
	}
	return first(got), nil
}

func first(got *clientv3.GetResponse) string {
	if len(got.Kvs) == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

// Keep stores instance unless another one than was is there by now, and returns what is there then.
func (h *Homes) Keep(ctx context.Context, key, instance, was string) (string, error) {
	at, err := h.keep(ctx, key, instance, was)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // etcd has lost it
		h.mu.Lock()
		h.until = time.Time{}
		h.mu.Unlock()
		at, err = h.keep(ctx, key, instance, was)
	}
	if err != nil {
		return "", h.store.failed(err)
	}
	return at, nil
}

func (h *Homes) keep(ctx context.Context, key, instance, was string) (string, error) {
	lease, err := h.grant(ctx)
	if err != nil {
		return "", err
	}
	at := h.prefix + key
	put := clientv3.OpPut(at, instance, clientv3.WithLease(lease))
	for {
		// The first comparison that holds is that of the value seen last; a change in between is seen by the next round.
		got, err := h.store.client.Get(ctx, at)
		if err != nil {
			return "", err
		}
		seen, revision := first(got), int64(0)
		if seen != "" {
			revision = got.Kvs[0].ModRevision
		}
		if seen != "" && seen != was && seen != instance {
			return seen, nil
		}
		done, err := h.store.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(at), "=", revision)).Then(put).Commit()
		if err != nil {
			return "", err
		}
		if done.Succeeded {
			return instance, nil
		}
	}
}

// grant returns the lease for what is kept now.
func (h *Homes) grant(ctx context.Context) (clientv3.LeaseID, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now().Before(h.until) {
		return h.lease, nil
	}
	lease, err := h.store.client.Grant(ctx, int64(homeTTL/time.Second))
	if err != nil {
		return 0, err
	}
	h.lease, h.until = lease.ID, h.now().Add(homeTTL/4)
	return h.lease, nil
}
