package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"tandem/engine/executor"
	"tandem/serve/discovery"
	"tandem/serve/discovery/cluster"
	"tandem/serve/discovery/etcd"
)

// membership is a worker's registration in its cluster; nil: there is none.
type membership struct {
	registrar *cluster.Registrar
	stop      context.CancelFunc
	done      chan struct{}
	ctx       context.Context // ends when the worker leaves
}

// leave deregisters the worker: frontends choose it no more. It may be called twice.
func (m *membership) leave() {
	if m != nil {
		m.stop()
		<-m.done
	}
}

// registration tells how the worker's registration does, for metrics.
func (p *process) registration() (registered bool, failures uint64) {
	if m := p.member.Load(); m != nil {
		return m.registrar.State()
	}
	return false, 0
}

// clusterStore is what a registration needs of its place.
type clusterStore interface {
	cluster.Store
	Close() error
}

// openStore connects to where disagg_cluster says; it is no error when nobody answers yet.
func (p *process) openStore(key []byte) (clusterStore, string, error) {
	at, err := discovery.ParseStore(p.cfg.Cluster.URI)
	if err != nil {
		return nil, "", fmt.Errorf("config: disagg_cluster.cluster_uri: %w", err)
	}
	access, err := p.cfg.Cluster.Access(at)
	if err != nil {
		return nil, "", err
	}
	if !at.Etcd {
		return cluster.NewClient(cluster.ClientConfig{URL: at.Base(), Key: key, TLS: access.TLS}), at.Endpoints[0], nil
	}
	store, err := etcd.New(at.Endpoints, etcd.Access(access))
	if err != nil {
		return nil, "", fmt.Errorf("disagg_cluster.cluster_uri: %w", err)
	}
	return store, at.Endpoints[0], nil
}

// register makes the loaded worker known to its cluster and keeps it so until leave. Only the process of rank 0 registers.
func (p *process) register(key []byte) (*membership, error) {
	if !p.cfg.Cluster.On() || !p.group.Leads() {
		return nil, nil //nolint:nilnil // nil is a worker that is listed
	}
	store, endpoint, err := p.openStore(key)
	if err != nil {
		return nil, err
	}
	host, err := p.advertised(endpoint)
	if err != nil {
		_ = store.Close()
		return nil, err
	}
	if onlyHere(host) {
		if at, _, _ := net.SplitHostPort(endpoint); !onlyHere(at) {
			p.log.Warn("registers under a loopback address: frontends on other hosts cannot reach it; see --host and disagg_cluster.advertise_host", "host", host)
		}
	}
	_, portText, _ := net.SplitHostPort(p.listener.Addr().String())
	port, _ := strconv.Atoi(portText)
	info := p.loaded.Engine.Info()
	c := p.cfg.Cluster
	m := &membership{done: make(chan struct{}), registrar: cluster.NewRegistrar(store, cluster.RegistrarConfig{
		ClusterName: c.Name, Heartbeat: c.HeartbeatInterval(), TTL: c.TTL(), Log: p.log,
		Worker: cluster.Worker{Host: host, Port: port, Role: discovery.Role(info.Role), Incarnation: info.Incarnation, TLS: p.cfg.TLS.On()},
	})}
	m.ctx, m.stop = context.WithCancel(context.Background())
	go func() {
		defer close(m.done)
		m.registrar.Run(m.ctx)
		_ = store.Close() // nothing is in flight any more
	}()
	p.member.Store(m)
	return m, nil
}

// advertised is the host under which frontends reach this worker.
func (p *process) advertised(endpoint string) (string, error) {
	if h := p.cfg.Cluster.AdvertiseHost; h != "" {
		return h, nil
	}
	if t := p.cfg.Transceiver; t != nil && t.AdvertiseHost != "" {
		return t.AdvertiseHost, nil
	}
	host, _, err := net.SplitHostPort(p.listener.Addr().String())
	if err != nil {
		return "", fmt.Errorf("address of the listener: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return host, nil
	}
	// A listener on all addresses: that from which the cluster is reached. Nothing is sent to find it.
	conn, err := net.Dial("udp", endpoint)
	if err != nil {
		return "", fmt.Errorf("disagg_cluster.advertise_host: set it, since --host %s names no address and the way to %s is not known: %w", host, endpoint, err)
	}
	defer conn.Close()
	own, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return "", fmt.Errorf("address towards %s: %w", endpoint, err)
	}
	return own, nil
}

// onlyHere tells whether a host means this one wherever it is said.
func onlyHere(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// changeRole serves POST /cluster/role?role=ctx|gen|mixed on the admin listener: a mixed worker registers for another role,
// and its requests go on.
func (p *process) changeRole(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") != "" {
		http.Error(w, "not from a web page", http.StatusForbidden)
		return
	}
	role, err := parseRole(r.URL.Query().Get("role"))
	if err != nil {
		http.Error(w, "role must be ctx, gen or mixed", http.StatusBadRequest)
		return
	}
	m := p.member.Load()
	switch {
	case m == nil:
		http.Error(w, "this worker is not registered: it has no disagg_cluster, or has not loaded yet", http.StatusConflict)
		return
	case p.role != executor.Mixed && role != p.role:
		http.Error(w, "only a worker started with --role mixed can change its role", http.StatusConflict)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	stop := context.AfterFunc(m.ctx, cancel)
	defer stop()
	if err := m.registrar.SetRole(ctx, discovery.Role(role)); err != nil {
		if errors.Is(m.ctx.Err(), context.Canceled) {
			err = errors.New("the worker is leaving")
		}
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintf(w, "registered as %s\n", role) // a caller that left is no error
}
