package executor

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// moving returns two ranks, the first of which has run a prompt of 40 tokens
// and so has ten full blocks of the conversation.
func moving(t *testing.T, change func(*Config)) (*movers, *request.Request) {
	t.Helper()
	cfg := holdConfig()
	if change != nil {
		change(&cfg)
	}
	m := newMovers(t, cfg, cfg)
	m.ranks[0].submit(ask(1, 4, count(0, 40)...), nil)
	m.ranks[0].drainQueue(0)
	next := append(count(0, 40), m.ranks[0].clients[1].tokens...)
	return m, ask(2, 6, append(next, 60, 61, 62)...)
}

func (m *movers) verifyEnd(t *testing.T) {
	t.Helper()
	for _, r := range m.ranks {
		r.verifyEnd(true)
	}
}

func TestLoanMovesAConversation(t *testing.T) {
	for _, kind := range []request.Kind{request.Full, request.ContextOnly} {
		m, q := moving(t, nil)
		q.Kind = kind
		if kind == request.ContextOnly {
			q.TransferID = 7
		}
		a, b := m.ranks[0], m.ranks[1]
		if a.Cached(q.Prompt, "") != 40 || b.Cached(q.Prompt, "") != 0 || a.Cached(q.Prompt, "other") != 0 || a.Cached(q.Prompt[:40], "") != 36 || a.Cached(nil, "") != 0 {
			t.Fatalf("cached %d", a.Cached(q.Prompt, ""))
		}
		h := m.lend(0, 77, q)
		if h == nil || h.PromptTokens != 40 || a.Load().Transfer != 1 || a.Stats().BlocksLeased != 10 {
			t.Fatalf("lent %+v", h)
		}
		cl := b.submit(q, h)
		if l := b.Load(); l.Active != 1 || l.Waiting != 1 || l.QueuedPrefill != len(q.Prompt)-40 || l.UncachedTokens != len(q.Prompt) {
			t.Errorf("waits to borrow: %+v", l)
		}
		b.step(0)
		if l := b.Load(); l.Waiting != 0 || l.QueuedPrefill != len(q.Prompt)-40 || l.FreeBlocks != 40-10 {
			t.Errorf("pulls: %+v", l)
		}
		for len(m.order) > 0 {
			m.moves[77].advance()
		}
		if b.Cached(q.Prompt, "") != 40 || len(cl.loans) != 1 {
			t.Errorf("%d tokens are here after the pull, outcome %+v", b.Cached(q.Prompt, ""), cl.loans)
		}
		m.settle()
		m.verifyEnd(t)
		if want := []Borrowed{{ID: 2, Transfer: 77, OK: true, Pulled: true}}; !slices.Equal(cl.loans, want) {
			t.Errorf("outcome %+v", cl.loans)
		}
		if cl.usage.CachedTokens != 40 || b.prefilled != len(q.Prompt)-40 || m.blocks != 10 {
			t.Errorf("%+v, %d prefilled, %d blocks moved", cl.usage, b.prefilled, m.blocks)
		}
		if st := b.Stats(); st.Borrowed != 1 || st.BorrowFailed != 0 || st.Recomputed != 0 || st.PrefixHitTokens != 40 {
			t.Errorf("borrower %+v", st)
		}
		if st := a.Stats(); st.Lent != 1 || st.LeasesExpired != 0 {
			t.Errorf("lender %+v", st)
		}
		if got := b.Cached(q.Prompt, ""); got != len(q.Prompt)/4*4-4+4*min(1, len(q.Prompt)%4) {
			t.Errorf("the new home has %d of %d tokens", got, len(q.Prompt))
		}
	}
}

