// Package ports finds ports for tests that must name one before its owner listens there.
package ports

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Ports that the kernel gives to sockets which ask for any begin at 32768: what lies
// below is taken by nobody between the look at a port and its use.
const first, last = 15000, 32000

var (
	mu    sync.Mutex
	given = map[int]bool{}
)

// Free returns a port of 127.0.0.1 on which nobody listens, another one at each call.
func Free(t testing.TB) int {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	var err error
	for range 1000 {
		port := first + rand.IntN(last-first)
		if given[port] {
			continue
		}
		var ln net.Listener
		if ln, err = net.Listen("tcp", address(port)); err != nil {
			continue
		}
		_ = ln.Close()
		given[port] = true
		return port
	}
	t.Fatalf("no free port between %d and %d: %v", first, last, err)
	return 0
}

// Address returns "127.0.0.1:port" with a port of Free.
func Address(t testing.TB) string {
	t.Helper()
	return address(Free(t))
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
