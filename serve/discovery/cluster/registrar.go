package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"tandem/serve/discovery"
)

// Store is where a worker keeps its registration.
type Store interface {
	// Put stores a value under a key, new or not, for ttl.
	Put(ctx context.Context, key, value string, ttl time.Duration) error
	// Refresh gives the key a new time to live; ErrAbsent when it is not there any more.
	Refresh(ctx context.Context, key string, ttl time.Duration) error
	// Delete drops the key.
	Delete(ctx context.Context, key string) error
}

// retryPauses are the pauses before a failed refresh is tried again within the TTL.
var retryPauses = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}

// leaveLimit bounds how long a worker that stops tries to remove its registration.
const leaveLimit = 2 * time.Second

// Worker is what a Registrar registers.
type Worker struct {
	Host        string // under which frontends reach it
	Port        int
	Role        discovery.Role
	Incarnation string
	TLS         bool // it speaks HTTPS
}

// RegistrarConfig is what a Registrar needs besides its store.
type RegistrarConfig struct {
	ClusterName string
	Heartbeat   time.Duration // between two refreshes
	TTL         time.Duration // at least twice the heartbeat
	Worker      Worker
	Log         *slog.Logger
	Now         func() time.Time // nil = time.Now; it only goes into worker ids
}

// Registrar keeps a worker registered. It has a goroutine of its own, so that a busy engine never misses a heartbeat.
type Registrar struct {
	cfg   RegistrarConfig
	store Store
	roles chan discovery.Role
	count int    // registrations so far
	key   string // of the one in force, "" = none yet
	value string
	lost  bool // the last attempt to register or refresh failed

	inForce  atomic.Bool
	failures atomic.Uint64
}

// State tells whether the registration is in force, and how many attempts to register or refresh failed. Safe for
// concurrent use.
func (r *Registrar) State() (registered bool, failures uint64) {
	return r.inForce.Load(), r.failures.Load()
}

// NewRegistrar makes a registrar; Run registers.
func NewRegistrar(store Store, cfg RegistrarConfig) *Registrar {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Registrar{cfg: cfg, store: store, roles: make(chan discovery.Role)}
}

// Run registers the worker and keeps it registered until ctx ends; then it removes the registration and returns.
func (r *Registrar) Run(ctx context.Context) {
	r.register(ctx)
	for {
		timer := time.NewTimer(r.pause())
		select {
		case <-ctx.Done():
			timer.Stop()
			r.leave(context.WithoutCancel(ctx))
			return
		case <-timer.C:
			r.beat(ctx)
		case role := <-r.roles:
			timer.Stop()
			r.change(ctx, role)
		}
	}
}

// pause is the time to the next attempt: shorter than a heartbeat while the worker is not registered.
func (r *Registrar) pause() time.Duration {
	if r.lost {
		return min(r.cfg.Heartbeat, time.Second)
	}
	return r.cfg.Heartbeat
}

// SetRole registers the worker under another role, while its requests go on. Run must be running; it returns when the
// change was taken up or ctx ended.
func (r *Registrar) SetRole(ctx context.Context, role discovery.Role) error {
	select {
	case r.roles <- role:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("role %s: %w", role, ctx.Err())
	}
}

// change puts the new registration there before it drops the old one, so that the worker is always in some list.
func (r *Registrar) change(ctx context.Context, role discovery.Role) {
	if role == r.cfg.Worker.Role {
		return
	}
	old := r.key
	r.cfg.Log.Info("role changes", "from", r.cfg.Worker.Role, "to", role)
	r.cfg.Worker.Role = role
	r.key = ""
	r.register(ctx)
	if old != "" && !r.lost { // else it expires by itself
		if err := r.call(ctx, func(ctx context.Context) error { return r.store.Delete(ctx, old) }); err != nil {
			r.cfg.Log.Warn("the old registration stays until it expires", "error", err)
		}
	}
}

// register puts the registration into the store, a new one unless there is one that only has to be put there again.
func (r *Registrar) register(ctx context.Context) {
	w := r.cfg.Worker
	if r.key == "" {
		id := WorkerID(w.Role, w.Host, w.Port, r.cfg.Now(), os.Getpid(), r.count)
		r.count++
		entry := Registration{WorkerID: id, Host: w.Host, Port: w.Port, Role: w.Role, Incarnation: w.Incarnation}
		if w.TLS {
			entry.Scheme = "https"
		}
		value, err := json.Marshal(entry)
		if err != nil {
			r.report(err) // never: these are texts and a number
			return
		}
		r.key, r.value = Prefix(r.cfg.ClusterName)+id, string(value)
	}
	err := r.call(ctx, func(ctx context.Context) error { return r.store.Put(ctx, r.key, r.value, r.cfg.TTL) })
	if err == nil {
		r.cfg.Log.Info("registered", "cluster", r.cfg.ClusterName, "key", r.key)
	}
	r.report(err)
}

// beat refreshes the registration; a lost one is put there again.
func (r *Registrar) beat(ctx context.Context) {
	if r.lost {
		r.register(ctx)
		return
	}
	refresh := func(ctx context.Context) error { return r.store.Refresh(ctx, r.key, r.cfg.TTL) }
	err := r.call(ctx, refresh)
	for _, pause := range retryPauses {
		if err == nil || errors.Is(err, ErrAbsent) || ctx.Err() != nil {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
			err = r.call(ctx, refresh)
		}
		timer.Stop()
	}
	if err != nil {
		if !errors.Is(err, ErrAbsent) {
			r.failures.Add(1)
		}
		r.register(ctx)
	}
}

// report logs the first failure of a row and the end of it.
func (r *Registrar) report(err error) {
	if err != nil && !r.lost {
		r.cfg.Log.Warn("not registered, trying again", "error", err)
	}
	r.lost = err != nil
	r.inForce.Store(err == nil)
	if err != nil {
		r.failures.Add(1)
	}
}

func (r *Registrar) leave(ctx context.Context) {
	r.inForce.Store(false)
	if r.key == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	if err := r.store.Delete(ctx, r.key); err != nil {
		r.cfg.Log.Warn("the registration stays until it expires", "error", err)
		return
	}
	r.cfg.Log.Info("deregistered", "key", r.key)
}

// call bounds one exchange with the store, so that one that hangs leaves time for others within the TTL.
func (r *Registrar) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, min(r.cfg.TTL/4, 2*time.Second))
	defer cancel()
	return f(ctx)
}
