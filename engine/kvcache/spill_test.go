package kvcache

import (
	"testing"

	"tandem/engine/blockhash"
)

// TestSpillOutlivesItsSource writes content to a file that is nowhere else any
// more when that has been done: readers of events hear of it again.
func TestSpillOutlivesItsSource(t *testing.T) {
	m, x := tierPool(t, 2, 4, Tiers{HostBlocks: 1, DiskBlocks: 2, MinPriority: 30}), newMemory(2, 1)
	root, r := blockhash.Root("m0", "", ""), &replica{}
	follow := func() {
		t.Helper()
		if err := r.follow(m); err != nil {
			t.Fatal(err)
		}
	}
	follow()
	a, _ := run(t, m, root, seqTokens(0, 8))
	for i, h := range a.hashes {
		x.device[a.table[i]] = h
	}
	m.Release(a.table)
	again, _ := m.Take(nil, 1) // pushes the second block to the host, which wants it on the disk
	x.fetch(m)
	x.step(m, 0, Done)
	m.Commit(again[0], a.hashes[0], a.hashes[1], a.tokens[4:]) // computed once more, it leaves the host
	m.SetPriority(again[0], 0)
	m.Release(again)
	follow()
	if _, ok := m.Take(nil, 2); !ok || m.Level(a.hashes[1]) != Nowhere {
		t.Fatalf("the second block is at level %d", m.Level(a.hashes[1]))
	}
	follow()
	x.settle(m)
	if m.Level(a.hashes[1]) != Disk {
		t.Errorf("the second block is at level %d", m.Level(a.hashes[1]))
	}
	follow()
}