// TestLoanThatFails is the table of what may go wrong: the request must
// prefill all on its own, with recomputing of hand-overs off.
func TestLoanThatFails(t *testing.T) {
	end := func(e transfer.PullEvent, moved int) func(*movers) {
		return func(m *movers) {
			m.ranks[1].step(m.now)
			v := m.moves[77]
			for v.moved < moved {
				v.advance()
			}
			v.end(e)
		}
	}
	for _, tc := range []struct {
		name   string
		tamper func(*transfer.Handle)
		after  func(*movers)
	}{
		{"another prompt", func(h *transfer.Handle) { h.Hashes[3][0]++ }, nil},
		{"another salt", func(h *transfer.Handle) { h.Root[0]++ }, nil},
		{"another layout", func(h *transfer.Handle) { h.Layout.Layers++ }, nil},
		{"half a block", func(h *transfer.Handle) { h.PromptTokens-- }, nil},
		{"nothing offered", func(h *transfer.Handle) { h.PromptTokens, h.Hashes = 0, nil }, nil},
		{"the whole prompt and more", func(h *transfer.Handle) { h.PromptTokens, h.Hashes = 48, append(h.Hashes, h.Root, h.Root) }, nil},
		{"no id", func(h *transfer.Handle) { h.ID = 0 }, nil},
		{"rejected", nil, func(m *movers) { m.ranks[0].Abort(0, 77); m.ranks[0].collect() }},
		{"broken", nil, end(transfer.PullEvent{Code: "transfer_failed"}, 5)},
		{"stale", nil, end(transfer.PullEvent{Code: transfer.RejectStale}, 10)},
		{"silent", nil, func(m *movers) { m.ranks[1].step(0); m.now = 2 * m.ranks[1].cfg.Attach }},
		{"expired", nil, func(m *movers) { m.now = 2 * m.ranks[0].cfg.Lease; m.ranks[0].step(m.now) }},
	} {
		m, q := moving(t, func(c *Config) { c.LocalRecompute = false })
		h := m.lend(0, 77, q)
		if tc.tamper != nil {
			tc.tamper(h)
		}
		cl := m.ranks[1].submit(q, h)
		if tc.after != nil {
			tc.after(m)
		}
		m.settle()
		m.verifyEnd(t)
		st := m.ranks[1].Stats()
		if len(cl.loans) != 1 || cl.loans[0].OK || cl.loans[0].Pulled || cl.finish != request.FinishLength || st.BorrowFailed != 1 || st.Recomputed != 0 {
			t.Errorf("%s: %+v, ended %q, %+v", tc.name, cl.loans, cl.finish, st)
		}
		if cl.usage.CachedTokens != 0 || m.ranks[1].prefilled != len(q.Prompt) {
			t.Errorf("%s: %+v, %d prefilled", tc.name, cl.usage, m.ranks[1].prefilled)
		}
		if got := m.ranks[1].Cached(q.Prompt, ""); got < 44 {
			t.Errorf("%s: only %d tokens can be shared", tc.name, got)
		}
	}
}

func TestLoanNotNeeded(t *testing.T) {
	m, q := moving(t, func(c *Config) { c.MaxNumTokens = 64 })
	h := m.lend(0, 77, q)
	b := m.ranks[1]
	b.submit(ask(3, 1, count(0, 41)...), nil)
	b.drainQueue(0)
	cl := b.submit(q, h)
	for range 3 {
		b.step(0)
	}
	if want := []Borrowed{{ID: 2, Transfer: 77, OK: true}}; !slices.Equal(cl.loans, want) {
		t.Errorf("%+v", cl.loans)
	}
	if got := m.ranks[0].Abort(0, 77); got != AbortAborted {
		t.Errorf("release: %v", got)
	}
	m.ranks[0].collect()
	m.settle()
	m.verifyEnd(t)
	if m.blocks != 0 || cl.usage.CachedTokens < 40 || m.ranks[0].Stats().LeasesExpired != 0 {
		t.Errorf("%d blocks moved, %+v", m.blocks, cl.usage)
	}
}

