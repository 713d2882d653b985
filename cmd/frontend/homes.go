package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"tandem/serve/disagg"
	"tandem/serve/discovery"
	registry "tandem/serve/discovery/cluster"
	"tandem/serve/discovery/etcd"
)

// coordinated is where this frontend and others keep what they know of conversations; nil: this one alone knows.
type coordinated struct {
	homes  disagg.Homes
	routes http.Handler              // that this frontend serves to others, nil = none
	run    func(ctx context.Context) // keeps a mirror until ctx ends, nil = there is none
	close  func() error
}

// coordinate prepares what disagg_coordinator_url asks for; nothing runs yet.
func (n *node) coordinate(key []byte) (*coordinated, error) {
	if n.cfg.Coordinator == "" {
		return nil, nil //nolint:nilnil // nil is a frontend that shares nothing
	}
	at, err := discovery.ParseStore(n.cfg.Coordinator)
	if err != nil {
		return nil, fmt.Errorf("config: disagg_coordinator_url: %w", err)
	}
	access, err := n.cfg.Cluster.Access(at)
	if err != nil {
		return nil, err
	}
	if at.Etcd {
		store, err := etcd.New(at.Endpoints, etcd.Access(access))
		if err != nil {
			return nil, fmt.Errorf("disagg_coordinator_url: %w", err)
		}
		return &coordinated{homes: etcd.NewHomes(store, "/disagg/"+n.cfg.Cluster.Name+"/homes/"), close: store.Close}, nil
	}
	if ownAddress(at.Endpoints[0], n.listener.Addr()) == nil {
		if at.TLS != n.cfg.TLS.On() {
			return nil, fmt.Errorf("config: disagg_coordinator_url: %s is this frontend's own address, which speaks %s", n.cfg.Coordinator, n.cfg.TLS.Scheme())
		}
		own := registry.NewHomes()
		routes := own.Handler(registry.Access{Key: key, Trusted: n.cfg.TrustNetwork})
		return &coordinated{homes: own, routes: routes, close: func() error { return nil }}, nil
	}
	client := registry.NewHomesClient(registry.ClientConfig{URL: at.Base(), Key: key, TLS: access.TLS, Poll: time.Second})
	return &coordinated{homes: client, run: func(ctx context.Context) { client.Run(ctx, n.told("the mirror of disagg_coordinator_url")) }, close: client.Close}, nil
}

// store is what the server asks and tells; nil: nobody.
func (c *coordinated) store() disagg.Homes {
	if c == nil {
		return nil
	}
	return c.homes
}

// start runs what is to run until ctx ends.
func (c *coordinated) start(ctx context.Context, wg *sync.WaitGroup) {
	if c != nil && c.run != nil {
		wg.Go(func() { c.run(ctx) })
	}
}

// end closes the connection, once the server has told what it had to tell.
func (c *coordinated) end() {
	if c != nil {
		_ = c.close() // nothing is in flight any more
	}
}

// told logs the first failure of a row and the end of it.
func (n *node) told(what string) func(error) {
	failing := false
	return func(err error) {
		switch {
		case err != nil && !failing:
			n.log.Warn(what+" stands still", "error", err)
		case err == nil && failing:
			n.log.Info(what + " goes on")
		}
		failing = err != nil
	}
}

// waitCoordinator waits until the coordinator answers: a frontend that starts without it would place all conversations anew.
func (n *node) waitCoordinator(stop context.Context, limit time.Duration) error {
	if n.coordinated == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(stop, limit)
	defer cancel()
	for {
		once, end := context.WithTimeout(ctx, 2*time.Second)
		_, err := n.coordinated.homes.Find(once, "start")
		end()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("disagg_coordinator_url %s does not answer within %v (server_start_timeout_sec): %w", n.cfg.Coordinator, limit, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// handler adds the routes for other frontends to the public ones.
func (c *coordinated) handler(public http.Handler) http.Handler {
	if c == nil || c.routes == nil {
		return public
	}
	mux := http.NewServeMux()
	for _, path := range registry.HomePaths {
		mux.Handle(path, c.routes)
	}
	mux.Handle("/", public)
	return mux
}
