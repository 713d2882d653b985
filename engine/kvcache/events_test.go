package kvcache

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
)

// replica is an index that a reader keeps by events alone.
type replica struct {
	has  map[uint64]bool
	at   map[uint64]Level
	next uint64 // id of the next event
	gaps int
}

func (r *replica) apply(events []Event) error {
	for _, ev := range events {
		if ev.Kind != Created && ev.ID != r.next {
			return fmt.Errorf("event %d came where %d was due", ev.ID, r.next)
		}
		r.next = ev.ID + 1
		switch ev.Kind {
		case Created, Cleared:
			r.has, r.at = map[uint64]bool{}, map[uint64]Level{}
		case Stored:
			for _, h := range ev.Blocks {
				if r.has[h] {
					return fmt.Errorf("event %d stores %x twice", ev.ID, h)
				}
				r.has[h], r.at[h] = true, ev.Level
			}
		case Updated:
			for _, h := range ev.Blocks {
				if !r.has[h] || r.at[h] != ev.Was {
					return fmt.Errorf("event %d moves %x from level %d, it is at %d, %v", ev.ID, h, ev.Was, r.at[h], r.has[h])
				}
				r.at[h] = ev.Level
			}
		case Removed:
			for _, h := range ev.Blocks {
				if !r.has[h] {
					return fmt.Errorf("event %d removes %x, which was not stored", ev.ID, h)
				}
				delete(r.has, h)
			}
		}
	}
	return nil
}

// follow reads all there is, by snapshot where events were lost.
func (r *replica) follow(m *Manager) error {
	for {
		events, next, _, ok := m.Events().Read(r.next, 3)
		switch {
		case !ok:
			r.gaps++
			if err := r.apply(m.Snapshot()); err != nil {
				return err
			}
			continue
		case len(events) == 0:
			if r.next = next; r.next != m.Events().Next() {
				return fmt.Errorf("reading ends at %d of %d", next, m.Events().Next())
			}
			return r.compare(m)
		}
		if err := r.apply(events); err != nil {
			return err
		}
	}
}

func (r *replica) compare(m *Manager) error {
	want := map[uint64]Level{}
	for h := range m.index {
		want[h.Wire()] = Device
	}
	m.eachBelow(func(b *block, l Level) { want[b.hash.Wire()] = l })
	if len(r.has) != len(want) {
		return fmt.Errorf("the replica has %d blocks, the index %d", len(r.has), len(want))
	}
	for h, l := range want {
		if !r.has[h] || r.at[h] != l {
			return fmt.Errorf("the replica has %x at level %d (%v), the index at %d", h, r.at[h], r.has[h], l)
		}
	}
	return nil
}

// Whatever a pool does and however seldom a reader looks, replaying its events gives its index.
func TestEventsGiveTheIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := 2
		m, err := New(Config{Blocks: rapid.IntRange(1, 24).Draw(t, "N"), BlockTokens: b, Events: rapid.IntRange(1, 20).Draw(t, "limit")})
		if err != nil {
			t.Fatal(err)
		}
		roots := []blockhash.Hash{blockhash.Root("m", "", ""), blockhash.Root("m", "", "s")}
		var users [][]int32
		r, other := &replica{}, &replica{} // one that reads keeps the record awake for one that falls behind
		t.Repeat(map[string]func(*rapid.T){
			"prompt": func(t *rapid.T) {
				tokens := rapid.SliceOfN(rapid.Int32Range(0, 1), b, 8*b).Draw(t, "tokens")
				parent := rapid.SampledFrom(roots).Draw(t, "root")
				hashes := chain(parent, tokens, b)
				table := m.Match(nil, hashes, false)
				hit := len(table)
				m.Share(table)
				table, ok := m.Take(table, len(hashes)-hit)
				for i := hit; ok && i < len(hashes); i++ {
					if i > 0 {
						parent = hashes[i-1]
					}
					m.Commit(table[i], parent, hashes[i], tokens[i*b:(i+1)*b])
				}
				users = append(users, table)
			},
			"end": func(t *rapid.T) {
				if len(users) > 0 {
					m.Release(users[0])
					users = users[1:]
				}
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
			"read seldom": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
					t.Skip()
				}
				if err := other.follow(m); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func TestEventsJoinAndSleep(t *testing.T) {
	m, err := New(Config{Blocks: 64, BlockTokens: 4, Events: 2})
	if err != nil {
		t.Fatal(err)
	}
	root := blockhash.Root("m", "", "")
	run(t, m, root, seqTokens(0, 16))
	if _, _, _, ok := m.Events().Read(0, 9); ok {
		t.Error("it records before anybody asked")
	}
	snap := m.Snapshot()
	if len(snap) != 2 || snap[0].Kind != Created || !slices.Equal(snap[0].Pools, []int{64}) || len(snap[1].Blocks) != 4 || snap[1].Parent != root.Wire() {
		t.Fatalf("snapshot %+v", snap)
	}
	at := m.Events().Next()
	if snap[1].ID != at-1 {
		t.Errorf("the snapshot ends at %d, the next event is %d", snap[1].ID, at)
	}
	_, _, changed, _ := m.Events().Read(at, 9)
	run(t, m, root, seqTokens(100, 12))
	<-changed
	events, next, _, _ := m.Events().Read(at, 9)
	if len(events) != 1 || len(events[0].Blocks) != 3 || next != at+1 {
		t.Errorf("three blocks of one prompt: %+v", events)
	}
	run(t, m, root, seqTokens(100, 16)) // its last block goes on where a read event ended
	if again, _, _, _ := m.Events().Read(at, 1); len(again[0].Blocks) != 3 {
		t.Errorf("an event changed after it was read: %+v", again)
	}
	_, _, waiting, _ := m.Events().Read(m.Events().Next(), 9)
	for i := range 3 {
		run(t, m, root, seqTokens(1000*(i+1), 4))
	}
	<-waiting
	if _, _, _, ok := m.Events().Read(at, 9); ok {
		t.Error("it still records though nobody reads")
	}
	if n := testing.AllocsPerRun(10, func() { m.tell(change{kind: Stored, parent: root, block: root, priority: 1}) }); n != 0 {
		t.Errorf("%v allocations for an event that nobody reads", n)
	}
}

// A reader that fell behind while another one read is told so, also when nothing came since.
func TestEventsTellOfAGap(t *testing.T) {
	m, err := New(Config{Blocks: 64, BlockTokens: 4, Events: 2})
	if err != nil {
		t.Fatal(err)
	}
	m.Snapshot()
	slow := m.Events().Next()
	for i := range 4 {
		run(t, m, blockhash.Root("m", "", ""), seqTokens(100*i, 4))
		if _, _, _, ok := m.Events().Read(m.Events().Next()-1, 9); !ok {
			t.Fatal("it sleeps though somebody reads")
		}
	}
	for from, want := range map[uint64]bool{0: false, slow: false, slow + 1: false, slow + 2: true, slow + 4: true, slow + 5: false} {
		if events, _, _, ok := m.Events().Read(from, 9); ok != want || ok && len(events) != int(slow+4-from) {
			t.Errorf("from event %d of %d: %t, %+v", from-slow, 4, ok, events)
		}
	}
}
