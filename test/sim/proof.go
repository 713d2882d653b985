package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/lockstep"
	"tandem/engine/request"
)

// slack is how late what is due may come: an iteration or two.
const slack = 50 * time.Millisecond

// maxChoices is the most that Traffic asks for.
const maxChoices = 4

// checkRows compares what ranks say of themselves with what clients know.
func (in *Instance) checkRows(rows []lockstep.Row) {
	active, full, lead := 0, false, in.Ranks[0].Lock
	for i := range rows {
		n := int(rows[i].Active)
		if in.cfg.Step.CountInTransfer && in.cfg.Step.Router.Kind == adprouter.KVCacheAware {
			n -= int(rows[i].Transfer)
		}
		if limit := in.cfg.Step.Router.Cap; n > limit {
			in.fail("rank %d has %d active requests, the cap is %d", i, n, limit)
		}
		active += n
		full = full || rows[i].FreeBlocks == 0
	}
	if full {
		in.Log.Full++
	}
	// One that waits has all of its choices.
	outside := lead.Stats(in.Now).Queued + len(in.Ranks[0].out.New)
	if left := in.live - active; left < outside || left > maxChoices*outside {
		in.fail("%d sequences are active and %d requests wait or enter, but %d choices have no end", active, outside, in.live)
	}
}

// checkSteps compares the ranks' decisions with each other and with what is true.
func (in *Instance) checkSteps() {
	first, some, padFull := in.Ranks[0].step, false, false
	for i, m := range in.Ranks {
		s := m.step
		if s.Forward != first.Forward || s.Gather != first.Gather || s.Held != first.Held || s.Stop != first.Stop ||
			!slices.Equal(s.RankRows, first.RankRows) {
			in.fail("rank %d decides %+v, rank 0 %+v", i, *s, *first)
		}
		m.rows = 0
		if s.Batch != nil {
			some = true
			for _, r := range s.Batch.Rows {
				m.rows += len(r.Tokens)
			}
			if m.rows == 0 {
				in.fail("rank %d has a batch without rows", i)
			}
		}
		if m.rows != s.RankRows[i] {
			in.fail("rank %d has %d rows, the others expect %d", i, m.rows, s.RankRows[i])
		}
		if pad := s.Forward && m.rows == 0; s.Pad != pad {
			in.fail("rank %d pads: %v, want %v", i, s.Pad, pad)
		}
		if s.Pad && m.row.FreeBlocks == 0 {
			padFull = true
		}
		if s.Pad {
			in.Log.Padded++
		}
	}
	if first.Forward != some {
		in.fail("a forward: %v, but rows: %v", first.Forward, some)
	}
	if first.Held {
		in.Log.Held++
	}
	if padFull {
		in.Log.FullPads++
	}
}

// check proves the ranks' invariants and that the instance gets on.
func (in *Instance) check() error {
	for i, m := range in.Ranks {
		if m.err != nil {
			in.fail("rank %d: %w", i, m.err)
		}
		if in.CheckEvery > 0 && in.Log.Iterations%in.CheckEvery != 0 {
			continue
		}
		if err := m.Lock.Check(); err != nil {
			in.fail("rank %d: %w", i, err)
		}
	}
	in.paths.check()
	for _, t := range in.cancels {
		if t.Finish == request.Running {
			in.fail("request %d was cancelled and goes on", t.Req.ID)
		}
	}
	in.cancels = in.cancels[:0]
	if in.changed {
		in.changes++
	}
	if in.idle++; in.changed || in.err != nil {
		in.idle, in.changed = 0, false
		return in.err
	}
	if in.idle > in.patience() && !in.Quiet() {
		in.fail("nothing changed in %d iterations, and the ranks do not rest: %s", in.idle, in.Dump())
	}
	return in.err
}

// patience is how many iterations without a change the balance may want.
func (in *Instance) patience() int {
	n := 8
	if in.cfg.NewBalance != nil {
		b := in.cfg.NewBalance()
		n += 2 * (b.TimeoutIters + b.BatchingWaitIters)
	}
	return n
}

// Quiet reports whether rank 0 may wait: it has nothing to do, and no other rank
// would wake it.
func (in *Instance) Quiet() bool {
	for _, m := range in.Ranks {
		if !m.Lock.Quiet() {
			return false
		}
	}
	return !in.mail
}

// Rest moves the clock of a quiet instance to the next event or deadline. It
// reports false when there is none; then nothing may be left to do. Before that
// it proves that one more iteration would have done nothing.
func (in *Instance) Rest() bool {
	in.Log.Idles++
	next, ok := in.next()
	if changes := in.changes; !ok || next > in.Now+slack {
		_, err := in.Step()
		if (in.changes != changes || in.stopped) && err == nil {
			in.fail("the ranks rested although they had work: %s", in.Dump())
		}
		next, ok = in.next()
	}
	if ok {
		in.Now = max(in.Now, next)
		in.changed = true
		return true
	}
	if in.live > 0 || len(in.aborts) > 0 {
		in.fail("%d requests and %d aborts have no end, and nothing will happen any more: %s", in.live, len(in.aborts), in.Dump())
	}
	return false
}

// next is when something is due.
func (in *Instance) next() (at time.Duration, ok bool) {
	if len(in.events) > 0 {
		at, ok = in.events[0].at, true
	}
	for _, m := range in.Ranks {
		if d, has := m.Lock.NextDeadline(); has && (!ok || d < at) {
			at, ok = d, true
		}
	}
	return at, ok
}

// Settle runs until nothing is left to do, at most limit iterations.
func (in *Instance) Settle(limit int) error {
	for range limit {
		if in.Quiet() && !in.Rest() {
			return in.err
		}
		if more, err := in.Step(); err != nil || !more {
			return err
		}
	}
	return fmt.Errorf("sim: still busy after %d iterations: %s", limit, in.Dump())
}

// Left says what should not be there after everything has ended.
func (in *Instance) Left() error {
	for i, m := range in.Ranks {
		st := m.Core.Stats()
		if st.BlocksFree+st.BlocksReusable != st.BlocksTotal || st.Holds+st.HandoffsOpen+st.Receiving+st.Running+st.Waiting != 0 {
			return fmt.Errorf("sim: rank %d: left over %+v", i, st)
		}
		if st.Deadlocks+st.IllegalTransition != 0 {
			return fmt.Errorf("sim: rank %d: a bug was counted: %+v", i, st)
		}
		if n := len(m.Tracks); n > 0 {
			return fmt.Errorf("sim: rank %d: %d requests were not retired", i, n)
		}
		if n, moves := m.Lock.Stats(in.Now).Queued, m.Lock.Router().Moves(); n > 0 || moves.Open > 0 || moves.Expired > 0 {
			return fmt.Errorf("sim: rank %d: %d requests wait, moves %+v", i, n, moves)
		}
	}
	if len(in.tracks)+in.live+len(in.aborts) > 0 {
		return fmt.Errorf("sim: %d requests and %d aborts are open", len(in.tracks), len(in.aborts))
	}
	return in.paths.left()
}

// Dump describes the ranks for the report of a failure.
func (in *Instance) Dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %v: %d live, mail %v\n", in.Now, in.live, in.mail)
	for i, m := range in.Ranks {
		at, has := m.Lock.NextDeadline()
		fmt.Fprintf(&b, "rank %d: quiet %v, deadline %v %v, load %+v, %+v\n", i, m.Lock.Quiet(), at, has, m.Core.Load(), m.Core.Stats())
	}
	fmt.Fprintf(&b, "%s", in.Ranks[0].Lock.Dump())
	return b.String()
}
