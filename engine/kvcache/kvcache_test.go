package kvcache

import (
	"iter"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
)

// user is one table over a pool, with the tokens its blocks stand for.
type user struct {
	table  []int32
	hashes []blockhash.Hash
	tokens []int32
}

func tablesOf(users []*user) iter.Seq[[]int32] {
	return func(yield func([]int32) bool) {
		for _, u := range users {
			if !yield(u.table) {
				return
			}
		}
	}
}

func chain(root blockhash.Hash, tokens []int32, b int) (hs []blockhash.Hash) {
	h := root
	for i := 0; i+b <= len(tokens); i += b {
		h = blockhash.Next(h, tokens[i:i+b])
		hs = append(hs, h)
	}
	return hs
}

func seqTokens(from, n int) []int32 {
	t := make([]int32, n)
	for i := range t {
		t[i] = int32(from + i)
	}
	return t
}

// run matches, takes, commits and returns a user for tokens, as a prefill of
// one request does, and how many tokens were found.
func run(t testing.TB, m *Manager, root blockhash.Hash, tokens []int32) (*user, int) {
	t.Helper()
	b := m.cfg.BlockTokens
	u := &user{tokens: tokens, hashes: chain(root, tokens, b)}
	u.table = m.Match(u.table, u.hashes[:(len(tokens)-1)/b], false)
	hit := len(u.table)
	m.Share(u.table)
	var ok bool
	if u.table, ok = m.Take(u.table, (len(tokens)+b-1)/b-hit); !ok {
		t.Fatalf("no room for %d tokens", len(tokens))
	}
	parent := root
	for i, h := range u.hashes {
		if i >= hit {
			m.Commit(u.table[i], parent, h, tokens[i*b:(i+1)*b])
		}
		parent = h
	}
	return u, hit * b
}

