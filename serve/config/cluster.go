package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"tandem/serve/discovery"
)

// Cluster is disagg_cluster: workers register, and frontends follow the registrations. The same section may stand in the
// files of both; each ignores what concerns only the other.
type Cluster struct {
	URI           string           `mapstructure:"cluster_uri"` // http://host:port or etcd://host:port; empty = no such cluster
	Name          string           `mapstructure:"cluster_name"`
	Minimal       MinimalInstances `mapstructure:"minimal_instances"`      // frontend
	Heartbeat     float64          `mapstructure:"heartbeat_interval_sec"` // worker
	Inactive      float64          `mapstructure:"inactive_timeout_sec"`   // worker: TTL of its registration
	Remote        bool             `mapstructure:"remote_storage"`         // frontend: the storage is in another frontend
	AdvertiseHost string           `mapstructure:"advertise_host"`         // worker: where frontends reach it
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

func (c Cluster) validate() error {
	const at = "disagg_cluster."
	if !c.On() {
		if c != defaultCluster() {
			return errors.New(at + "cluster_uri: is required; use http://host:port of the frontend or etcd://host:port")
		}
		return nil
	}
	scheme, _, err := discovery.ParseClusterURI(c.URI)
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
	case c.Remote && scheme != discovery.SchemeHTTP:
		return fmt.Errorf(at+"remote_storage: means nothing for %s, which is remote in any case", scheme)
	case strings.ContainsAny(c.AdvertiseHost, "/ []"):
		return fmt.Errorf(at+"advertise_host: %q must be a host name or an address without port and brackets", c.AdvertiseHost)
	}
	return nil
}
