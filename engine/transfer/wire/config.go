package wire

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

// Config of one instance's transfer endpoint. The zero value listens on an
// ephemeral loopback port without a key.
type Config struct {
	// Host is where both listeners bind; empty means 127.0.0.1.
	Host string
	// Port of the control listener and DataPort of the byte path; 0 = ephemeral.
	Port, DataPort int
	// Advertise is the host peers connect to; empty means Host, or the first
	// own address when Host is a wildcard.
	Advertise string
	// Incarnation names this life of the worker.
	Incarnation string
	// Key, when set, must be the same on both sides; ATTACH and KEEPALIVE then
	// carry an HMAC over it.
	Key []byte

	// AttachTimeout bounds the wait from ATTACH to its answer; PROGRESS restarts
	// it. One retry on a new connection follows. 0 = 10 s.
	AttachTimeout time.Duration
	// IdleTimeout bounds any other wait for the peer. 0 = 10 s.
	IdleTimeout time.Duration

	// Dial opens connections of the puller; nil means TCP. For tests and proxies.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// NoLocal turns off the shortcut between engines of one process, NoShared the
	// shared memory between processes of one host, NoEarly the pulling of blocks
	// while later ones are still computed.
	NoLocal, NoShared, NoEarly bool

	sums   bool // checksums also within a host, for tests
	Logger *slog.Logger
}

// poolIdle is how long the puller keeps an unused data connection. The server
// waits longer, so that normally the side that chooses a connection closes it.
const (
	poolIdle   = 30 * time.Second
	serverIdle = 90 * time.Second
)

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	for name, port := range map[string]int{"port": c.Port, "data_port": c.DataPort} {
		if port < 0 || port > 65535 {
			return fmt.Errorf("transfer %s %d is out of range 0..65535", name, port)
		}
	}
	if c.AttachTimeout < 0 || c.IdleTimeout < 0 {
		return fmt.Errorf("transfer timeouts must not be negative")
	}
	if len(c.Incarnation) > maxName {
		return fmt.Errorf("transfer incarnation is longer than %d bytes", maxName)
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.AttachTimeout == 0 {
		c.AttachTimeout = 10 * time.Second
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		d := net.Dialer{Timeout: c.AttachTimeout}
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if c.Advertise == "" {
		c.Advertise = advertised(c.Host)
	}
}

// advertised returns host, or a usable own address for a wildcard.
func advertised(host string) string {
	ip := net.ParseIP(host)
	if ip == nil || !ip.IsUnspecified() {
		return host
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return host
	}
	return ownAddress(addrs, ip.To4() != nil)
}

// ownAddress returns the first address that other hosts may reach. A listener on
// :: takes IPv4 too, so it may use any family, its own first.
func ownAddress(addrs []net.Addr, v4 bool) string {
	other := "127.0.0.1"
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		if (n.IP.To4() != nil) == v4 {
			return n.IP.String()
		}
		if !v4 && other == "127.0.0.1" {
			other = n.IP.String()
		}
	}
	return other
}

const endpointScheme = "tcp://"

// splitEndpoint returns host:port and host of a tcp://host:port endpoint.
func splitEndpoint(endpoint string) (addr, host string, err error) {
	addr, ok := strings.CutPrefix(endpoint, endpointScheme)
	if !ok {
		return "", "", fmt.Errorf("endpoint %q does not start with %s", endpoint, endpointScheme)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if host == "" || port == "" || port == "0" {
		return "", "", fmt.Errorf("endpoint %q lacks a host or a port", endpoint)
	}
	return addr, host, nil
}