// The blocks come while the request waits for its turn, and are nobody's until then.
func TestBorrowerFetchesBeforeItsTurn(t *testing.T) {
	m, q := moving(t, func(c *Config) { c.MaxNumTokens = 8 })
	b := m.ranks[1]
	b.submit(ask(8, 1, count(20, 40)...), nil) // five steps
	cl := b.submit(q, m.lend(0, 77, q))
	b.step(0)
	for len(m.order) > 0 {
		m.moves[77].advance()
	}
	if st := b.Stats(); !slices.Equal(cl.loans, []Borrowed{{ID: 2, Transfer: 77, OK: true, Pulled: true}}) || st.Waiting != 1 || b.prefilled != 8 ||
		st.BlocksReusable < 10 || m.ranks[0].Stats().HandoffsOpen != 0 {
		t.Errorf("after the pull: %+v, %d prefilled, %+v", cl.loans, b.prefilled, st)
	}
	if l := b.Load(); l.QueuedPrefill != 32+len(q.Prompt)-40 {
		t.Errorf("%+v: what came is not work", l)
	}
	m.settle()
	m.verifyEnd(t)
	if cl.usage.CachedTokens != 40 || b.clients[8].finish != request.FinishLength || m.blocks != 10 {
		t.Errorf("%+v, %d blocks moved", cl.usage, m.blocks)
	}
}

// What was lent before a reset is not of the weights after it.
func TestResetForgetsWhatIsOnItsWay(t *testing.T) {
	m, q := moving(t, nil)
	b := m.ranks[1]
	cl := b.submit(q, m.lend(0, 77, q))
	b.step(0)
	for m.moves[77].reply == nil {
		m.moves[77].advance()
	}
	b.ResetCache()
	m.moves[77].advance()
	if n := b.Cached(q.Prompt, ""); n != 0 || len(cl.loans) != 1 || !cl.loans[0].OK {
		t.Errorf("%d tokens can be shared, loan %+v", n, cl.loans)
	}
	m.settle()
	m.verifyEnd(t)
}

// A puller that came before the leg of a conversation that moves here hears of it.
func TestLoanMeetsAPullerThatWaits(t *testing.T) {
	m, q := moving(t, nil)
	q.Kind, q.TransferID, q.GenFirst = request.ContextOnly, 7, true
	b := m.ranks[1]
	b.Attach(0, transfer.Attach{
		Peer: 99, ID: 7, Incarnation: "i", Layout: b.cfg.Layout, GenFirst: true, PromptTokens: len(q.Prompt),
		Prompt: b.ownPromptHash(&sequence{req: q, tokens: q.Prompt, root: b.root("")}),
	})
	b.collect()
	b.submit(q, m.lend(0, 77, q))
	if !b.byCtx[7].met() || len(b.parked.list) != 0 {
		t.Error("the puller waits on")
	}
	m.settle()
	m.verifyEnd(t)
}

// TestCancelledBorrowerTellsOnce cancels before, in and after the pull.
func TestCancelledBorrowerTellsOnce(t *testing.T) {
	for _, tc := range []struct {
		name     string
		advances int // of the byte path, -1: no pull yet
		atOnce   bool
		want     Borrowed
	}{
		{"waiting", -1, true, Borrowed{ID: 2, Transfer: 77}},
		{"attaching", 0, false, Borrowed{ID: 2, Transfer: 77}},
		{"reading", 5, false, Borrowed{ID: 2, Transfer: 77}},
		{"confirmed", 13, true, Borrowed{ID: 2, Transfer: 77, OK: true, Pulled: true}},
	} {
		m, q := moving(t, nil)
		b := m.ranks[1]
		cl := b.submit(q, m.lend(0, 77, q))
		if tc.advances >= 0 {
			b.step(0)
		}
		for range tc.advances {
			m.moves[77].advance()
		}
		b.Cancel(0, 2)
		b.collect()
		if len(cl.loans) == 1 != tc.atOnce {
			t.Errorf("%s: told %+v", tc.name, cl.loans)
		}
		m.settle()
		m.verifyEnd(t)
		if cl.finish != request.FinishCancelled || !slices.Equal(cl.loans, []Borrowed{tc.want}) {
			t.Errorf("%s: ended %q, told %+v", tc.name, cl.finish, cl.loans)
		}
	}
}

