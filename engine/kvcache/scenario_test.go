package kvcache

import (
	"math/rand/v2"
	"testing"

	"tandem/engine/blockhash"
)

// TestScenario10PoolOfFourRoots runs 1,000 random prompts through one pool: plain, with a salt,
// with an adapter and with that adapter loaded again. Whatever a root finds, also the
// beginning of a block, was put there by itself.
func TestScenario10PoolOfFourRoots(t *testing.T) {
	roots := []blockhash.Hash{
		blockhash.Root("m0", "", ""), blockhash.Root("m0", "", "a"), blockhash.Root("m0", "a@1", ""), blockhash.Root("m0", "a@2", ""),
	}
	const b = 4
	m, rng := newPool(t, 512, b, true), rand.New(rand.NewPCG(10, 0))
	owner, found := map[int32]int{}, [4]int{} // who filled a block last, and hits
	for range 1000 {
		tokens, r := make([]int32, 5+rng.IntN(23)), rng.IntN(4)
		for i := range tokens {
			tokens[i] = rng.Int32N(2)
		}
		hashes := chain(roots[r], tokens, b)
		full, parent := m.Match(nil, hashes, false), roots[r]
		if len(full) > 0 {
			parent = hashes[len(full)-1]
		}
		if id, n := m.MatchPartial(parent, tokens[len(full)*b:]); n > 0 {
			full = append(full, id)
		}
		for _, id := range full {
			if found[r]++; owner[id] != r {
				t.Fatalf("root %d finds block %d of root %d", r, id, owner[id])
			}
		}
		u, hit := run(t, m, roots[r], tokens)
		for _, id := range u.table[hit/b:] {
			owner[id] = r
		}
		m.Release(u.table)
		check(t, m)
	}
	for r, n := range found {
		if n < 100 {
			t.Errorf("root %d found only %d blocks", r, n)
		}
	}
}

// TestScenario11PriorityDecides is the variant of the order of eviction: D's room comes from one
// empty block and both cached blocks of B when A's prompt has priority 80; else A's
// first block goes first.
func TestScenario11PriorityDecides(t *testing.T) {
	for _, c := range []struct {
		priority uint8
		a, b     int // blocks that D leaves
	}{{80, 1, 0}, {DefaultPriority, 0, 1}} {
		m, root := newPool(t, 4, 4, false), blockhash.Root("m0", "", "")
		a, _ := run(t, m, root, seqTokens(0, 9))
		for _, id := range a.table[:2] {
			m.SetPriority(id, c.priority)
		}
		m.Release(a.table)
		b, _ := run(t, m, root, seqTokens(100, 9))
		m.Release(b.table)
		if m.Free()-m.Reusable() != 1 || len(m.Match(nil, a.hashes, false)) != 1 || len(m.Match(nil, b.hashes, false)) != 2 {
			t.Fatalf("priority %d: before D one block is empty, one of A's is left and both of B", c.priority)
		}
		before := m.Evicted()
		d, _ := run(t, m, root, seqTokens(200, 9))
		check(t, m, d)
		left := [2]int{}
		for i, hashes := range [][]blockhash.Hash{a.hashes, b.hashes} {
			for _, h := range hashes {
				if _, ok := m.Find(h); ok {
					left[i]++
				}
			}
		}
		if m.Evicted() != before+2 || left != [2]int{c.a, c.b} {
			t.Errorf("priority %d: %d evicted, %v blocks of A and B are left, want %d and %d", c.priority, m.Evicted()-before, left, c.a, c.b)
		}
	}
}

// TestScenario28TenThousandOperations follows a pool by its events, sometimes too late: that is one
// gap, and the snapshot behind it is right.
func TestScenario28TenThousandOperations(t *testing.T) {
	m, err := New(Config{Blocks: 24, BlockTokens: 2, Events: 64, Tiers: Tiers{HostBlocks: 8}})
	if err != nil {
		t.Fatal(err)
	}
	rng, root := rand.New(rand.NewPCG(28, 0)), blockhash.Root("m", "", "")
	var users []*user
	near, far := &replica{}, &replica{} // far looks seldom
	reads, lost := 0, 0
	for op := range 10000 {
		switch n := rng.IntN(100); {
		case n < 55:
			tokens := make([]int32, 2+rng.IntN(14))
			for i := range tokens {
				tokens[i] = rng.Int32N(2)
			}
			for len(users) > 0 && m.Free() < 8 {
				m.Release(users[0].table)
				users = users[1:]
			}
			u, _ := run(t, m, root, tokens)
			users = append(users, u)
		case n < 90 && len(users) > 0:
			m.Release(users[0].table)
			users = users[1:]
		case n == 99:
			m.Reset()
		}
		for _, mv := range m.TakeMoves(nil) {
			m.Moved(mv.Job, Done)
		}
		if err := near.follow(m); err != nil {
			t.Fatalf("operation %d: %v", op, err)
		}
		if rng.IntN(25) == 0 {
			gaps := far.gaps
			if err := far.follow(m); err != nil {
				t.Fatalf("operation %d: %v", op, err)
			}
			reads++
			if far.gaps > gaps {
				lost++
			}
			if far.gaps > gaps+1 {
				t.Fatalf("operation %d: %d gaps for one", op, far.gaps-gaps)
			}
		}
		if err := m.Check(tablesOf(users)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d reads, %d of them too late", reads, lost)
	if near.gaps > 1 || lost < 10 || lost == reads {
		t.Errorf("%d gaps of the reader that never falls behind; %d of %d reads of the other were too late", near.gaps, lost, reads)
	}
}