func newPool(t testing.TB, n, b int, partial bool) *Manager {
	t.Helper()
	m, err := New(Config{Blocks: n, BlockTokens: b, Partial: partial})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func check(t testing.TB, m *Manager, users ...*user) {
	t.Helper()
	if err := m.Check(tablesOf(users)); err != nil {
		t.Fatal(err)
	}
}

func TestEvictionTakesTailsFirst(t *testing.T) {
	m := newPool(t, 4, 4, false)
	root := blockhash.Root("m0", "", "")
	a, _ := run(t, m, root, seqTokens(0, 9))
	m.Release(a.table)
	b, _ := run(t, m, root, seqTokens(100, 9))
	m.Release(b.table)
	check(t, m)
	c, hit := run(t, m, root, seqTokens(0, 5))
	if hit != 4 {
		t.Errorf("A's first block: %d tokens found, want 4", hit)
	}
	m.Release(c.table)
	if got := m.Match(nil, a.hashes, false); len(got) != 1 {
		t.Errorf("A's chain has %d blocks left, want 1", len(got))
	}
}

// A table that let go of its beginning, bit by bit, leaves its blocks in the order of
// one that did not: the last is given up first.
func TestReleasedHeadsOutliveTheRest(t *testing.T) {
	m := newPool(t, 8, 4, false)
	a, _ := run(t, m, blockhash.Root("m0", "", ""), seqTokens(0, 24))
	for _, c := range []struct{ n, released int }{{2, 2}, {2, 0}, {4, 2}, {0, 0}} {
		if got := m.ReleaseHead(a.table, c.n); got != c.released {
			t.Errorf("%d of the first %d blocks released", got, c.n)
		}
	}
	if m.Free() != 6 || a.table[3] != -1 || a.table[4] < 0 {
		t.Fatalf("%d blocks free, table %v", m.Free(), a.table)
	}
	m.Release(a.table)
	check(t, m)
	for left := 5; left >= 0; left-- {
		if _, ok := m.Take(nil, 1+2*(left/5)); !ok {
			t.Fatal("no room")
		}
		if got := m.Match(nil, a.hashes, false); len(got) != left {
			t.Fatalf("%d blocks can be found, want %d", len(got), left)
		}
	}
}

func TestPriorityKeepsBlocks(t *testing.T) {
	for _, p := range []uint8{DefaultPriority, 80} {
		m := newPool(t, 4, 4, false)
		root := blockhash.Root("m0", "", "")
		a, _ := run(t, m, root, seqTokens(0, 9))
		m.SetPriority(a.table[1], p)
		m.Release(a.table)
		b, _ := run(t, m, root, seqTokens(100, 9))
		m.Release(b.table)
		check(t, m)
		d, _ := run(t, m, root, seqTokens(200, 9))
		check(t, m, d)
		kept := len(m.Match(nil, a.hashes, false)) > 0
		if want := p > DefaultPriority; kept != want {
			t.Errorf("priority %d: A's first block kept = %v, want %v", p, kept, want)
		}
		if n := len(m.Match(nil, b.hashes, false)); p > DefaultPriority && n != 0 {
			t.Errorf("priority %d: %d blocks of B survived", p, n)
		}
	}
}

func TestTwinKeepsOneEntryAndIsRefreshed(t *testing.T) {
	m := newPool(t, 6, 4, false)
	root := blockhash.Root("m0", "", "")
	tok := seqTokens(0, 8)
	hs := chain(root, tok, 4)
	a := &user{}
	b := &user{}
	a.table, _ = m.Take(nil, 2)
	b.table, _ = m.Take(nil, 2)
	m.Commit(a.table[0], root, hs[0], tok[:4])
	m.Commit(b.table[0], root, hs[0], tok[:4])
	if m.Indexed(b.table[0]) {
		t.Fatal("two blocks indexed under one hash")
	}
	m.Release(a.table)
	m.Commit(b.table[1], hs[0], hs[1], tok[4:])
	check(t, m, b)
	m.Release(b.table)
	check(t, m)
	if got := m.Match(nil, hs, false); !slices.Equal(got, []int32{a.table[0], b.table[1]}) {
		t.Errorf("chain is %v", got)
	}
}

// TestSharedTwinKeepsTheOrder has two tables with one old block in them, whose
// content was indexed anew since, as after a reset.
func TestSharedTwinKeepsTheOrder(t *testing.T) {
	m := newPool(t, 8, 4, false)
	root := blockhash.Root("m0", "", "")
	tok := seqTokens(0, 9)
	a, _ := run(t, m, root, tok)
	b := &user{table: slices.Clone(a.table[:1])}
	m.Share(b.table)
	b.table, _ = m.Take(b.table, 1)
	m.Commit(b.table[1], a.hashes[0], a.hashes[1], tok[4:8])
	m.Reset()
	c, _ := run(t, m, root, tok)
	m.Release(c.table)
	check(t, m, a, b)
	m.Release(b.table)
	check(t, m, a)
	m.Release(a.table)
	check(t, m)
}

// TestCopyEndsAfterItsParentsWereFreed lets the source of a copy outlive the
// tables: its parents must still be evicted later.
func TestCopyEndsAfterItsParentsWereFreed(t *testing.T) {
	m := newPool(t, 4, 2, false)
	u, _ := run(t, m, blockhash.Hash{}, seqTokens(0, 6))
	source := u.table[2]
	m.BeginCopy(source)
	m.Release(u.table)
	if m.Free() != 3 || m.Unreferenced(source) {
		t.Fatalf("%d blocks are free while one is copied", m.Free())
	}
	m.EndCopy(source)
	if err := m.Check(tablesOf(nil)); err != nil || m.Free() != 4 {
		t.Fatalf("%d free: %v", m.Free(), err)
	}
	table, _ := m.Take(nil, 2) // the empty one, then the leaf
	if !slices.Contains(table, source) {
		t.Errorf("took %v, the leaf is %d", table, source)
	}
}

// TestCopyOfATwinEndsAfterItsParentsWereFreed does the same with a source whose
// content is indexed in another block, which the end of the copy refreshes.
func TestCopyOfATwinEndsAfterItsParentsWereFreed(t *testing.T) {
	m := newPool(t, 6, 2, false)
	tokens := seqTokens(0, 6)
	indexed, _ := run(t, m, blockhash.Hash{}, tokens)
	twins := &user{tokens: tokens, hashes: indexed.hashes}
	twins.table, _ = m.Take(nil, 3)
	var parent blockhash.Hash
	for i, h := range twins.hashes {
		m.Commit(twins.table[i], parent, h, tokens[2*i:2*i+2])
		parent = h
	}
	m.BeginCopy(twins.table[2])
	m.Release(indexed.table)
	source := twins.table[2]
	m.Release(twins.table)
	m.EndCopy(source)
	if err := m.Check(tablesOf(nil)); err != nil || m.Free() != 6 {
		t.Fatalf("%d free: %v", m.Free(), err)
	}
}

func TestPartialPrefersLongestThenLowest(t *testing.T) {
	m := newPool(t, 8, 8, true)
	root := blockhash.Root("m0", "", "")
	a, _ := run(t, m, root, []int32{1, 2, 3, 4, 5, 6, 7, 8})
	b, _ := run(t, m, root, []int32{1, 2, 3, 4, 9, 9, 9, 9})
	for _, tc := range []struct {
		tokens []int32
		id     int32
		n      int
	}{
		{[]int32{1, 2, 3, 4, 5, 6, 0, 0}, a.table[0], 6},
		{[]int32{1, 2, 3, 4, 9, 9, 1}, b.table[0], 6},
		{[]int32{1, 2, 3, 4, 0}, min(a.table[0], b.table[0]), 4},
		{[]int32{1, 2, 0}, min(a.table[0], b.table[0]), 2},
		{[]int32{1, 0, 0}, -1, 0},
		{[]int32{1}, -1, 0},
		{nil, -1, 0},
	} {
		if id, n := m.MatchPartial(root, tc.tokens); id != tc.id || n != tc.n {
			t.Errorf("%v: block %d, %d tokens; want %d, %d", tc.tokens, id, n, tc.id, tc.n)
		}
	}
	if id, _ := m.MatchPartial(blockhash.Root("m0", "", "salt"), []int32{1, 2, 3, 4}); id != -1 {
		t.Error("another root's block matched")
	}
}

// Two parents that agree in the bytes that the fingerprint uses.
func TestPartialChecksTheWholeParent(t *testing.T) {
	m := newPool(t, 4, 4, true)
	a, b := blockhash.Hash{15: 1}, blockhash.Hash{15: 2}
	table, _ := m.Take(nil, 1)
	m.Commit(table[0], a, blockhash.Next(a, seqTokens(0, 4)), seqTokens(0, 4))
	if id, _ := m.MatchPartial(b, seqTokens(0, 3)); id != -1 {
		t.Error("a block of another parent matched")
	}
	if id, n := m.MatchPartial(a, seqTokens(0, 3)); id != table[0] || n != 3 {
		t.Errorf("block %d, %d tokens", id, n)
	}
}

func TestResetForgetsContent(t *testing.T) {
	m := newPool(t, 4, 4, true)
	root := blockhash.Root("m0", "", "")
	a, _ := run(t, m, root, seqTokens(0, 8))
	b, _ := run(t, m, root, seqTokens(50, 4))
	m.Release(b.table)
	m.Reset()
	check(t, m, a)
	if got := m.Match(nil, a.hashes, true); len(got) != 0 || m.Reusable() != 0 || m.Epoch() != 1 {
		t.Errorf("after reset: %d matched, %d reusable, epoch %d", len(got), m.Reusable(), m.Epoch())
	}
	m.Release(a.table)
	if m.Free() != 4 {
		t.Errorf("free %d", m.Free())
	}
}

// TestRandomOperations keeps a dumb model beside the pool: whatever a chain
// matches must be what was committed under the same root and tokens.
func TestRandomOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := 1 << rapid.IntRange(0, 3).Draw(t, "logB")
		m, err := New(Config{
			Blocks: rapid.IntRange(1, 24).Draw(t, "N"), BlockTokens: b, Partial: rapid.Bool().Draw(t, "partial"),
		})
		if err != nil {
			t.Fatal(err)
		}
		roots := []blockhash.Hash{blockhash.Root("m", "", ""), blockhash.Root("m", "", "s"), blockhash.Root("m", "s", "")}
		content := make([]blockhash.Hash, m.Total()) // what each block was last filled with
		var users []*user
		now := time.Duration(1)
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				u := &user{tokens: rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 6*b).Draw(t, "tokens")}
				root := rapid.SampledFrom(roots).Draw(t, "root")
				u.hashes = chain(root, u.tokens, b)
				u.table = m.Match(nil, u.hashes, false)
				for i, id := range u.table {
					if content[id] != u.hashes[i] {
						t.Fatalf("block %d matched for content it does not have", id)
					}
				}
				hit := len(u.table)
				m.Share(u.table)
				var ok bool
				if u.table, ok = m.Take(u.table, (len(u.tokens)+b-1)/b-hit); !ok {
					m.Release(u.table)
					return
				}
				for i := hit; i < len(u.hashes); i++ {
					parent := root
					if i > 0 {
						parent = u.hashes[i-1]
					}
					content[u.table[i]] = u.hashes[i]
					m.Commit(u.table[i], parent, u.hashes[i], u.tokens[i*b:(i+1)*b])
				}
				users = append(users, u)
			},
			"end": func(t *rapid.T) {
				if len(users) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(users)-1).Draw(t, "i")
				m.Release(users[i].table)
				users = slices.Delete(users, i, i+1)
			},
			"priority": func(t *rapid.T) {
				m.SetPriority(int32(rapid.IntRange(0, m.Total()-1).Draw(t, "id")), uint8(rapid.IntRange(0, 100).Draw(t, "p")))
			},
			"retain": func(t *rapid.T) {
				retainAny(t, m, users, now)
			},
			"expire": func(t *rapid.T) {
				now = passTime(t, m, now)
			},
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					m.Reset()
				}
			},
			"": func(t *rapid.T) {
				if err := m.Check(tablesOf(users)); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func TestTakeAndReleaseDoNotAllocate(t *testing.T) {
	m := newPool(t, 64, 16, true)
	table := make([]int32, 0, 64)
	n := testing.AllocsPerRun(100, func() {
		table, _ = m.Take(table[:0], 64)
		m.Release(table)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
