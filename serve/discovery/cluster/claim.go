package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"
)

// Creator is a Store that can also tell whose a key is.
type Creator interface {
	Store
	// Create stores a value under a new key; ErrExists when it is not new.
	Create(ctx context.Context, key, value string, ttl time.Duration) error
	// Read returns a key's value; ErrAbsent when it is not there.
	Read(ctx context.Context, key string) (string, error)
}

// NumberKey is the key of the frontend that makes request ids with these numbers.
func NumberKey(clusterName string, node, process int) string {
	return "/disagg/" + clusterName + "/frontends/" + strconv.Itoa(node) + "-" + strconv.Itoa(process)
}

// claimPause is the pause before a claim that did not succeed is tried again.
const claimPause = 250 * time.Millisecond

// Claim holds a key that only one process may have, such as the numbers in request ids: two frontends with the same would
// make the same ids for different requests.
type Claim struct {
	store Creator
	keys  []string // any of which will do, the preferred one first
	key   string   // that is ours
	value string   // who has it, for people and for Keep
	ttl   time.Duration
	beat  time.Duration
	log   *slog.Logger
	taken chan struct{} // closed by Take
}

// NewClaim makes a claim to one of the keys; Take takes it.
func NewClaim(store Creator, keys []string, value string, ttl, heartbeat time.Duration, log *slog.Logger) *Claim {
	return &Claim{store: store, keys: keys, value: value + " " + rand.Text(), ttl: ttl, beat: heartbeat, log: log, taken: make(chan struct{})}
}

// Take returns which key is ours. The error is ErrExists when others have all of them, also after the time in which the keys of
// processes that were killed expire. A store that does not answer is waited for until ctx ends.
func (c *Claim) Take(ctx context.Context) (which int, err error) {
	var until time.Time // zero: it was not seen that all are taken
	for {
		for which, c.key = range c.keys {
			if err = c.create(ctx); err == nil {
				close(c.taken)
				return which, nil
			}
			if !errors.Is(err, ErrExists) {
				break
			}
		}
		switch {
		case !errors.Is(err, ErrExists):
		case until.IsZero():
			until = time.Now().Add(c.ttl + c.beat)
		case time.Now().After(until):
			return 0, err
		}
		timer := time.NewTimer(claimPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, fmt.Errorf("key %s: %w", c.key, err)
		}
	}
}

// Keep keeps the key until ctx ends, and then gives it up. It does nothing before Take has succeeded.
func (c *Claim) Keep(ctx context.Context) {
	select {
	case <-c.taken:
	case <-ctx.Done():
		select {
		case <-c.taken:
		default:
			return
		}
	}
	tick := time.NewTicker(c.beat)
	defer tick.Stop()
	for lost := false; ; {
		select {
		case <-tick.C:
			ours := c.refresh(ctx)
			if !ours && !lost {
				c.log.Error("another frontend has the same node_id and makes the same request ids: give each its own", "key", c.key)
			}
			lost = !ours
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
			defer cancel()
			if v, err := c.store.Read(last, c.key); err == nil && v == c.value {
				_ = c.store.Delete(last, c.key) // else it expires by itself
			}
			return
		}
	}
}

// refresh gives the key a new time to live, or puts it there again, as in a storage that has restarted empty. It returns false
// when another has it. What cannot be reached is told by those who register and follow.
func (c *Claim) refresh(ctx context.Context) (ours bool) {
	err := c.call(ctx, func(ctx context.Context) error {
		v, err := c.store.Read(ctx, c.key)
		if err == nil && v != c.value {
			return ErrExists
		}
		if err == nil {
			err = c.store.Refresh(ctx, c.key, c.ttl)
		}
		return err //nolint:wrapcheck // looked at here
	})
	if errors.Is(err, ErrAbsent) {
		err = c.create(ctx)
	}
	return !errors.Is(err, ErrExists)
}

func (c *Claim) create(ctx context.Context) error {
	return c.call(ctx, func(ctx context.Context) error { return c.store.Create(ctx, c.key, c.value, c.ttl) })
}

// call bounds one exchange with the store.
func (c *Claim) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	return f(ctx)
}

// Local makes a Creator of the storage of this process.
type Local struct{ *Storage }

// Put stores a value under a key, new or not.
func (l Local) Put(_ context.Context, key, value string, ttl time.Duration) error {
	return l.Set(key, value, ttl, true)
}

// Create stores a value under a new key.
func (l Local) Create(_ context.Context, key, value string, ttl time.Duration) error {
	return l.Set(key, value, ttl, false)
}

// Refresh gives a key a new time to live.
func (l Local) Refresh(_ context.Context, key string, ttl time.Duration) error {
	if !l.Expire(key, ttl) {
		return ErrAbsent
	}
	return nil
}

// Read returns a key's value.
func (l Local) Read(_ context.Context, key string) (string, error) {
	v, ok := l.Get(key)
	if !ok {
		return "", ErrAbsent
	}
	return v, nil
}

// Delete drops a key.
func (l Local) Delete(_ context.Context, key string) error {
	l.Storage.Delete(key)
	return nil
}
