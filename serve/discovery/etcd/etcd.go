// Package etcd keeps registrations of workers in etcd: the same keys and values as the HTTP storage, each with a lease, so
// that a worker that stops refreshing disappears by itself.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"tandem/serve/discovery/cluster"
)

// relistPause is the pause before the keys are listed anew after a failure.
const relistPause = time.Second

// A watch whose server is away is silent and connects again by itself, so somebody must ask whether it still hears anything.
const (
	checkEvery = 5 * time.Second
	checkLimit = 2 * time.Second
)

// reconnect bounds the pause between attempts to connect well below the TTL of registrations; gRPC's own grows to minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 2 * time.Second,
}

// Store is a connection to etcd. Safe for concurrent use. It is a cluster.Store and a cluster.Source.
type Store struct {
	client *clientv3.Client
	at     string        // the endpoints, for errors
	check  time.Duration // checkEvery

	mu     sync.Mutex
	leases map[string]clientv3.LeaseID // by key that was put here
}

// Access is how etcd lets us in.
type Access struct {
	TLS                *tls.Config // nil = unencrypted
	Username, Password string      // empty = none
}

// New connects to one or more endpoints, host:port each. The connection is made and kept up in the background, so an etcd
// that is down is no error here.
func New(endpoints []string, access Access) (*Store, error) {
	scheme := "http://"
	if access.TLS != nil {
		scheme = "https://"
	}
	urls := make([]string, len(endpoints))
	for i, at := range endpoints {
		urls[i] = scheme + at
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: urls, TLS: access.TLS, Username: access.Username, Password: access.Password, DialTimeout: 2 * time.Second, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(reconnect)},
		Logger:      zap.NewNop(), // what fails comes back as an error and is logged by its caller
	})
	if err != nil {
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	return &Store{client: client, at: strings.Join(endpoints, ", "), check: checkEvery, leases: map[string]clientv3.LeaseID{}}, nil
}

// failed says which etcd it was, for the log of whoever has to look after it.
func (s *Store) failed(err error) error { return fmt.Errorf("etcd at %s: %w", s.at, err) }

// Close ends the connection.
func (s *Store) Close() error { return s.client.Close() }

// Put stores a value with a new lease. etcd counts leases in whole seconds, so ttl is rounded up.
func (s *Store) Put(ctx context.Context, key, value string, ttl time.Duration) error {
	return s.put(ctx, key, ttl, func(lease clientv3.LeaseID) error {
		_, err := s.client.Put(ctx, key, value, clientv3.WithLease(lease))
		return err //nolint:wrapcheck // put does
	})
}

// Create is Put of a new key; cluster.ErrExists when it is not new.
func (s *Store) Create(ctx context.Context, key, value string, ttl time.Duration) error {
	return s.put(ctx, key, ttl, func(lease clientv3.LeaseID) error {
		done, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, value, clientv3.WithLease(lease))).Commit()
		if err == nil && !done.Succeeded {
			_, _ = s.client.Revoke(ctx, lease) // else it ends by itself
			return cluster.ErrExists
		}
		return err //nolint:wrapcheck // put does
	})
}

// put grants a lease and keeps it in mind if the key could be put with it; else the lease ends by itself.
func (s *Store) put(ctx context.Context, key string, ttl time.Duration, with func(clientv3.LeaseID) error) error {
	lease, err := s.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return s.failed(err)
	}
	if err := with(lease.ID); err != nil {
		return s.failed(err)
	}
	s.mu.Lock()
	s.leases[key] = lease.ID
	s.mu.Unlock()
	return nil
}

// Read returns a key's value; cluster.ErrAbsent when it is not there.
func (s *Store) Read(ctx context.Context, key string) (string, error) {
	got, err := s.client.Get(ctx, key)
	if err != nil {
		return "", s.failed(err)
	}
	if len(got.Kvs) == 0 {
		return "", cluster.ErrAbsent
	}
	return string(got.Kvs[0].Value), nil
}