func TestRefusedBorrowerTells(t *testing.T) {
	m, q := moving(t, nil)
	h := m.lend(0, 77, q)
	q.Sampling.TopP = 0
	cl := m.ranks[1].submit(q, h)
	if cl.err == nil || !slices.Equal(cl.loans, []Borrowed{{ID: 2, Transfer: 77}}) {
		t.Errorf("%v, told %+v", cl.err, cl.loans)
	}
	m.settle()
	m.verifyEnd(t)
}

func TestLendRefuses(t *testing.T) {
	m, q := moving(t, nil)
	a := m.ranks[0]
	refused := func(name string, id transfer.ID, prompt []int32, salt string) {
		t.Helper()
		if h, ok := a.Lend(0, id, prompt, salt); ok || h != nil {
			t.Errorf("%s: lent %+v", name, h)
		}
		a.check()
	}
	refused("no id", 0, q.Prompt, "")
	refused("another salt", 5, q.Prompt, "x")
	refused("less than a block", 5, q.Prompt[:4], "")
	refused("unknown prompt", 5, count(70, 20), "")
	refused("empty prompt", 5, nil, "")
	a.Abort(0, 6)
	refused("aborted before", 6, q.Prompt, "")
	m.lend(0, 5, q)
	refused("id in use", 5, q.Prompt, "")
	if h := m.lend(0, 8, q); h == nil || a.Stats().BlocksLeased != 10 || a.Stats().HandoffsOpen != 2 {
		t.Error("the same blocks cannot be lent twice")
	}
	a.ResetCache()
	a.collect()
	if a.Stats().HandoffsOpen != 0 {
		t.Error("old blocks are lent after a reset")
	}
	refused("after a reset", 9, q.Prompt, "")

	m, q = moving(t, nil)
	a = m.ranks[0]
	m.lend(0, 5, q)
	a.Drain(0)
	a.collect()
	refused("draining", 6, q.Prompt, "")
	a.verifyEnd(true)
}

// TestLendTakesNoRoomThatWasPromised fills the pool with a request that will
// need all of it: only what it does not need may be lent.
func TestLendTakesNoRoomThatWasPromised(t *testing.T) {
	m, q := moving(t, func(c *Config) { c.Blocks, c.MaxSeqLen, c.MaxLeasedFraction = 25, 120, 1 })
	a := m.ranks[0]
	big := ask(9, 40, count(50, 40)...) // 20 blocks
	a.submit(big, nil)
	a.step(0)
	if h := m.lend(0, 77, q); h == nil || h.PromptTokens != 5*4 {
		t.Errorf("lent %+v", h)
	}
	a.drainQueue(0)
	if st := a.Stats(); st.Paused != 0 || a.clients[9].finish != request.FinishLength {
		t.Errorf("%+v", st)
	}

	m, q = moving(t, func(c *Config) { c.MaxLeasedFraction = 0.1 })
	if h := m.lend(0, 77, q); h == nil || h.PromptTokens != 4*4 {
		t.Errorf("lent above the limit for leases: %+v", h)
	}
}

// TestRanksThatLendToEachOtherGoOn pins all of both pools by loans, so that
// neither borrower finds room until the loans are called in.
func TestRanksThatLendToEachOtherGoOn(t *testing.T) {
	cfg := holdConfig()
	cfg.Blocks, cfg.MaxLeasedFraction = 20, 1
	m := newMovers(t, cfg, cfg)
	var clients []*client
	var handles []*transfer.Handle
	var asks []*request.Request
	for i, r := range m.ranks {
		r.submit(ask(i+1, 1, count(i*50, 60)...), nil)
		r.drainQueue(0)
		q := ask(10+i, 10, append(count(i*50, 60), 99)...)
		asks, handles = append(asks, q), append(handles, m.lend(i, transfer.ID(70+i), q))
	}
	for i, q := range asks {
		clients = append(clients, m.ranks[1-i].submit(q, handles[i]))
	}
	for _, r := range m.ranks {
		if r.step(0) {
			t.Fatal("there is room")
		}
	}
	m.settle()
	m.verifyEnd(t)
	if clients[0].finish != request.FinishLength || clients[1].finish != request.FinishLength || m.now > 0 {
		t.Errorf("%q %q at %v", clients[0].finish, clients[1].finish, m.now)
	}
}

