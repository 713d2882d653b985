package kvcache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
)

// memory carries out moves and knows what each place really holds. A block,
// slot or file of zero holds nothing of use.
type memory struct {
	device, host []blockhash.Hash
	files        map[blockhash.Hash]blockhash.Hash
	badSlot      map[int32]bool
	queue        []Move // not carried out
	orders       []Move // all that were fetched
	fault        string // of an order
}

func newMemory(n, host int) *memory {
	return &memory{
		device: make([]blockhash.Hash, n), host: make([]blockhash.Hash, host),
		files: map[blockhash.Hash]blockhash.Hash{}, badSlot: map[int32]bool{},
	}
}

// fetch takes new orders. Offloads are read at once, as they must be.
func (x *memory) fetch(m *Manager) {
	for _, mv := range m.TakeMoves(nil) {
		x.orders = append(x.orders, mv)
		if mv.Kind == Spill && x.tooEarly(m, mv.Parent) {
			x.fault = fmt.Sprintf("%x is written before %x, which it builds on", mv.Hash, mv.Parent)
		}
		if mv.Kind == Offload {
			x.host[mv.Slot] = x.device[mv.Block]
			x.badSlot[mv.Slot] = false
		}
		x.queue = append(x.queue, mv)
	}
}

// tooEarly reports whether h is in the host and no file has it or is to have it
// before the order that was just fetched.
func (x *memory) tooEarly(m *Manager, h blockhash.Hash) bool {
	slot, ok := m.tiers.host.find(h)
	if _, filed := m.tiers.disk.find(h); !ok || filed {
		return false
	}
	b := &m.tiers.host.blocks[slot]
	return b.ref > 0 || b.unfiled
}

// step carries out the i-th move of those that are waiting, and reports it. It
// returns the block that got nothing.
func (x *memory) step(m *Manager, i int, r Result) int32 {
	mv := x.queue[i]
	x.queue = slices.Delete(x.queue, i, i+1)
	switch mv.Kind {
	case Offload:
		x.badSlot[mv.Slot] = r != Done
	case Onboard, Load:
		got, ok := x.host[max(mv.Slot, 0)], !x.badSlot[mv.Slot]
		if mv.Kind == Load {
			got, ok = x.files[mv.Hash], true
		}
		if got != mv.Hash || !ok { // a checksum tells
			r = Corrupt
		}
		x.device[mv.Block] = got
	case Spill:
		if x.badSlot[mv.Slot] || x.host[mv.Slot] != mv.Hash {
			r = Failed
		}
		if r == Done {
			x.files[mv.Hash] = mv.Hash
		}
	case Erase:
		delete(x.files, mv.Hash)
	case EraseAll:
		clear(x.files)
	}
	if mv.Job == 0 {
		return -1
	}
	_, lost := m.Moved(mv.Job, r)
	x.fetch(m) // before what is ordered now looks out of order
	return lost
}

// next returns the indexes of moves that may be carried out now: the first
// overall, and those that have no earlier one of the same lane.
func (x *memory) next() (out []int) {
	lane := func(k MoveKind) int { return []int{0, 0, 1, 2, 1, 1}[k] }
	seen := map[int]bool{}
	for i, mv := range x.queue {
		if l := lane(mv.Kind); !seen[l] || l == 2 {
			out = append(out, i)
			seen[l] = true
		}
	}
	return out
}

func (x *memory) settle(m *Manager) {
	for x.fetch(m); len(x.queue) > 0; x.fetch(m) {
		x.step(m, 0, Done)
	}
}

