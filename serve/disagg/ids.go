package disagg

import (
	"hash/fnv"
	"net"
	"os"
	"sync"
	"time"
)

// Layout of a disagg_request_id, low bits first: 10 counter, 6 process, 8 node, 39 milliseconds since 2025.
const (
	counterBits = 10
	processBits = 6
	nodeBits    = 8
)

// MaxProcess is the highest number of a process in ids.
const MaxProcess = 1<<processBits - 1

var idEpoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// IDs makes disagg_request_ids, positive int64 that never repeat within a process, even when the clock steps back.
type IDs struct {
	now     func() time.Time
	fixed   int64 // node and process in place
	mu      sync.Mutex
	last    int64 // milliseconds since idEpoch
	counter int64
}

// NewIDs makes a generator for a node (0..255) and process (0..63).
func NewIDs(node, process int, now func() time.Time) *IDs {
	return &IDs{
		now: now, last: -1,
		fixed: int64(node)<<(counterBits+processBits) | int64(process)<<counterBits,
	}
}

// Next returns a new id.
func (g *IDs) Next() int64 {
	ms := g.now().Sub(idEpoch).Milliseconds()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case ms > g.last:
		g.last, g.counter = ms, 0
	case g.counter < 1<<counterBits-1:
		g.counter++
	default:
		g.last, g.counter = g.last+1, 0
	}
	return composeID(g.last, g.fixed, g.counter)
}

func composeID(ms, fixed, counter int64) int64 {
	return ms<<(counterBits+processBits+nodeBits) | fixed | counter
}

// DefaultNodeID is the low byte of the first hardware address, else a hash of the host name.
func DefaultNodeID() int {
	ifaces, err := net.Interfaces()
	if err == nil {
		for _, i := range ifaces {
			if n := len(i.HardwareAddr); n > 0 && i.Flags&net.FlagLoopback == 0 {
				return int(i.HardwareAddr[n-1])
			}
		}
	}
	// Without a name all hosts hash alike, which is what a lone host may be.
	name, _ := os.Hostname()
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return int(h.Sum32() & 0xFF)
}

// DefaultProcessID tells the processes of one host apart by the low bits of the process id.
func DefaultProcessID() int { return os.Getpid() & MaxProcess }
