package executor

import (
	"time"

	"tandem/engine/transfer"
)

// maxRecent bounds how many ended and refused transfer ids are remembered.
const maxRecent = 16384

// recent remembers transfer ids for one lease: those that ended, and those that
// were aborted before they came. The oldest go first when there are too many.
type recent struct {
	keep  time.Duration
	marks map[transfer.ID]mark
	order []transfer.ID // ring; an id may be in it more often than in marks
	head  int
}

type mark struct {
	refused bool
	until   time.Duration
	at      int // position in order of the entry that counts
}

func newRecent(keep time.Duration) recent {
	return recent{keep: keep, marks: map[transfer.ID]mark{}}
}

func (r *recent) add(id transfer.ID, refused bool, now time.Duration) {
	at := len(r.order)
	if at < maxRecent {
		r.order = append(r.order, id)
	} else {
		at = r.head
		if old := r.order[at]; r.marks[old].at == at {
			delete(r.marks, old)
		}
		r.order[at] = id
		r.head = (r.head + 1) % maxRecent
	}
	r.marks[id] = mark{refused: refused, until: now + r.keep, at: at}
}

func (r *recent) ended(id transfer.ID, now time.Duration) bool {
	m, ok := r.marks[id]
	return ok && !m.refused && now <= m.until
}

func (r *recent) refused(id transfer.ID, now time.Duration) bool {
	m, ok := r.marks[id]
	return ok && m.refused && now <= m.until
}