func TestBorrowerWaitsItsTurn(t *testing.T) {
	m, q := moving(t, func(c *Config) { c.Blocks = 24 })
	b := m.ranks[1]
	b.submit(ask(8, 40, count(20, 40)...), nil) // 20 of 24 blocks
	b.step(0)
	older := b.submit(ask(9, 4, count(30, 20)...), nil) // 6 blocks: no room
	cl := b.submit(q, m.lend(0, 77, q))
	younger := b.submit(ask(10, 1, 1, 2, 3), nil) // would fit
	b.step(0)
	if l := b.Load(); l.Waiting != 3 || len(m.moves) != 0 || older.finish != request.Running {
		t.Errorf("a borrower went before an older request: %+v", l)
	}
	if younger.finish != request.Running {
		t.Error("a request was passed by")
	}
	m.settle()
	m.verifyEnd(t)
	if cl.finish != request.FinishLength {
		t.Errorf("%q", cl.finish)
	}
}

// TestBorrowerThatFindsNoRoomGivesUp keeps the room taken for so long that the
// lender should have its own back.
func TestBorrowerThatFindsNoRoomGivesUp(t *testing.T) {
	m, q := moving(t, func(c *Config) { c.Blocks = 24 })
	b := m.ranks[1]
	b.submit(ask(8, 40, count(20, 40)...), nil) // 20 of 24 blocks
	cl := b.submit(q, m.lend(0, 77, q))
	b.step(0)
	m.now, _ = b.NextDeadline()
	b.step(m.now)
	if want := []Borrowed{{ID: 2, Transfer: 77}}; m.now != b.cfg.Lease/3 || !slices.Equal(cl.loans, want) || b.Load().Waiting != 1 {
		t.Errorf("at %v: %+v, load %+v", m.now, cl.loans, b.Load())
	}
	m.settle()
	m.verifyEnd(t)
	if cl.finish != request.FinishLength || m.ranks[0].Stats().LeasesExpired != 1 {
		t.Errorf("%q", cl.finish)
	}
}

func TestNothingYoungerTakesABorrowersRoom(t *testing.T) {
	m, q := moving(t, func(c *Config) { c.Blocks = 24 })
	b := m.ranks[1]
	b.submit(ask(8, 40, count(20, 40)...), nil) // 20 of 24 blocks
	b.step(0)
	cl := b.submit(q, m.lend(0, 77, q)) // 13 blocks
	younger := b.submit(ask(10, 1, 1, 2, 3), nil)
	b.step(0)
	if younger.finish != request.Running || len(m.moves) != 0 {
		t.Error("a younger request went first")
	}
	m.settle()
	m.verifyEnd(t)
	if cl.finish != request.FinishLength {
		t.Errorf("%q", cl.finish)
	}
}