func tierPool(t testing.TB, n, b int, tiers Tiers) *Manager {
	t.Helper()
	m, err := New(Config{Blocks: n, BlockTokens: b, Partial: true, Events: 64, Tiers: tiers})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// prefill is run over all tiers. What is brought is waited for.
func prefill(t testing.TB, m *Manager, x *memory, root blockhash.Hash, tokens []int32) (*user, Below) {
	t.Helper()
	b := m.cfg.BlockTokens
	u := &user{tokens: tokens, hashes: chain(root, tokens, b)}
	found, below := m.MatchTiers(nil, u.hashes[:(len(tokens)-1)/b], false, Disk)
	u.table = m.Adopt(nil, found, u.hashes, root, tokens)
	hit := len(found)
	var ok bool
	if u.table, ok = m.Take(u.table, (len(tokens)+b-1)/b-hit); !ok {
		t.Fatalf("no room for %d tokens", len(tokens))
	}
	x.settle(m)
	parent := root
	for i, h := range u.hashes {
		if i >= hit {
			x.device[u.table[i]] = h
			m.Commit(u.table[i], parent, h, tokens[i*b:(i+1)*b])
		}
		parent = h
		if x.device[u.table[i]] != h {
			t.Fatalf("block %d does not hold what was matched", i)
		}
	}
	check(t, m, u)
	return u, below
}

func TestEvictedContentComesBackFromTheHost(t *testing.T) {
	m, x := tierPool(t, 4, 4, Tiers{HostBlocks: 8, MinPriority: 30}), newMemory(4, 8)
	root := blockhash.Root("m0", "", "")
	a, _ := prefill(t, m, x, root, seqTokens(0, 13))
	m.Release(a.table)
	b, _ := prefill(t, m, x, root, seqTokens(100, 13))
	m.Release(b.table)
	if st := m.TierStats(); st.Offloaded != 3 || st.Host != 3 || m.Level(a.hashes[0]) != Host {
		t.Fatalf("%+v", st)
	}
	again, below := prefill(t, m, x, root, seqTokens(0, 13))
	if below.Host != 3 || below.First != 0 {
		t.Errorf("%+v", below)
	}
	if st := m.TierStats(); st.Onboarded != 3 || st.Host != 3 || m.Level(a.hashes[0]) != Device || m.Level(b.hashes[0]) != Host {
		t.Errorf("%+v", st)
	}
	if _, below := m.MatchTiers(nil, chain(blockhash.Root("m0", "", "salt"), seqTokens(0, 13), 4), false, Disk); below.Any() {
		t.Error("another salt finds it")
	}
	m.Reset()
	x.settle(m)
	check(t, m, again)
	if st := m.TierStats(); st.Host != 0 || m.Level(b.hashes[0]) != Nowhere {
		t.Errorf("after a reset: %+v", st)
	}
}

// What matters less goes for what matters more, not the other way, and what is
// below the floor is not kept at all.
func TestHostKeepsWhatMattersMore(t *testing.T) {
	m, x := tierPool(t, 1, 4, Tiers{HostBlocks: 1, MinPriority: 30}), newMemory(1, 1)
	root := blockhash.Root("m0", "", "")
	turn := func(from int, p uint8) blockhash.Hash {
		u, _ := prefill(t, m, x, root, seqTokens(from, 4))
		for _, id := range slices.Backward(u.table) {
			m.SetPriority(id, p)
		}
		m.Release(u.table)
		return u.hashes[0]
	}
	low := turn(0, 20)
	high := turn(100, 60)
	if st := m.TierStats(); st.Offloaded != 0 || m.Level(low) != Nowhere {
		t.Errorf("below the floor: %+v", st)
	}
	middle := turn(200, 50)
	last := turn(300, 50)
	if m.Level(high) != Host || m.Level(middle) != Nowhere || m.Level(last) != Device {
		t.Errorf("levels %d, %d, %d", m.Level(high), m.Level(middle), m.Level(last))
	}
	check(t, m)
}

func TestDiskTakesWhatTheHostCannotKeep(t *testing.T) {
	m, x := tierPool(t, 4, 4, Tiers{HostBlocks: 24, DiskBlocks: 64}), newMemory(4, 24)
	root := blockhash.Root("m0", "", "")
	var users []*user
	for i := range 12 {
		u, _ := prefill(t, m, x, root, seqTokens(100*i, 13))
		m.Release(u.table)
		users = append(users, u)
	}
	if st := m.TierStats(); st.HostEvicted != 0 || st.Disk != 33 || st.Host != 24 || len(x.files) != 33 || m.Level(users[0].hashes[2]) != Disk {
		t.Fatalf("%+v, %d files", st, len(x.files))
	}
	back, below := prefill(t, m, x, root, users[0].tokens)
	if below.Disk != 3 || m.TierStats().Loaded != 3 {
		t.Fatalf("%+v, %+v", below, m.TierStats())
	}
	m.Release(back.table)
	for i := range 9 { // pushes it out once more: its files are still there
		u, _ := prefill(t, m, x, root, seqTokens(10000+100*i, 13))
		m.Release(u.table)
	}
	if m.Level(users[0].hashes[2]) != Disk || m.TierStats().HostEvicted != 0 {
		t.Error("it is gone")
	}
	writes := 0
	for _, mv := range x.orders {
		if mv.Kind == Spill && mv.Hash == users[0].hashes[0] {
			writes++
		}
	}
	if writes != 1 {
		t.Errorf("a block was written %d times", writes)
	}
	m.SuspendDisk()
	if _, below := m.MatchTiers(nil, users[0].hashes, false, Disk); below.Disk != 0 {
		t.Error("a disk that is left alone is read")
	}
	m.ResumeDisk()
	other := tierPool(t, 4, 4, Tiers{HostBlocks: 4, DiskBlocks: 2})
	other.Restore([]File{{Hash: users[0].hashes[0], Parent: root, Priority: 35}, {Hash: users[0].hashes[1], Parent: users[0].hashes[0], Priority: 35}, {Hash: users[1].hashes[0], Parent: root, Priority: 35}})
	check(t, other)
	if other.Level(users[0].hashes[1]) != Nowhere || other.Level(users[0].hashes[0]) != Disk || len(other.TakeMoves(nil)) != 1 {
		t.Error("of a chain that does not fit, the end must go")
	}
}

func TestMoveThatFails(t *testing.T) {
	for _, r := range []Result{Corrupt, Failed} {
		m, x := tierPool(t, 3, 4, Tiers{HostBlocks: 4}), newMemory(3, 4)
		root := blockhash.Root("m0", "", "")
		a, _ := prefill(t, m, x, root, seqTokens(0, 9))
		m.Release(a.table)
		b, _ := prefill(t, m, x, root, seqTokens(100, 9))
		m.Release(b.table)
		found, _ := m.MatchTiers(nil, a.hashes, false, Disk)
		u := &user{table: m.Adopt(nil, found, a.hashes, root, a.tokens)}
		if id, _ := m.Find(a.hashes[0]); !m.Inbound(id) {
			t.Fatal("content is here at once")
		}
		if id, n := m.MatchPartial(a.hashes[0], a.tokens[4:8]); n > 0 {
			t.Errorf("block %d is to be copied, which holds nothing yet", id)
		}
		x.fetch(m)
		var lost []int32
		for len(x.queue) > 0 {
			if id := x.step(m, 0, r); id >= 0 {
				lost = append(lost, id)
			}
			x.fetch(m)
		}
		check(t, m, u)
		if !slices.Equal(lost, u.table) || m.Level(a.hashes[0]) != Nowhere {
			t.Errorf("lost %v of %v", lost, u.table)
		}
		m.Release(u.table)
		check(t, m)
		if m.Free() != 3 || m.Moving() != 0 {
			t.Errorf("%d free, %d moves", m.Free(), m.Moving())
		}
	}
}

func TestAbandonedBlockStaysOutOfUseUntilItsMoveEnds(t *testing.T) {
	m, x := tierPool(t, 2, 4, Tiers{HostBlocks: 4}), newMemory(2, 4)
	root := blockhash.Root("m0", "", "")
	a, _ := prefill(t, m, x, root, seqTokens(0, 8))
	m.Release(a.table)
	b, _ := prefill(t, m, x, root, seqTokens(100, 8))
	m.Release(b.table)
	found, _ := m.MatchTiers(nil, a.hashes[:1], false, Disk)
	table := m.Adopt(nil, found, a.hashes, root, a.tokens)
	m.Abandon(table[0])
	m.Release(table)
	check(t, m)
	if m.Free() != 1 || m.Level(a.hashes[0]) != Nowhere {
		t.Errorf("%d blocks are free, level %d", m.Free(), m.Level(a.hashes[0]))
	}
	x.settle(m)
	check(t, m)
	if m.Free() != 2 {
		t.Errorf("%d blocks are free", m.Free())
	}
}

func TestDemotedContentGoesFirst(t *testing.T) {
	m, x := tierPool(t, 8, 4, Tiers{HostBlocks: 4, MinPriority: 30}), newMemory(8, 4)
	root := blockhash.Root("m0", "", "")
	tail := append(seqTokens(0, 8), seqTokens(50, 9)...)
	a, _ := prefill(t, m, x, root, tail) // 2 blocks that stay, 2 dead ones
	m.Release(a.table)
	b, _ := prefill(t, m, x, root, append(seqTokens(0, 8), seqTokens(80, 5)...))
	for i := len(a.hashes) - 1; i >= 0; i-- {
		if got, want := m.Demote(a.hashes[i]), i >= 2; got != want {
			t.Errorf("block %d demoted: %v", i, got)
		}
	}
	check(t, m, b)
	m.Release(b.table)
	c, _ := prefill(t, m, x, root, seqTokens(200, 20))
	if m.Level(a.hashes[2]) != Nowhere || m.Level(a.hashes[1]) != Device || m.TierStats().Offloaded != 0 {
		t.Errorf("levels %d, %d, %+v", m.Level(a.hashes[2]), m.Level(a.hashes[1]), m.TierStats())
	}
	check(t, m, c)
}

// TestTiersAtRandom is TestRandomOperations over three tiers, whose moves are
// carried out late, in any order that the rules allow, and fail now and then.
func TestTiersAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := 2
		tiers := Tiers{
			HostBlocks: rapid.IntRange(0, 10).Draw(t, "host"), DiskBlocks: rapid.IntRange(0, 12).Draw(t, "disk"),
			MinPriority: uint8(rapid.SampledFrom([]int{0, 30}).Draw(t, "floor")),
		}
		n := rapid.IntRange(2, 16).Draw(t, "N")
		m, err := New(Config{Blocks: n, BlockTokens: b, Partial: true, Events: 64, Tiers: tiers})
		if err != nil {
			t.Fatal(err)
		}
		x := newMemory(n, max(tiers.HostBlocks, 1))
		roots := []blockhash.Hash{blockhash.Root("m", "", ""), blockhash.Root("m", "", "s")}
		var users []*user
		r := &replica{}
		end := func(i int) {
			m.Release(users[i].table)
			users = slices.Delete(users, i, i+1)
		}
		now := time.Duration(1)
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				u := &user{tokens: rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 8*b).Draw(t, "tokens")}
				root := rapid.SampledFrom(roots).Draw(t, "root")
				u.hashes = chain(root, u.tokens, b)
				found, _ := m.MatchTiers(nil, u.hashes, false, Disk)
				need := (len(u.tokens) + b - 1) / b
				for _, id := range found {
					if id >= 0 && !m.Unreferenced(id) {
						need--
					}
				}
				if need > m.Free() {
					return
				}
				u.table = m.Adopt(nil, found, u.hashes, root, u.tokens)
				u.table, _ = m.Take(u.table, (len(u.tokens)+b-1)/b-len(found))
				x.fetch(m)
				for i, id := range u.table {
					switch {
					case i < len(found) && !m.Inbound(id) && x.device[id] != u.hashes[i]:
						t.Fatalf("INV-13: block %d matched for content it does not have", id)
					case i >= len(found) && i < len(u.hashes):
						x.device[id] = u.hashes[i]
						parent := root
						if i > 0 {
							parent = u.hashes[i-1]
						}
						m.Commit(id, parent, u.hashes[i], u.tokens[i*b:(i+1)*b])
					case i >= len(u.hashes):
						x.device[id] = blockhash.Hash{1}
					}
				}
				users = append(users, u)
			},
			"end": func(t *rapid.T) {
				if len(users) == 0 {
					t.Skip()
				}
				end(rapid.IntRange(0, len(users)-1).Draw(t, "i"))
			},
			"move": func(t *rapid.T) {
				x.fetch(m)
				may := x.next()
				if len(may) == 0 {
					t.Skip()
				}
				res := rapid.SampledFrom([]Result{Done, Done, Done, Done, Failed, Corrupt}).Draw(t, "result")
				if lost := x.step(m, rapid.SampledFrom(may).Draw(t, "i"), res); lost >= 0 {
					for i := len(users) - 1; i >= 0; i-- {
						if slices.Contains(users[i].table, lost) {
							end(i)
						}
					}
				}
			},
			"abandon": func(t *rapid.T) {
				id := int32(rapid.IntRange(0, n-1).Draw(t, "id"))
				if !m.Inbound(id) {
					t.Skip()
				}
				m.Abandon(id)
				for i := len(users) - 1; i >= 0; i-- {
					if slices.Contains(users[i].table, id) {
						end(i)
					}
				}
			},
			"demote": func(t *rapid.T) {
				if len(users) > 0 {
					for _, h := range slices.Backward(users[0].hashes) {
						m.Demote(h)
					}
				}
			},
			"disk": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "off") {
					m.SuspendDisk()
				} else {
					m.ResumeDisk()
				}
				x.fetch(m)
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
			"read": func(t *rapid.T) {
				if err := r.follow(m); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if err := m.Check(tablesOf(users)); err != nil || x.fault != "" {
					t.Fatal(err, x.fault)
				}
			},
		})
		for len(users) > 0 {
			end(0)
		}
		for x.fetch(m); len(x.queue) > 0; x.fetch(m) {
			x.step(m, 0, Done)
		}
		if err := m.Check(tablesOf(nil)); err != nil || m.Free() != n || m.Moving() != 0 {
			t.Fatalf("%d of %d free, %d moves: %v", m.Free(), n, m.Moving(), err)
		}
		if !m.tiersOff() {
			x.inherit(t, m)
		}
	})
}