// Refresh keeps the key's lease alive; ErrAbsent when lease or key are gone.
func (s *Store) Refresh(ctx context.Context, key string, _ time.Duration) error {
	s.mu.Lock()
	lease, ok := s.leases[key]
	s.mu.Unlock()
	if !ok {
		return cluster.ErrAbsent
	}
	if _, err := s.client.KeepAliveOnce(ctx, lease); err != nil {
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return cluster.ErrAbsent
		}
		return s.failed(err)
	}
	got, err := s.client.Get(ctx, key, clientv3.WithCountOnly())
	if err != nil {
		return s.failed(err)
	}
	if got.Count == 0 {
		return cluster.ErrAbsent // somebody deleted it by hand
	}
	return nil
}

// Delete drops a key and its lease.
func (s *Store) Delete(ctx context.Context, key string) error {
	if _, err := s.client.Delete(ctx, key); err != nil {
		return s.failed(err)
	}
	s.mu.Lock()
	lease, ok := s.leases[key]
	delete(s.leases, key)
	s.mu.Unlock()
	if ok {
		_, _ = s.client.Revoke(ctx, lease) // else it ends by itself: nothing refreshes it any more
	}
	return nil
}

// Follow lists the keys below prefix and watches them from the revision of the listing; after a compaction or a lost watch
// it lists them anew. While etcd cannot be reached nothing is applied: the last list holds.
func (s *Store) Follow(ctx context.Context, prefix string, apply func(map[string]string), problem func(error)) {
	for ctx.Err() == nil {
		err := s.follow(ctx, prefix, apply, func() { problem(nil) })
		if ctx.Err() != nil {
			return
		}
		problem(err)
		timer := time.NewTimer(relistPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// listLimit bounds a listing.
const listLimit = 5 * time.Second

// errWatchEnded says that the server closed a watch.
var errWatchEnded = errors.New("the watch ended")

func (s *Store) follow(ctx context.Context, prefix string, apply func(map[string]string), listed func()) error {
	list, revision, err := s.list(ctx, prefix)
	if err != nil {
		return err
	}
	apply(copyOf(list))
	listed()
	return s.watch(ctx, prefix, list, revision+1, apply)
}

// watch applies the changes of list from a revision on, until the watch fails or etcd does not answer any more.
func (s *Store) watch(ctx context.Context, prefix string, list map[string]string, from int64, apply func(map[string]string)) error {
	// A watch that ends with this context leaves nothing behind at the client. Without a leader it fails instead of
	// standing still. Watch waits for etcd as long as that takes, so the checks go on beside it.
	var begin sync.WaitGroup
	defer begin.Wait()
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	begun := make(chan clientv3.WatchChan, 1)
	begin.Go(func() { begun <- s.client.Watch(wctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) })
	var answers clientv3.WatchChan
	check := time.NewTicker(s.check)
	defer check.Stop()
	for {
		select {
		case <-check.C:
			if err := s.answers(ctx, prefix); err != nil {
				return err
			}
		case answers = <-begun:
		case answer, open := <-answers:
			if !open {
				return s.failed(errWatchEnded)
			}
			if err := answer.Err(); err != nil {
				return s.failed(err)
			}
			if change(list, answer.Events) {
				apply(copyOf(list))
			}
		}
	}
}

// change applies events to list and tells whether there were any.
func change(list map[string]string, events []*clientv3.Event) bool {
	for _, ev := range events {
		if ev.Type == clientv3.EventTypeDelete {
			delete(list, string(ev.Kv.Key))
		} else {
			list[string(ev.Kv.Key)] = string(ev.Kv.Value)
		}
	}
	return len(events) > 0
}

// answers is nil if etcd answers, and has a leader.
func (s *Store) answers(ctx context.Context, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if _, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil {
		return s.failed(err)
	}
	return nil
}

func (s *Store) list(ctx context.Context, prefix string) (map[string]string, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	got, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, s.failed(err)
	}
	list := make(map[string]string, len(got.Kvs))
	for _, kv := range got.Kvs {
		list[string(kv.Key)] = string(kv.Value)
	}
	return list, got.Header.Revision, nil
}

// List returns all keys below prefix with their values.
func (s *Store) List(ctx context.Context, prefix string) (map[string]string, error) {
	list, _, err := s.list(ctx, prefix)
	return list, err
}

// copyOf keeps what was handed out from changing.
func copyOf(list map[string]string) map[string]string {
	out := make(map[string]string, len(list))
	for k, v := range list {
		out[k] = v
	}
	return out
}
