package kvcache

import (
	"slices"
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

// settleLate carries out all moves, those of files at the end only, as a disk does
// that is slower than everything else.
func (x *memory) settleLate(m *Manager) {
	for x.fetch(m); ; x.fetch(m) {
		i := slices.IndexFunc(x.queue, func(mv Move) bool { return mv.Kind < Spill })
		if i < 0 {
			return
		}
		x.step(m, i, Done)
	}
}

// unreachable counts the files that are of no use, as what they build on is nowhere.
func (x *memory) unreachable(m *Manager, root blockhash.Hash) (n int) {
	for _, b := range m.tiers.disk.blocks {
		if b.indexed && b.parent != root && m.Level(b.parent) == Nowhere {
			n++
		}
	}
	return n
}

// TestBurstsLeaveFilesThatCanBeUsed lets prompts that have nothing in common push
// each other out, each at once and half of the host or more, and asks for
// all of them again.
func TestBurstsLeaveFilesThatCanBeUsed(t *testing.T) {
	const prompts, blocks = 12, 25
	for _, tc := range []struct {
		name       string
		host, disk int
		found      int // blocks of the second round, at least
	}{
		{"all fits the disk", 54, 400, (prompts - 1) * blocks},
		{"a disk of some prompts", 54, 160, 0},
		{"prompts larger than the host", 16, 400, prompts * 8},
	} {
		m, x := tierPool(t, 64, 4, Tiers{HostBlocks: tc.host, DiskBlocks: tc.disk, MinPriority: 30}), newMemory(64, tc.host)
		root := blockhash.Root("m0", "", "")
		found := 0
		for i := range 2 * prompts {
			u, below := prefill(t, m, x, root, seqTokens(10000*(i%prompts), 4*blocks+1))
			m.Release(u.table)
			x.settle(m)
			if n := x.unreachable(m, root); n > 0 || x.fault != "" {
				t.Fatalf("%s: prompt %d: %d of %d files are of no use; %s", tc.name, i, n, len(x.files), x.fault)
			}
			if i >= prompts {
				found += below.Host + below.Disk
			}
		}
		if found < tc.found {
			t.Errorf("%s: the second round found %d blocks of %d: %+v", tc.name, found, prompts*blocks, m.TierStats())
		}
	}
}

// TestSlowDiskKeepsHeads: what a disk has no time for are the ends of prompts, as far
// as the host has any.
func TestSlowDiskKeepsHeads(t *testing.T) {
	m, x := tierPool(t, 32, 4, Tiers{HostBlocks: 40, DiskBlocks: 400, MinPriority: 30}), newMemory(32, 40)
	root := blockhash.Root("m0", "", "")
	for i := range 20 {
		u := &user{hashes: chain(root, seqTokens(10000*i, 100), 4)}
		u.table, _ = m.Take(nil, 25)
		x.settleLate(m)
		parent := root
		for k, h := range u.hashes {
			x.device[u.table[k]] = h
			m.Commit(u.table[k], parent, h, seqTokens(10000*i+4*k, 4))
			parent = h
		}
		m.Release(u.table)
		for range 8 { // is how many files are written in this time
			if k := slices.IndexFunc(x.queue, func(mv Move) bool { return mv.Kind == Spill }); k >= 0 {
				x.step(m, k, Done)
				x.fetch(m)
			}
		}
		check(t, m)
	}
	x.settle(m)
	check(t, m)
	if n := x.unreachable(m, root); n > len(x.files)/20 || x.fault != "" || len(x.files) < 100 {
		t.Errorf("%d of %d files are of no use; %s", n, len(x.files), x.fault)
	}
}

// TestPromptLargerThanTheDisk keeps its beginning there.
func TestPromptLargerThanTheDisk(t *testing.T) {
	m, x := tierPool(t, 48, 4, Tiers{HostBlocks: 48, DiskBlocks: 20, MinPriority: 30}), newMemory(48, 48)
	root := blockhash.Root("m0", "", "")
	a, _ := prefill(t, m, x, root, seqTokens(0, 161))
	m.Release(a.table)
	b, _ := prefill(t, m, x, root, seqTokens(1000, 189))
	m.Release(b.table)
	x.settle(m)
	for i, h := range a.hashes {
		if _, filed := x.files[h]; filed != (i < 20) {
			t.Errorf("block %d is in a file: %v", i, filed)
		}
	}
	if st := m.TierStats(); st.Spilled != 20 || st.DiskEvicted != 0 {
		t.Errorf("%+v", st)
	}
}

// TestSpillThatFailsIsTriedAgain when the disk is used again.
func TestSpillThatFailsIsTriedAgain(t *testing.T) {
	m, x := tierPool(t, 1, 4, Tiers{HostBlocks: 2, DiskBlocks: 2, MinPriority: 30}), newMemory(1, 2)
	root := blockhash.Root("m0", "", "")
	a := single(t, m, x, root, seqTokens(0, 4))
	single(t, m, x, root, seqTokens(100, 4))
	x.step(m, 0, Done)
	x.fetch(m)
	m.SuspendDisk()
	x.step(m, 0, Failed)
	x.settle(m)
	if check(t, m); m.Level(a) != Host || len(x.files) > 0 {
		t.Fatalf("level %d, %d files", m.Level(a), len(x.files))
	}
	m.ResumeDisk()
	x.settle(m)
	if check(t, m); x.files[a] != a || m.Level(a) != Host {
		t.Errorf("%d files", len(x.files))
	}
}