func TestRemainsAreTheNewestAndWhole(t *testing.T) {
	m, x := tierPool(t, 4, 4, Tiers{HostBlocks: 8, DiskBlocks: 4, MinPriority: 30}), newMemory(4, 8)
	root := blockhash.Root("m0", "", "")
	var users []*user
	for i := range 4 {
		u, _ := prefill(t, m, x, root, seqTokens(100*i, 13))
		m.Release(u.table)
		users = append(users, u)
	}
	files := map[blockhash.Hash]bool{}
	for h := range x.files {
		files[h] = true
	}
	for _, mv := range m.Remains() {
		if mv.Kind == Erase {
			delete(files, mv.Hash)
			continue
		}
		if mv.Kind != Spill || mv.Slot < 0 && x.device[mv.Block] != mv.Hash || mv.Slot >= 0 && x.host[mv.Slot] != mv.Hash {
			t.Fatalf("%+v does not say where the content is", mv)
		}
		files[mv.Hash] = true
	}
	for i, h := range users[3].hashes[:3] {
		if !files[h] {
			t.Errorf("block %d of what was used last would be lost", i)
		}
	}
	if len(files) > 4 {
		t.Errorf("%d files, the limit is 4", len(files))
	}
	for range m.Remains() {
		t.Error("more of what is in files already")
	}
}

