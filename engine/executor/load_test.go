package executor

import "testing"

// A turn that waits counts what the index has not: with nearly everything reused,
// whole prompts would make a rank look many times busier than it is.
func TestLoadExpectsReuse(t *testing.T) {
	m, q := moving(t, nil)
	a, b := m.ranks[0], m.ranks[1]
	a.submit(q, nil)
	if l := a.Load(); l.Waiting != 1 || l.QueuedPrefill != len(q.Prompt)-40 || l.UncachedTokens != len(q.Prompt)-40 || l.PromptTokens != len(q.Prompt) {
		t.Errorf("the rank that has 40 of %d tokens: %+v", len(q.Prompt), l)
	}
	b.submit(q, nil)
	if l := b.Load(); l.QueuedPrefill != len(q.Prompt) || l.UncachedTokens != len(q.Prompt) {
		t.Errorf("the rank that has none: %+v", l)
	}
	a.drainQueue(0)
	b.drainQueue(0)
	m.verifyEnd(t)
}

// Blocks that another rank has pulled go before those that only this rank has,
// although they were used later.
func TestMovedBlocksGoFirst(t *testing.T) {
	m, q := moving(t, nil)
	a, b := m.ranks[0], m.ranks[1]
	stays := count(33, 17)
	a.submit(ask(8, 1, stays...), nil)
	a.drainQueue(0)
	b.submit(q, m.lend(0, 77, q))
	m.settle()
	if got := a.Cached(q.Prompt, ""); got != 40 {
		t.Fatalf("%d of 40 tokens are still here", got)
	}
	a.submit(ask(9, 1, count(66, 110)...), nil) // needs three blocks more than are empty
	a.drainQueue(0)
	if kept, moved := a.Cached(stays, ""), a.Cached(q.Prompt, ""); kept != 16 || moved >= 40 || moved == 0 {
		t.Errorf("%d of 16 tokens that stay are cached, %d of 40 that moved", kept, moved)
	}
	m.verifyEnd(t)
}
