package kvcache

import (
	"slices"
	"testing"

	"tandem/engine/blockhash"
)

// Moves whose end comes when things have changed meanwhile.

// single commits the content of one block and lets go of it.
func single(t *testing.T, m *Manager, x *memory, root blockhash.Hash, tokens []int32) blockhash.Hash {
	t.Helper()
	u, _ := run(t, m, root, tokens)
	x.fetch(m) // what this one pushes out is read before it writes
	x.device[u.table[0]] = u.hashes[0]
	m.Release(u.table)
	return u.hashes[0]
}

// TestSpillThatEndsAfterAReset: what it wrote is of weights that are gone.
func TestSpillThatEndsAfterAReset(t *testing.T) {
	m, x := tierPool(t, 1, 4, Tiers{HostBlocks: 1, DiskBlocks: 2, MinPriority: 30}), newMemory(1, 1)
	root := blockhash.Root("m0", "", "")
	a := single(t, m, x, root, seqTokens(0, 4))
	single(t, m, x, root, seqTokens(100, 4)) // pushes it to the host, which wants it on the disk
	x.step(m, 0, Done)
	x.fetch(m)
	if len(x.queue) != 1 || x.queue[0].Kind != Spill || x.queue[0].Hash != a {
		t.Fatalf("%+v is not what is to be tested", x.queue)
	}
	m.Reset()
	x.settle(m)
	check(t, m)
	if st := m.TierStats(); m.Level(a) != Nowhere || st.Disk != 0 || len(x.files) != 0 {
		t.Errorf("level %d, %d on the disk, %d files", m.Level(a), st.Disk, len(x.files))
	}
}

// TestOffloadThatFailsAfterAnother to the same slot: what is there since is not lost.
func TestOffloadThatFailsAfterAnother(t *testing.T) {
	m, x := tierPool(t, 1, 4, Tiers{HostBlocks: 4, MinPriority: 30}), newMemory(1, 4)
	root := blockhash.Root("m0", "", "")
	a := single(t, m, x, root, seqTokens(0, 4))
	single(t, m, x, root, seqTokens(100, 4))
	first, u := x.queue[0], &user{}
	u.table, _ = m.Take(nil, 1)
	m.Commit(u.table[0], root, a, seqTokens(0, 4)) // computed once more: it leaves the host
	m.Release(u.table)
	single(t, m, x, root, seqTokens(200, 4))
	if last := x.queue[len(x.queue)-1]; first.Hash != a || last.Hash != a || last.Slot != first.Slot || m.Level(a) != Host {
		t.Fatalf("%+v are not what is to be tested", x.queue)
	}
	x.step(m, 0, Failed)
	if check(t, m); m.Level(a) != Host {
		t.Errorf("the copy that did not fail is at level %d", m.Level(a))
	}
	x.settle(m)
	check(t, m)
}

// TestDemotedContentIsNotFiled: what went to the host and does not matter since is
// given up without a write.
func TestDemotedContentIsNotFiled(t *testing.T) {
	m, x := tierPool(t, 1, 4, Tiers{HostBlocks: 2, DiskBlocks: 4, MinPriority: 30}), newMemory(1, 2)
	root := blockhash.Root("m0", "", "")
	a := single(t, m, x, root, seqTokens(0, 4))
	b := single(t, m, x, root, seqTokens(100, 4))
	if m.Level(a) != Host || !m.Demote(a) {
		t.Fatalf("level %d", m.Level(a))
	}
	x.settle(m)
	single(t, m, x, root, seqTokens(200, 4))
	single(t, m, x, root, seqTokens(300, 4)) // the host has no slot left
	x.settle(m)
	check(t, m)
	filed := slices.ContainsFunc(x.orders, func(mv Move) bool { return mv.Kind == Spill && mv.Hash == a })
	if filed || m.Level(a) != Nowhere || m.Level(b) == Nowhere {
		t.Errorf("filed %v, levels %d and %d", filed, m.Level(a), m.Level(b))
	}
}