func (m *Manager) tiersOff() bool { return m.tiers == nil || m.tiers.disk == nil || m.tiers.off }

// inherit carries out what remains, and proves that the files then hold what they
// say, no more than fit, and nothing new without what it builds on.
func (x *memory) inherit(t *rapid.T, m *Manager) {
	was := map[blockhash.Hash]bool{} // in any tier
	for h := range m.index {
		was[h] = true
	}
	for _, s := range []*shelf{m.tiers.host, m.tiers.disk} {
		for h := range s.index {
			was[h] = true
		}
	}
	var written []Move
	for _, mv := range m.Remains() {
		if mv.Kind == Erase {
			delete(x.files, mv.Hash)
			continue
		}
		from := x.host[max(mv.Slot, 0)]
		if mv.Slot < 0 {
			from = x.device[mv.Block]
		}
		if from != mv.Hash {
			t.Fatalf("%+v does not say where the content is", mv)
		}
		x.files[mv.Hash] = mv.Hash
		written = append(written, mv)
	}
	for _, mv := range written {
		if was[mv.Parent] && x.files[mv.Parent] == (blockhash.Hash{}) && m.priorityOf(mv.Parent) >= m.tiers.MinPriority {
			t.Fatalf("a block was kept without the one that it follows")
		}
	}
	if len(x.files) > m.tiers.disk.limit {
		t.Fatalf("%d files, the limit is %d", len(x.files), m.tiers.disk.limit)
	}
}

func (m *Manager) priorityOf(h blockhash.Hash) uint8 {
	if id, ok := m.index[h]; ok {
		return m.blocks[id].priority
	}
	for _, s := range []*shelf{m.tiers.host, m.tiers.disk} {
		if slot, ok := s.find(h); ok {
			return s.blocks[slot].priority
		}
	}
	return 0
}
