package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"tandem/serve/disagg"
	"tandem/serve/discovery"
	registry "tandem/serve/discovery/cluster"
	"tandem/serve/discovery/etcd"
)

// discovered is how a frontend learns of workers that register; nil: they are listed.
type discovered struct {
	follow  func(ctx context.Context) // turns registrations into workers until ctx ends
	storage *registry.Storage         // that this frontend serves, nil = none
	routes  http.Handler              // of storage
	claim   *registry.Claim           // of this frontend's numbers in request ids, nil = there is no place for it
	close   func() error
}

// remotePoll is how often the storage of another frontend is read at most.
const remotePoll = time.Second

// discover prepares what disagg_cluster or metadata_server ask for; nothing runs yet.
func (n *node) discover(key []byte) (*discovered, error) {
	switch {
	case n.cfg.Cluster.On():
		return n.cluster(key)
	case n.cfg.Metadata.On():
		return n.metadata()
	}
	return nil, nil //nolint:nilnil // nil is a listed cluster
}

// cluster follows registrations in a storage or in etcd.
func (n *node) cluster(key []byte) (*discovered, error) {
	c := n.cfg.Cluster
	at, err := discovery.ParseStore(c.URI)
	if err != nil {
		return nil, fmt.Errorf("config: disagg_cluster.cluster_uri: %w", err)
	}
	access, err := c.Access(at)
	if err != nil {
		return nil, err
	}
	var source registry.Source
	var store registry.Creator
	d := &discovered{close: func() error { return nil }}
	switch {
	case at.Etcd:
		kept, err := etcd.New(at.Endpoints, etcd.Access(access))
		if err != nil {
			return nil, fmt.Errorf("disagg_cluster.cluster_uri: %w", err)
		}
		source, store, d.close = kept, kept, kept.Close
	case c.Remote:
		client := registry.NewClient(registry.ClientConfig{
			URL: at.Base(), Key: key, TLS: access.TLS, Poll: min(remotePoll, c.HeartbeatInterval()), Hold: c.TTL(),
		})
		source, store, d.close = client, client, client.Close
	default:
		if err := ownAddress(at.Endpoints[0], n.listener.Addr()); err != nil {
			return nil, fmt.Errorf("config: disagg_cluster.cluster_uri: %w", err)
		}
		d.storage = registry.NewStorage(nil)
		source, store = d.storage, registry.Local{Storage: d.storage}
		d.routes = d.storage.Handler(registry.Access{Key: key, Trusted: n.cfg.TrustNetwork})
	}
	d.follow = func(ctx context.Context) { registry.Follow(ctx, source, c.Name, n.registry, n.log) }
	d.claim = registry.NewClaim(store, n.numberKeys(), n.owner(), c.TTL(), c.HeartbeatInterval(), n.log)
	return d, nil
}

// numberKeys are the keys of all processes that this node may be, the one that it is by itself first.
func (n *node) numberKeys() (keys []string) {
	for i := range disagg.MaxProcess + 1 {
		keys = append(keys, registry.NumberKey(n.cfg.Cluster.Name, n.ids.node, (n.ids.process+i)%(disagg.MaxProcess+1)))
	}
	return keys
}

// owner tells people who has a key.
func (n *node) owner() string {
	host, _ := os.Hostname() // may be empty
	return host + " " + n.listener.Addr().String()
}

// takeNumbers makes sure that no other frontend of the cluster makes the same request ids.
func (n *node) takeNumbers(stop context.Context) error {
	if n.discovered == nil || n.discovered.claim == nil {
		return nil
	}
	which, err := n.discovered.claim.Take(stop)
	if errors.Is(err, registry.ErrExists) {
		return fmt.Errorf("node_id: other frontends of the cluster have the number %d and all that tells processes apart, so this one would make the same request ids: give each its own, 0 to 255", n.ids.node)
	}
	if err != nil {
		return err
	}
	n.server.SetProcess((n.ids.process + which) % (disagg.MaxProcess + 1))
	return nil
}

// metadata follows a metadata server of workers of other implementations.
func (n *node) metadata() (*discovered, error) {
	m := n.cfg.Metadata
	store, err := etcd.New([]string{net.JoinHostPort(m.Host, strconv.Itoa(m.Port))}, etcd.Access{})
	if err != nil {
		return nil, fmt.Errorf("metadata_server: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{IdleConnTimeout: time.Second}}
	follower := registry.Metadata{Store: store, Refresh: m.RefreshInterval(), Timeout: m.HealthTimeout(), Log: n.log, Answers: func(ctx context.Context, url string) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", http.NoBody)
		if err != nil {
			return false
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close() // whatever it says of its health, it is there
		return true
	}}
	return &discovered{follow: func(ctx context.Context) { follower.Follow(ctx, n.registry) }, close: store.Close}, nil
}

// handler adds the storage's routes to the public ones.
func (d *discovered) handler(public http.Handler) http.Handler {
	if d == nil || d.storage == nil {
		return public
	}
	mux := http.NewServeMux()
	for _, path := range registry.Paths {
		mux.Handle(path, d.routes)
	}
	mux.Handle("/", public)
	return mux
}

// follow follows the registrations until ctx ends.
func (n *node) follow(ctx context.Context, wg *sync.WaitGroup) {
	d := n.discovered
	if d == nil {
		return
	}
	if d.storage != nil {
		wg.Go(func() { d.storage.Run(ctx) })
	}
	wg.Go(func() {
		var kept sync.WaitGroup
		if d.claim != nil {
			kept.Go(func() { d.claim.Keep(ctx) })
		}
		d.follow(ctx)
		kept.Wait()
		_ = d.close() // nothing is in flight any more
	})
}

// ownAddress checks that a cluster URI points to this frontend: workers must not register where nobody looks.
func ownAddress(endpoint string, own net.Addr) error {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return fmt.Errorf("%q: %w", endpoint, err)
	}
	ownHost, ownPort, err := net.SplitHostPort(own.String())
	if err != nil {
		return fmt.Errorf("%q: %w", own, err)
	}
	hint := "workers would register where this frontend does not look: name its own address, or set remote_storage if another frontend holds the storage"
	if port != ownPort {
		return fmt.Errorf("port %s is not this frontend's (%s); %s", port, ownPort, hint)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return fmt.Errorf("host %q is not known: %w", host, err)
	}
	mine, err := ownIPs(net.ParseIP(ownHost))
	if err != nil {
		return err
	}
	for _, a := range addrs {
		for _, ip := range mine {
			if a.IP.Equal(ip) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s is not an address of this frontend, which listens on %s; %s", host, own, hint)
}

// ownIPs lists the addresses at which a listener on ip can be reached.
func ownIPs(ip net.IP) ([]net.IP, error) {
	if ip == nil {
		return nil, errors.New("the listener has no IP address")
	}
	if !ip.IsUnspecified() {
		return []net.IP{ip}, nil
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	var out []net.IP
	for _, a := range list {
		if at, ok := a.(*net.IPNet); ok {
			out = append(out, at.IP)
		}
	}
	return out, nil
}
