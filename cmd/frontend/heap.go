package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// heapFloor is the size up to which the heap may grow before it is collected at all. An idle frontend holds a few MiB, and
// under load the collector would run several times a second to keep it at twice that.
const heapFloor = 32 << 20

// tuneHeap keeps the collector from small heaps. Above the floor it works as always; who sets GOGC gets just that.
func tuneHeap() {
	if os.Getenv("GOGC") != "" {
		return
	}
	now := 100
	var collected func(*[32]byte)
	collected = func(s *[32]byte) {
		if want := heapPercent(liveHeap()); want*10 > now*11 || want*10 < now*9 { // to set it stops the world for a moment
			debug.SetGCPercent(want)
			now = want
		}
		runtime.SetFinalizer(s, collected) // for the next collection
	}
	collected(new([32]byte))
}

// heapPercent is GOGC for a heap with that many bytes alive.
func heapPercent(live uint64) int {
	if live == 0 || live >= heapFloor/2 {
		return 100
	}
	return int((heapFloor - live) * 100 / max(live, 1<<20))
}

// liveHeap is what the last collection left, in bytes.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
