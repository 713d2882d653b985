package discovery

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Schemes of a cluster URI.
const (
	SchemeHTTP = "http" // the storage inside a frontend
	SchemeEtcd = "etcd"
)

// ParseClusterURI reads where a cluster keeps its registrations: http://host:port or etcd://host:port[,host:port...].
func ParseClusterURI(text string) (scheme string, endpoints []string, err error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(text), "://")
	if !ok || scheme != SchemeHTTP && scheme != SchemeEtcd {
		return "", nil, fmt.Errorf("%q is neither http://host:port (the storage inside a frontend) nor etcd://host:port", text)
	}
	for at := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		u, err := url.Parse("http://" + at)
		if err != nil || u.Host != at {
			return "", nil, fmt.Errorf("%q: want only host and port after %s://", text, scheme)
		}
		host, port, err := net.SplitHostPort(at)
		if n, perr := strconv.Atoi(port); err != nil || perr != nil || host == "" || n < 1 || n > 65535 {
			return "", nil, fmt.Errorf("%q: %q is no host:port", text, at)
		}
		endpoints = append(endpoints, at)
	}
	if scheme == SchemeHTTP && len(endpoints) > 1 {
		return "", nil, fmt.Errorf("%q: http takes one host:port", text)
	}
	return scheme, endpoints, nil
}
