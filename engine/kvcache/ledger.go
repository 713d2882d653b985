package kvcache

import (
	"container/list"

	"tandem/engine/blockhash"
)

// Conversation is the key of a ledger entry: the conversation's own id, and the
// root of its hash chain, so that nobody's turns end those of another tenant.
type Conversation struct {
	ID   string
	Root blockhash.Hash
}

// Ledger remembers the last turns of conversations. When the next turn of one has
// its prompt computed, blocks of the oldest turn that the prompt did not take up
// again, such as reasoning that the client does not send back, are dead: nothing
// will ask for them. The ledger is bounded by keys and by what they remember; those
// that were used least recently are forgotten, which costs nothing but their dead.
type Ledger struct {
	turns   int // kept of a conversation
	maxKeys int
	maxRefs int
	refs    int // hashes in all records
	entries map[Conversation]*list.Element
	order   list.List // *ledgerEntry, the one used last at the front
}

type ledgerEntry struct {
	key  Conversation
	live uint64             // the turn that is under way, 0 = none
	past [][]blockhash.Hash // chains of the last turns, the oldest first
}

// NewLedger makes a ledger that keeps the given number of turns, at least 1, of at
// most maxKeys conversations with at most maxRefs block hashes in all.
func NewLedger(turns, maxKeys, maxRefs int) *Ledger {
	return &Ledger{turns: max(turns, 1), maxKeys: maxKeys, maxRefs: maxRefs, entries: map[Conversation]*list.Element{}}
}

// Len returns how many conversations are known.
func (l *Ledger) Len() int { return len(l.entries) }

// Begin starts a turn, whose number is not 0. It reports false while another turn
// of the conversation is under way: then the new one is not tracked.
func (l *Ledger) Begin(key Conversation, turn uint64) bool {
	el, ok := l.entries[key]
	if !ok {
		el = l.order.PushFront(&ledgerEntry{key: key})
		l.entries[key] = el
	}
	e := el.Value.(*ledgerEntry)
	if e.live != 0 {
		return false
	}
	e.live = turn
	l.order.MoveToFront(el)
	l.trim()
	return true
}

// Prefilled tells the chain of a turn's prompt once it is computed. It returns the
// blocks of the turn that will be dropped which neither the prompt nor a turn that
// is kept has, the last first.
func (l *Ledger) Prefilled(key Conversation, turn uint64, chain []blockhash.Hash) (dead []blockhash.Hash) {
	e := l.live(key, turn)
	if e == nil || len(e.past) < l.turns {
		return nil
	}
	oldest := e.past[0]
	keep := common(oldest, chain)
	for _, kept := range e.past[1:] {
		keep = max(keep, common(oldest, kept))
	}
	for i := len(oldest) - 1; i >= keep; i-- {
		dead = append(dead, oldest[i])
	}
	return dead
}

// End ends a turn: with its whole chain if it went well, which then becomes the
// newest record, or with nil, which leaves the records as they are.
func (l *Ledger) End(key Conversation, turn uint64, chain []blockhash.Hash) {
	e := l.live(key, turn)
	if e == nil {
		return
	}
	e.live = 0
	if chain == nil {
		if len(e.past) == 0 {
			l.forget(l.entries[key])
		}
		return
	}
	for len(e.past) >= l.turns {
		l.refs -= len(e.past[0])
		e.past = append(e.past[:0], e.past[1:]...)
	}
	e.past = append(e.past, append([]blockhash.Hash(nil), chain...))
	l.refs += len(chain)
	l.trim()
}

// Clear forgets everything; turns that are under way are not tracked any more.
func (l *Ledger) Clear() {
	clear(l.entries)
	l.order.Init()
	l.refs = 0
}

// Live returns how many turns are under way.
func (l *Ledger) Live() (n int) {
	for el := l.order.Front(); el != nil; el = el.Next() {
		if el.Value.(*ledgerEntry).live != 0 {
			n++
		}
	}
	return n
}

func (l *Ledger) live(key Conversation, turn uint64) *ledgerEntry {
	el, ok := l.entries[key]
	if !ok {
		return nil
	}
	if e := el.Value.(*ledgerEntry); turn != 0 && e.live == turn {
		return e
	}
	return nil
}

// trim forgets what was used least recently.
func (l *Ledger) trim() {
	for len(l.entries) > l.maxKeys || l.refs > l.maxRefs && len(l.entries) > 1 {
		l.forget(l.order.Back())
	}
}

func (l *Ledger) forget(el *list.Element) {
	e := el.Value.(*ledgerEntry)
	for _, chain := range e.past {
		l.refs -= len(chain)
	}
	delete(l.entries, e.key)
	l.order.Remove(el)
}

// common returns how many leading hashes two chains share. Chains are equal up to
// where they part, and never after.
func common(a, b []blockhash.Hash) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
