package kvcache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
)

// gone takes blocks until nothing of the chains is left, and returns the hashes in
// the order in which they went.
func gone(t *testing.T, m *Manager, chains ...[]blockhash.Hash) (order []blockhash.Hash) {
	t.Helper()
	all := slices.Concat(chains...)
	m.Take(nil, m.Free()-m.Reusable())
	for m.Reusable() > 0 {
		m.Take(nil, 1)
		for _, h := range all {
			if m.Level(h) == Nowhere && !slices.Contains(order, h) {
				order = append(order, h)
			}
		}
	}
	return order
}

// A priority holds until its time is over, then the block is the newest of those
// with the default; what it raised falls back to what was set there.
func TestPrioritiesEnd(t *testing.T) {
	const second = time.Second
	root := blockhash.Root("m0", "", "")
	for _, c := range []struct {
		name string
		at   time.Duration
		want string // which of a1 a2 a3, b1 b2 goes first, and so on
	}{
		{"before the end", 9 * second, "b2 b1 a3 a2 a1"},
		{"after the end of the leaf", 10 * second, "b2 b1 a3 a2 a1"},
		{"after the end of all", 20 * second, "b2 b1 a3 a2 a1"},
	} {
		m := newPool(t, 8, 4, false)
		a, _ := run(t, m, root, seqTokens(0, 12))
		m.Release(a.table)
		b, _ := run(t, m, root, seqTokens(100, 8))
		m.Release(b.table)
		m.Retain(a.hashes[2], 80, 10*second)
		m.Retain(a.hashes[0], 60, 20*second)
		m.Expire(c.at)
		check(t, m)
		name := map[blockhash.Hash]string{}
		for i, h := range a.hashes {
			name[h] = []string{"a1", "a2", "a3"}[i]
		}
		for i, h := range b.hashes {
			name[h] = []string{"b1", "b2"}[i]
		}
		got := ""
		for _, h := range gone(t, m, a.hashes, b.hashes) {
			got += name[h] + " "
		}
		if got != c.want+" " {
			t.Errorf("%s: %swent in this order, want %s", c.name, got, c.want)
		}
	}
}

func priorities(m *Manager, hs []blockhash.Hash) (out []int) {
	for _, h := range hs {
		out = append(out, int(m.priorityOf(h)))
	}
	return out
}

func TestRetention(t *testing.T) {
	type set struct {
		block int
		p     uint8
		until time.Duration
	}
	for _, c := range []struct {
		name string
		sets []set
		at   time.Duration
		want []int
	}{
		{"a leaf raises what it builds on", []set{{3, 80, 0}}, 0, []int{80, 80, 80, 80}},
		{"a new setting replaces the old", []set{{3, 80, 0}, {3, 20, 0}}, 0, []int{35, 35, 35, 20}},
		{"but not below what builds on it", []set{{3, 80, 0}, {1, 20, 0}}, 0, []int{80, 80, 80, 80}},
		{"and counts when that falls", []set{{3, 80, 0}, {1, 20, 0}, {3, 10, 0}}, 0, []int{35, 35, 35, 10}},
		{"its own end", []set{{3, 80, 5}}, 5, []int{35, 35, 35, 35}},
		{"not before", []set{{3, 80, 5}}, 4, []int{80, 80, 80, 80}},
		{"a parent keeps its own", []set{{1, 60, 0}, {3, 80, 5}}, 5, []int{60, 60, 35, 35}},
		{"a low one rises", []set{{3, 0, 5}}, 5, []int{35, 35, 35, 35}},
		{"a later setting has a later end", []set{{3, 80, 5}, {3, 80, 9}}, 5, []int{80, 80, 80, 80}},
		{"a setting for good has none", []set{{3, 80, 5}, {3, 70, 0}}, 9, []int{70, 70, 70, 70}},
		{"all at one time", []set{{0, 80, 5}, {1, 80, 5}, {2, 80, 5}, {3, 80, 5}}, 5, []int{35, 35, 35, 35}},
		{"above 100 is 100", []set{{0, 200, 0}}, 0, []int{100, 35, 35, 35}},
		{"of nothing", []set{{9, 80, 5}}, 9, []int{35, 35, 35, 35}},
	} {
		for _, freed := range []bool{false, true} {
			m := newPool(t, 6, 4, true)
			a, _ := run(t, m, blockhash.Root("m0", "", ""), seqTokens(0, 16))
			users := []*user{a}
			if freed {
				m.Release(a.table)
				users = nil
			}
			for _, s := range c.sets {
				h := blockhash.Hash{1}
				if s.block < len(a.hashes) {
					h = a.hashes[s.block]
				}
				m.Retain(h, s.p, s.until)
			}
			m.Expire(c.at)
			check(t, m, users...)
			if got := priorities(m, a.hashes); !slices.Equal(got, c.want) {
				t.Errorf("%s, freed %v: %v, want %v", c.name, freed, got, c.want)
			}
		}
	}
}

