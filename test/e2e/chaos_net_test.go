//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// network is a set of TCP proxies that can be told to misbehave.
type network struct{ api *toxiproxy.ApiServer }

func newNetwork() *network {
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxics do not use the logger that they are given
	return &network{toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())}
}

// wire is one proxy.
type wire struct{ *toxiproxy.Proxy }

// between listens at an address and forwards to another one until the test ends.
func (n *network) between(t *testing.T, name, listen, to string) wire {
	t.Helper()
	w := wire{toxiproxy.NewProxy(n.api, name, listen, to)}
	if err := w.Start(); err != nil {
		t.Fatalf("proxy %s: %v", name, err)
	}
	t.Cleanup(w.Stop)
	return w
}

// cut closes all connections and refuses new ones until join.
func (w wire) cut(*testing.T) { w.Stop() }

func (w wire) join(t *testing.T) {
	t.Helper()
	if err := w.Start(); err != nil {
		t.Errorf("proxy %s: %v", w.Name, err)
	}
}

// The two directions of a proxy: to the worker, and back.
const (
	there = "upstream"
	back  = "downstream"
)

// spoil puts a toxic on the given directions, for connections that are open and for new ones.
func (w wire) spoil(t *testing.T, kind string, attributes object, directions ...string) {
	t.Helper()
	for _, d := range directions {
		text, _ := json.Marshal(object{"type": kind, "stream": d, "attributes": attributes}) // it has an encoding
		if _, err := w.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
			t.Errorf("proxy %s: %s: %v", w.Name, kind, err)
		}
	}
}

// heal takes all toxics away. Connections whose bytes were swallowed are closed.
func (w wire) heal(*testing.T) { w.Toxics.ResetToxics(context.Background()) }

// steadyPort returns a port that is free on the given hosts and that the system does not give to others by itself, so that
// it is still free when a worker comes back to it.
func steadyPort(t *testing.T, hosts ...string) int {
	t.Helper()
	for range 1000 {
		port, free := 20000+rand.IntN(12000), true
		for _, h := range hosts {
			l, err := net.Listen("tcp", net.JoinHostPort(h, strconv.Itoa(port)))
			if free = free && err == nil; err == nil {
				l.Close()
			}
		}
		if free {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
