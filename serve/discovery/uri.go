package discovery

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Store says where a cluster keeps what its processes share.
type Store struct {
	Etcd      bool     // else the storage inside a frontend
	TLS       bool     // encrypted: https or etcds
	Endpoints []string // host:port each; of a frontend one
}

// Base is the URL of a storage inside a frontend.
func (s Store) Base() string {
	if s.TLS {
		return "https://" + s.Endpoints[0]
	}
	return "http://" + s.Endpoints[0]
}

// ParseStore reads http://host:port or etcd://host:port[,host:port...], or https and etcds, which are encrypted.
func ParseStore(text string) (Store, error) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(text), "://")
	var s Store
	switch scheme {
	case "http":
	case "https":
		s.TLS = true
	case "etcd":
		s.Etcd = true
	case "etcds":
		s.Etcd, s.TLS = true, true
	default:
		return s, fmt.Errorf("%q is neither http://host:port (the storage inside a frontend) nor etcd://host:port, nor https or etcds", text)
	}
	for at := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		u, err := url.Parse("http://" + at)
		if err != nil || u.Host != at {
			return Store{}, fmt.Errorf("%q: want only host and port after %s://", text, scheme)
		}
		host, port, err := net.SplitHostPort(at)
		if n, perr := strconv.Atoi(port); err != nil || perr != nil || host == "" || n < 1 || n > 65535 {
			return Store{}, fmt.Errorf("%q: %q is no host:port", text, at)
		}
		s.Endpoints = append(s.Endpoints, at)
	}
	if !s.Etcd && len(s.Endpoints) > 1 {
		return Store{}, fmt.Errorf("%q: %s takes one host:port", text, scheme)
	}
	return s, nil
}