// A setting goes where its content goes, ends there, and a file is not told of one
// that ends.
func TestRetentionFollowsContent(t *testing.T) {
	m, x := tierPool(t, 4, 4, Tiers{HostBlocks: 16, DiskBlocks: 16, MinPriority: 30}), newMemory(4, 16)
	root := blockhash.Root("m0", "", "")
	m.SuspendDisk() // or it would have files at once
	a, _ := prefill(t, m, x, root, seqTokens(0, 16))
	m.Release(a.table)
	m.Retain(a.hashes[3], 80, 10)
	m.Retain(a.hashes[0], 60, 0)
	for i := range 2 {
		u, _ := prefill(t, m, x, root, seqTokens(100+100*i, 16))
		m.Release(u.table)
	}
	if l := m.Level(a.hashes[3]); l != Host {
		t.Fatalf("level %d", l)
	}
	if got := priorities(m, a.hashes); !slices.Equal(got, []int{80, 80, 80, 80}) {
		t.Errorf("in the host: %v", got)
	}
	m.Expire(10)
	check(t, m)
	if got := priorities(m, a.hashes); !slices.Equal(got, []int{60, 35, 35, 35}) {
		t.Errorf("after the end: %v", got)
	}
	m.Retain(a.hashes[2], 50, 20)
	back, below := prefill(t, m, x, root, seqTokens(0, 16))
	if below.Host == 0 {
		t.Fatalf("%+v", below)
	}
	if got := priorities(m, a.hashes[:3]); !slices.Equal(got, []int{60, 50, 50}) {
		t.Errorf("back on the device: %v", got)
	}
	m.Expire(20)
	check(t, m, back)
	if got := priorities(m, a.hashes[:3]); !slices.Equal(got, []int{60, 35, 35}) {
		t.Errorf("after the end there: %v", got)
	}
	m.Retain(a.hashes[1], 80, 30)
	m.Release(back.table)
	m.ResumeDisk()
	x.settle(m)
	said := map[blockhash.Hash]uint8{}
	for _, mv := range m.Remains() {
		said[mv.Hash] = mv.Priority
	}
	if said[a.hashes[0]] != 60 || said[a.hashes[1]] != DefaultPriority {
		t.Errorf("the files say %d and %d", said[a.hashes[0]], said[a.hashes[1]])
	}
}

// What somebody wants kept is no dead tail.
func TestDemoteSparesWhatIsRetained(t *testing.T) {
	m := newPool(t, 4, 4, false)
	a, _ := run(t, m, blockhash.Root("m0", "", ""), seqTokens(0, 8))
	m.Release(a.table)
	m.Retain(a.hashes[1], 36, 0)
	if m.Demote(a.hashes[1]) {
		t.Error("demoted")
	}
	m.Retain(a.hashes[1], 35, 0)
	if !m.Demote(a.hashes[1]) {
		t.Error("not demoted")
	}
	check(t, m)
}

// passTime ends what is over some time later.
func passTime(t *rapid.T, m *Manager, now time.Duration) time.Duration {
	now += time.Duration(rapid.IntRange(0, 4).Draw(t, "passed"))
	m.Expire(now)
	if err := m.overdue(now); err != nil {
		t.Fatal(err)
	}
	return now
}

// retainAny sets the priority of some content, which may be gone.
func retainAny(t *rapid.T, m *Manager, users []*user, now time.Duration) {
	if len(users) == 0 {
		t.Skip()
	}
	u := rapid.SampledFrom(users).Draw(t, "user")
	if len(u.hashes) == 0 {
		t.Skip()
	}
	until := time.Duration(0)
	if rapid.Bool().Draw(t, "ends") {
		until = now + time.Duration(rapid.IntRange(1, 9).Draw(t, "duration"))
	}
	h, p := rapid.SampledFrom(u.hashes).Draw(t, "hash"), uint8(rapid.IntRange(0, 100).Draw(t, "p"))
	m.Retain(h, p, until)
	if m.Level(h) != Nowhere && m.priorityOf(h) < p {
		t.Fatalf("priority %d set, it has %d", p, m.priorityOf(h))
	}
}

// overdue says what should have ended by now.
func (m *Manager) overdue(now time.Duration) error {
	trees := []*tree{&m.tree}
	if m.tiers != nil {
		for _, s := range m.tiers.shelves() {
			if s != nil {
				trees = append(trees, &s.tree)
			}
		}
	}
	for _, t := range trees {
		for i := range t.blocks {
			if b := &t.blocks[i]; b.until > 0 && b.until <= now {
				return fmt.Errorf("block %d was to have priority %d until %v, it is %v", i, b.own, b.until, now)
			}
		}
	}
	return nil
}
