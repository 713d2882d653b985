package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"tandem/serve/discovery"
)

// Cluster is disagg_cluster: workers register, and frontends follow the registrations. The same section may stand in the
// files of both; each ignores what concerns only the other.
type Cluster struct {
	URI           string           `mapstructure:"cluster_uri"` // http(s)://host:port or etcd(s)://host:port; empty = no such cluster
	Name          string           `mapstructure:"cluster_name"`
	Minimal       MinimalInstances `mapstructure:"minimal_instances"`      // frontend
	Heartbeat     float64          `mapstructure:"heartbeat_interval_sec"` // worker
	Inactive      float64          `mapstructure:"inactive_timeout_sec"`   // worker: TTL of its registration
	Remote        bool             `mapstructure:"remote_storage"`         // frontend: the storage is in another frontend
	AdvertiseHost string           `mapstructure:"advertise_host"`         // worker: where frontends reach it
	TLS           ClientTLS        `mapstructure:"tls"`                    // for https and etcds, and for disagg_coordinator_url
	Username      string           `mapstructure:"username"`               // of etcd
	Password      string           `mapstructure:"password"`               // literal, env:NAME or file:PATH
}

// MinimalInstances is how many workers of each role a frontend needs to be ready.
type MinimalInstances struct {
	Context    int `mapstructure:"context_servers"`
	Generation int `mapstructure:"generation_servers"`
}

func defaultCluster() Cluster {
	return Cluster{Minimal: MinimalInstances{Context: 1, Generation: 1}, Heartbeat: 5, Inactive: 10}
}

// On tells whether workers register.
func (c Cluster) On() bool { return c.URI != "" }

// HeartbeatInterval is the time between two refreshes of a registration.
func (c Cluster) HeartbeatInterval() time.Duration { return seconds(c.Heartbeat) }

// TTL is how long a registration lives without a refresh.
func (c Cluster) TTL() time.Duration { return seconds(c.Inactive) }

// StoreAccess is how a store lets us in.
type StoreAccess struct {
	TLS                *tls.Config // nil = unencrypted
	Username, Password string      // of etcd, empty = none
}

// Access reads the files and secrets for a store.
func (c Cluster) Access(s discovery.Store) (a StoreAccess, err error) {
	if s.TLS {
		if a.TLS, err = c.TLS.Client("disagg_cluster.tls"); err != nil {
			return a, err // names the key
		}
	}
	if s.Etcd && c.Username != "" {
		a.Username = c.Username
		if a.Password, err = Secret("disagg_cluster.password", c.Password); err != nil {
			return a, fmt.Errorf("config: %w", err)
		}
	}
	return a, nil
}

// validate checks the section. coordinator is where a frontend shares conversations, with the same access; empty = nowhere.
func (c Cluster) validate(coordinator string) error {
	const at = "disagg_cluster."
	if err := c.validateAccess(coordinator); err != nil {
		return err
	}
	if !c.On() {
		rest := c
		rest.TLS, rest.Username, rest.Password = ClientTLS{}, "", ""
		if rest != defaultCluster() || coordinator == "" && rest != c {
			return errors.New(at + "cluster_uri: is required; use http://host:port of the frontend or etcd://host:port")
		}
		return nil
	}
	store, err := discovery.ParseStore(c.URI)
	switch {
	case err != nil:
		return fmt.Errorf(at+"cluster_uri: %w", err)
	case strings.ContainsFunc(c.Name, func(r rune) bool { return r == '/' || r <= ' ' || r == 0x7f }):
		return fmt.Errorf(at+"cluster_name: %q must not hold slashes, blanks or control characters", c.Name)
	case c.Minimal.Context < 0:
		return fmt.Errorf(at+"minimal_instances.context_servers: %d is negative", c.Minimal.Context)
	case c.Minimal.Generation < 0:
		return fmt.Errorf(at+"minimal_instances.generation_servers: %d is negative", c.Minimal.Generation)
	case c.Heartbeat <= 0 || c.Heartbeat > c.Inactive/2:
		return fmt.Errorf(at+"heartbeat_interval_sec: %g must be above 0 and at most half of inactive_timeout_sec (%g)", c.Heartbeat, c.Inactive)
	case c.Remote && store.Etcd:
		return errors.New(at + "remote_storage: means nothing for etcd, which is remote in any case")
	case strings.ContainsAny(c.AdvertiseHost, "/ []"):
		return fmt.Errorf(at+"advertise_host: %q must be a host name or an address without port and brackets", c.AdvertiseHost)
	}
	return nil
}

// validateAccess refuses what no store of the file would use.
func (c Cluster) validateAccess(coordinator string) error {
	const at = "disagg_cluster."
	etcd, encrypted := false, false
	for _, uri := range []string{c.URI, coordinator} {
		if s, err := discovery.ParseStore(uri); err == nil {
			etcd, encrypted = etcd || s.Etcd, encrypted || s.TLS
		}
	}
	switch {
	case c.TLS != ClientTLS{} && !encrypted:
		return errors.New(at + "tls: has no effect without an address that begins with https:// or etcds://")
	case (c.Username != "" || c.Password != "") && !etcd:
		return errors.New(at + "username: only etcd asks for a name; frontends have internal_request_auth_key")
	case (c.Username == "") != (c.Password == ""):
		return errors.New(at + "username: belongs together with password")
	}
	return c.TLS.validate(at + "tls")
}

// validateStores checks what the frontend's own addresses say of its storage.
func (f Frontend) validateStores() error {
	if err := f.Cluster.validate(f.Coordinator); err != nil {
		return err
	}
	if f.Coordinator != "" {
		if _, err := discovery.ParseStore(f.Coordinator); err != nil {
			return fmt.Errorf("disagg_coordinator_url: %w", err)
		}
	}
	store, err := discovery.ParseStore(f.Cluster.URI)
	if err != nil || store.Etcd || f.Cluster.Remote || store.TLS == f.TLS.On() {
		return nil //nolint:nilerr // none, or one whose scheme is right
	}
	return fmt.Errorf("disagg_cluster.cluster_uri: %s is this frontend's own address, which speaks %s: write %s://%s",
		f.Cluster.URI, f.TLS.Scheme(), f.TLS.Scheme(), store.Endpoints[0])
}
