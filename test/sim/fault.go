package sim

import (
	"fmt"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
)

// Restart puts a new core in the place of one whose process was killed. Nothing
// of the old one is left, and its clients' connections break.
func (w *Worker) Restart() error {
	w.cfg.Incarnation += "+"
	c, err := executor.New(w.cfg)
	if err != nil {
		return err
	}
	w.Core, w.fetch, w.cfg = c, c.Effects, c.Config()
	w.Model, w.flying = modelOf(&w.cfg), nil
	w.shelf, w.strict = w.shelf.restart(), strict{}
	c.Restore(w.shelf.known)
	for _, id := range w.Order {
		for _, t := range w.Tracks[id].Choices() {
			if t.Finish == request.Running {
				t.Finish, t.Err = request.FinishError, request.Errorf(request.EngineDead, "the connection broke")
			}
			t.Retired = true
		}
	}
	w.Order = w.Order[:0]
	if w.OnRestart != nil {
		w.OnRestart()
	}
	return nil
}

// Kill ends a worker and starts it anew. The other side of its transfers notices
// at once, later, or only by its own deadlines.
func (c *Cluster) Kill(w *Worker) error {
	if err := w.Restart(); err != nil {
		return err
	}
	if w == c.Ctx {
		clear(c.serving)
	}
	for _, p := range c.underWay() {
		if w == c.Gen {
			p.finished = true // and with it its process
			p.detach(false)
			continue
		}
		if c.rng.IntN(2) == 0 {
			c.send(func() { p.end(p.peer, "connection lost") })
		}
	}
	return nil
}

// Cut breaks the connections of all transfers.
func (c *Cluster) Cut() {
	for _, p := range c.underWay() {
		p.cut()
	}
}

// CancelAll ends all requests, as when all clients leave.
func (c *Cluster) CancelAll() {
	for _, s := range c.Sessions {
		if !s.cancelled {
			c.Cancel(s)
		}
	}
	for _, w := range c.workers() {
		for _, id := range w.Order {
			w.Core.Cancel(c.Now, id)
		}
		w.flush()
	}
}

// vacancy is how long after CancelAll a worker may keep something.
type vacancy struct {
	w    *Worker
	wait time.Duration
}

func (c *Cluster) emptied() [2]vacancy {
	return [2]vacancy{{c.Gen, c.Net.StopTime + 2*c.Step}, {c.Ctx, c.Ctx.cfg.Lease + 2*c.Step}}
}

// gone proves that a worker has nothing any more, but for copies that end now.
func (c *Cluster) gone(w *Worker) error {
	c.pump(w, len(w.shelf.queue))
	if err := w.Empty(); err != nil {
		return fmt.Errorf("INV-14: %s, cancelled: %w", w.cfg.Role, err)
	}
	return nil
}

// underWay are the pulls under way, in the order of their start.
func (c *Cluster) underWay() (out []*puller) {
	for _, p := range c.started {
		if !p.finished {
			out = append(out, p)
		}
	}
	c.started = append(c.started[:0], out...)
	return out
}

// Verify checks what clients got against the oracle, that each had one final
// event, and that nothing is left at the workers. Call it when nothing will
// happen any more.
func (c *Cluster) Verify() error {
	for _, s := range c.Sessions {
		if err := c.verifySession(s); err != nil {
			return fmt.Errorf("session %d: %w", s.ID, err)
		}
	}
	for _, w := range c.workers() {
		if err := w.verify(); err != nil {
			return fmt.Errorf("%s: %w", w.cfg.Role, err)
		}
	}
	if n := len(c.events); n > 0 {
		return fmt.Errorf("%d events are due, and nothing happens", n)
	}
	return nil
}

func (c *Cluster) workers() []*Worker {
	if c.Ctx == c.Gen {
		return []*Worker{c.Ctx}
	}
	return []*Worker{c.Ctx, c.Gen}
}

func (c *Cluster) verifySession(s *Session) error {
	last := s.Ctx
	if s.Gen != nil {
		last = s.Gen
	}
	for i, choice := range last.Choices() {
		want := OracleChoice(c.Ctx.cfg.Vocab, c.Ctx.Root(last.Req), s.Prompt, i, s.MaxTokens)
		if err := prefixOf(s.Tokens(i), want, choice.Finish == request.FinishLength); err != nil {
			return fmt.Errorf("choice %d: %w", i, err)
		}
	}
	for _, leg := range []*Track{s.Ctx, s.Gen} {
		if err := leg.ended(); err != nil {
			return err
		}
	}
	return nil
}

// prefixOf compares tokens with those of the oracle.
func prefixOf(got, want []int32, whole bool) error {
	if len(got) > len(want) || whole && len(got) != len(want) {
		return fmt.Errorf("sim: INV-16: %d tokens of %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("sim: INV-16: token %d is %d, alone it is %d", i, got[i], want[i])
		}
	}
	return nil
}

// ended proves that the client of a leg has its final event, and the worker
// forgot the leg.
func (t *Track) ended() error {
	if t == nil {
		return nil
	}
	for _, q := range t.Choices() {
		if q.Finish == request.Running || !q.Retired {
			return fmt.Errorf("sim: INV-11: choice %d of request %d hangs: finish %q, retired %v", q.Choice, t.Req.ID, q.Finish, q.Retired)
		}
	}
	return nil
}

// verify checks the requests that only this worker had, and that it is empty.
func (w *Worker) verify() error {
	for _, id := range w.Order {
		t := w.Tracks[id]
		if err := t.ended(); err != nil {
			return err
		}
		for _, q := range t.Choices() {
			if t.Req.Kind != request.Full {
				continue
			}
			want := OracleChoice(w.cfg.Vocab, w.Root(t.Req), t.Req.Prompt, q.Choice, t.Req.MaxTokens)
			if t.Req.FirstEmitted {
				want = want[len(t.first()):]
			}
			if err := prefixOf(q.Tokens, want, q.Finish == request.FinishLength); err != nil {
				return fmt.Errorf("request %d, choice %d: %w", id, q.Choice, err)
			}
		}
	}
	return w.Empty()
}

// Empty says what a worker without requests should not have.
func (w *Worker) Empty() error {
	st := w.Core.Stats()
	if st.BlocksFree+st.BlocksReusable != st.BlocksTotal || st.Holds+st.HandoffsOpen+st.Receiving+st.Running+st.Waiting != 0 {
		return fmt.Errorf("sim: INV-4: left over: %+v", st)
	}
	if st.Deadlocks+st.IllegalTransition != 0 {
		return fmt.Errorf("sim: a bug was counted: %+v", st)
	}
	return w.Core.Check()
}
