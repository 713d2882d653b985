package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"tandem/serve/discovery"
)

// Registration is what a worker tells of itself: the value of its key.
type Registration struct {
	WorkerID    string         `json:"worker_id"`
	Host        string         `json:"host"`
	Port        int            `json:"port"`
	Role        discovery.Role `json:"role"`
	Incarnation string         `json:"incarnation"`
	Scheme      string         `json:"scheme,omitempty"` // https, or empty: http, as workers of other implementations
}

// Prefix is what the keys of a cluster's workers begin with. It ends with a slash, so that cluster a never sees cluster ab.
func Prefix(clusterName string) string { return "/disagg/" + clusterName + "/workers/" }

// WorkerID names one registration: role, address, time, process and three digits that tell the registrations of one
// millisecond apart.
func WorkerID(role discovery.Role, host string, port int, at time.Time, pid, n int) string {
	return fmt.Sprintf("%s-%s-%d-%d-%03d", strings.ToUpper(string(role)), net.JoinHostPort(host, strconv.Itoa(port)), at.UnixMilli(), pid, n%1000)
}

// since reads the time out of a worker id, 0 when it has another form.
func since(workerID string) int64 {
	parts := strings.Split(workerID, "-")
	if len(parts) < 4 {
		return 0
	}
	ms, err := strconv.ParseInt(parts[len(parts)-3], 10, 64)
	if err != nil {
		return 0
	}
	return ms
}

// Parse reads one key and its value. The role may be a word in any case, or its number on the wire.
func Parse(prefix, key, value string) (discovery.Member, error) {
	var m discovery.Member
	id, ok := strings.CutPrefix(key, prefix)
	if !ok || id == "" {
		return m, fmt.Errorf("key %q is not below %q", key, prefix)
	}
	var v struct {
		Host        string          `json:"host"`
		Port        int             `json:"port"`
		Role        json.RawMessage `json:"role"`
		Incarnation string          `json:"incarnation"`
		Scheme      string          `json:"scheme"`
	}
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		return m, fmt.Errorf("value of %q: %w", key, err)
	}
	role, err := parseRole(v.Role)
	if err != nil {
		return m, fmt.Errorf("value of %q: %w", key, err)
	}
	if v.Host == "" || strings.ContainsAny(v.Host, "/@?# []") {
		return m, fmt.Errorf("value of %q: host %q is no host", key, v.Host)
	}
	at := net.JoinHostPort(v.Host, strconv.Itoa(v.Port))
	switch v.Scheme {
	case "", "http":
	case "https":
		at = "https://" + at
	default:
		return m, fmt.Errorf("value of %q: scheme %q is neither http nor https", key, v.Scheme)
	}
	addr, url, err := discovery.ParseURL(at)
	if err != nil {
		return m, fmt.Errorf("value of %q: %w", key, err)
	}
	return discovery.Member{WorkerID: id, ID: addr, URL: url, Role: role, Incarnation: v.Incarnation, Since: since(id)}, nil
}

func parseRole(raw json.RawMessage) (discovery.Role, error) {
	var word string
	var number int
	switch {
	case json.Unmarshal(raw, &number) == nil && len(raw) > 0 && raw[0] != 'n':
		switch number {
		case 0:
			return discovery.Context, nil
		case 1:
			return discovery.Generation, nil
		}
	case json.Unmarshal(raw, &word) == nil:
		switch strings.ToLower(word) {
		case "context", "ctx":
			return discovery.Context, nil
		case "generation", "gen":
			return discovery.Generation, nil
		case "mixed":
			return discovery.Mixed, nil
		}
	}
	return "", fmt.Errorf("role %s is unknown", raw)
}

// Errors of a Backend.
var (
	// ErrAbsent: the key is not there (any more).
	ErrAbsent = errors.New("no such key")
	// ErrExists: the key is there already and was not to be overwritten.
	ErrExists = errors.New("the key exists")
	// ErrFull: the storage takes no more keys.
	ErrFull = errors.New("the storage is full")
	// ErrTooLong: a key or value is longer than the storage takes.
	ErrTooLong = errors.New("key or value is too long")
	// ErrDenied: the other side does not accept our key, or wants one.
	ErrDenied = errors.New("access denied: internal_request_auth_key must be the same on frontend and workers, or absent on both")
)