// TestRandomLoans is the property: conversations move between two ranks while
// pulls fail, hang, are cancelled and held, and time jumps. Every request gets
// its tokens, every loan is reported once, and nothing is left.
func TestRandomLoans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t, Mixed)
		cfg.MaxNumTokens += 80 // no prompt is refused
		cfg.MaxLeasedFraction = rapid.SampledFrom([]float64{0.5, 1}).Draw(t, "leased")
		cfg.MaxConcurrentRecv = rapid.IntRange(1, 3).Draw(t, "recv")
		cfg.MaxInflightBytes = rapid.SampledFrom([]int64{1, 1 << 30}).Draw(t, "bytes")
		cfg.LocalRecompute = rapid.Bool().Draw(t, "recompute")
		other := cfg
		other.Blocks = cfg.Blocks + rapid.IntRange(0, 20).Draw(t, "more")
		m := newMovers(t, cfg, other)
		n, failed, loans := 0, false, map[*client]bool{}
		var talks [][]int32
		start := func(t *rapid.T, prompt []int32, to int, h *transfer.Handle) {
			n++
			q := ask(n, rapid.IntRange(1, 10).Draw(t, "g"), prompt...)
			if rapid.IntRange(0, 3).Draw(t, "ctx") == 0 {
				q.Kind, q.TransferID = request.ContextOnly, int64(n)
			}
			q.Priority = float64(rapid.IntRange(0, 2).Draw(t, "priority")) / 2
			m.ranks[to].drawChoices(t, q)
			talks = append(talks, prompt)
			loans[m.ranks[to].submit(q, h)] = h != nil
		}
		steps := map[string]func(*rapid.T){
			"new": func(t *rapid.T) {
				start(t, rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 40).Draw(t, "prompt"), rapid.IntRange(0, 1).Draw(t, "to"), nil)
			},
			"turn": func(t *rapid.T) {
				if len(talks) == 0 {
					t.Skip()
				}
				p := rapid.SampledFrom(talks).Draw(t, "talk")
				p = append(p[:len(p):len(p)], rapid.SliceOfN(rapid.Int32Range(0, 1), 0, 12).Draw(t, "more")...)
				p = p[:min(len(p), 70)]
				from := rapid.IntRange(0, 1).Draw(t, "from")
				h := m.lend(from, transfer.ID(1000+n), &request.Request{Prompt: p})
				if h != nil && rapid.IntRange(0, 5).Draw(t, "tamper") == 0 {
					h.Hashes[0][0]++
				}
				start(t, p, 1-from, h)
			},
			"step": func(t *rapid.T) {
				r := m.ranks[rapid.IntRange(0, 1).Draw(t, "rank")]
				for range rapid.IntRange(1, 4).Draw(t, "steps") {
					r.hold = rapid.IntRange(0, 2).Draw(t, "hold") == 0
					r.step(m.now)
				}
			},
			"move": func(t *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(t, "moves") {
					if len(m.order) > 0 {
						m.moves[rapid.SampledFrom(m.order).Draw(t, "pull")].advance()
					}
				}
			},
			"break": func(t *rapid.T) {
				if len(m.order) == 0 {
					t.Skip()
				}
				m.moves[rapid.SampledFrom(m.order).Draw(t, "pull")].end(transfer.PullEvent{Code: "transfer_failed", Reason: "broken"})
			},
			"release": func(t *rapid.T) {
				for _, id := range m.release {
					if r := m.loans[id]; r != nil {
						r.Abort(m.now, id)
						r.collect()
					}
				}
				m.release = nil
			},
			"cancel": func(t *rapid.T) {
				r := m.ranks[rapid.IntRange(0, 1).Draw(t, "rank")]
				r.Cancel(m.now, request.ID(rapid.IntRange(1, n+1).Draw(t, "id")))
				r.collect()
			},
			"jump": func(t *rapid.T) {
				m.now += time.Duration(rapid.IntRange(0, 90).Draw(t, "s")) * time.Second
			},
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "rare") == 0 {
					r := m.ranks[rapid.IntRange(0, 1).Draw(t, "rank")]
					r.ResetCache()
					r.collect()
				}
			},
			"fail": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rare") == 0 {
					failed = true
					m.ranks[rapid.IntRange(0, 1).Draw(t, "rank")].failNext = true
				}
			},
		}
		t.Repeat(steps)
		for _, r := range m.ranks {
			r.failNext = false
		}
		m.settle()
		for cl, lent := range loans {
			if want := 0; lent && len(cl.loans) != 1 || !lent && len(cl.loans) != want {
				t.Fatalf("request %d: loan reported %+v", cl.req.ID, cl.loans)
			}
		}
		for _, r := range m.ranks {
			if r.Fatal() != nil {
				return
			}
			r.verifyEnd(!failed)
			if st := r.Stats(); r.cfg.Policy != scheduler.MaxUtilization && st.Paused != 0 {
				t.Fatalf("SP-7: %d pauses", st.Paused)
			}
		}
	})
}
