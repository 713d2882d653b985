package disagg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// Homes is where frontends over the same workers tell each other at which worker a conversation lives. Keys are opaque.
type Homes interface {
	// Find returns the worker's id, "" = nobody knows.
	Find(ctx context.Context, key string) (string, error)
	// Keep stores the id unless another one than was is there by now, and returns what is there then.
	Keep(ctx context.Context, key, instance, was string) (string, error)
}

// WarnHomes is the code of the warning while frontends do not hear of each other's conversations.
const WarnHomes = "W_COORDINATOR"

const (
	homeFindLimit = 100 * time.Millisecond // a request waits this long to hear where its conversation lives
	homeKeepLimit = 2 * time.Second
	homeRest      = time.Second      // after a failure nobody asks for this long
	homeRefresh   = 20 * time.Minute // a home in use is kept anew, so that it is not forgotten
	homesKnown    = 2 * router.DefaultMaxSessions
	homeKeepers   = 4
	homeQueue     = 4096
)

// homes ties the routers to the Homes: it asks them for conversations that a router does not know, and tells them of those
// that a router has placed. A nil *homes does nothing.
type homes struct {
	store    Homes
	obs      Observer
	now      func() time.Time
	patience time.Duration // homeFindLimit, but in tests
	warn     func(code, message string)
	queue    chan keeping
	keepers  sync.WaitGroup
	stopKeep context.CancelFunc

	mu      sync.Mutex
	known   *simplelru.LRU[string, told]
	failing bool
	rest    time.Time // nobody is asked before
}

// told is what the store said last, and when.
type told struct {
	instance string
	at       time.Time
}

// keeping is a home to store.
type keeping struct {
	keeper            router.Keeper
	id, key           string
	instance, wasThen string
	done              chan struct{} // closed when it is stored, or cannot be
}

func newHomes(store Homes, obs Observer, now func() time.Time, warn func(code, message string)) *homes {
	if store == nil {
		return nil
	}
	known, err := simplelru.NewLRU[string, told](homesKnown, nil)
	if err != nil {
		panic(fmt.Sprintf("disagg: table of %d homes: %v", homesKnown, err))
	}
	h := &homes{store: store, obs: obs, now: now, patience: homeFindLimit, warn: warn, known: known, queue: make(chan keeping, homeQueue)}
	var ctx context.Context
	ctx, h.stopKeep = context.WithCancel(context.Background())
	for range homeKeepers {
		h.keepers.Go(func() { h.run(ctx) })
	}
	return h
}

// close stores what waits, as far as the store answers, and ends.
func (h *homes) close() {
	if h == nil {
		return
	}
	close(h.queue)
	timer := time.AfterFunc(homeKeepLimit, h.stopKeep)
	h.keepers.Wait()
	timer.Stop()
	h.stopKeep()
}

// homeKey names a conversation of a role, without telling its id.
func homeKey(role discovery.Role, id string) string {
	sum := sha256.Sum256([]byte(id))
	return string(role) + "/" + hex.EncodeToString(sum[:16])
}

// find settles the request's conversations where other frontends placed them, both roles at once.
func (h *homes) find(ctx context.Context, p *RoutePlan, routers map[discovery.Role]router.Router) {
	roles := []discovery.Role{discovery.Generation}
	if p.Path == PathCtxGen {
		roles = append(roles, discovery.Context)
	}
	var wg sync.WaitGroup
	for _, role := range roles {
		keeper, ok := routers[role].(router.Keeper)
		id := p.routingID(role)
		if !ok || id == "" || keeper.Home(id) != "" || h.resting() {
			continue
		}
		wg.Go(func() { h.ask(ctx, keeper, role, id) })
	}
	wg.Wait()
}

func (h *homes) ask(ctx context.Context, keeper router.Keeper, role discovery.Role, id string) {
	ctx, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	key := homeKey(role, id)
	at, err := h.store.Find(ctx, key)
	switch {
	case err != nil:
		h.obs.Happened(EventHome, "failed")
		h.report(err)
		return
	case at == "":
		h.obs.Happened(EventHome, "absent")
	default:
		h.obs.Happened(EventHome, "found")
		keeper.Settle(id, at)
		h.note(key, at)
	}
	h.report(nil)
}

// keep tells the store where a router has the request's conversations now. It does not wait.
func (h *homes) keep(p *RoutePlan, role discovery.Role, r router.Router) {
	if h == nil {
		return
	}
	keeper, ok := r.(router.Keeper)
	if !ok {
		return
	}
	routing, own := p.routingID(role), p.ownID(role)
	h.keepOne(p, keeper, role, routing)
	if own != routing {
		h.keepOne(p, keeper, role, own)
	}
}

// settled waits, not for long, until what the request made known is stored. The next turn may come to another frontend as
// soon as this one's answer is complete; by then it nearly always is stored.
func (h *homes) settled(p *RoutePlan) {
	if len(p.kept) == 0 {
		return
	}
	timer := time.NewTimer(h.patience)
	defer timer.Stop()
	for _, done := range p.kept {
		select {
		case <-done:
		case <-timer.C:
			return
		}
	}
}

func (h *homes) keepOne(p *RoutePlan, keeper router.Keeper, role discovery.Role, id string) {
	if id == "" {
		return
	}
	at := keeper.Home(id)
	key := homeKey(role, id)
	h.mu.Lock()
	defer h.mu.Unlock()
	last, _ := h.known.Get(key)
	if at == "" || last.instance == at && h.now().Sub(last.at) < homeRefresh || h.now().Before(h.rest) {
		return
	}
	k := keeping{keeper, id, key, at, last.instance, make(chan struct{})}
	select {
	case h.queue <- k:
		p.kept = append(p.kept, k.done)
		h.known.Add(key, told{at, h.now()})
	default: // the store is slow; the next turn tries again
	}
}

func (h *homes) run(ctx context.Context) {
	for k := range h.queue {
		kctx, cancel := context.WithTimeout(ctx, homeKeepLimit)
		at, err := h.store.Keep(kctx, k.key, k.instance, k.wasThen)
		cancel()
		if err != nil {
			h.mu.Lock()
			h.known.Remove(k.key) // the next turn tries again
			h.mu.Unlock()
		} else if at != k.instance { // another frontend placed it in the meantime: this one follows
			k.keeper.Settle(k.id, at)
			h.note(k.key, at)
		}
		close(k.done)
		if ctx.Err() == nil {
			h.report(err)
		}
	}
}

func (h *homes) note(key, instance string) {
	h.mu.Lock()
	h.known.Add(key, told{instance, h.now()})
	h.mu.Unlock()
}

func (h *homes) resting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Before(h.rest)
}

// report notes how the store does; the first failure of a row and its end are warned of.
func (h *homes) report(err error) {
	h.mu.Lock()
	was := h.failing
	if h.failing = err != nil; h.failing {
		h.rest = h.now().Add(homeRest)
	}
	h.mu.Unlock()
	switch {
	case err != nil && !was:
		h.warn(WarnHomes, fmt.Sprintf("conversations are placed without word from other frontends: %v", err))
	case err == nil && was:
		h.warn(WarnHomes, "")
	}
}
