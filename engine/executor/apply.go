package executor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// errorPoints is the error budget: a failed step costs one, a severe error
// severePoints; at zero the core gives up. A minute gives one back, and so do
// goodSteps steps in a row: one error in a thousand steps is no reason to stop,
// however fast these are, and one in fifty is, however slow.
const (
	errorPoints  = 10
	severePoints = 5
	goodSteps    = 100
)

// Apply takes the outcome of the oldest batch that was planned and has none yet.
func (c *Core) Apply(now time.Duration, r Result) {
	if c.flights.n == 0 {
		panic("executor: Apply without a batch")
	}
	f := c.flights.end()
	c.stats.LastStep = now - max(f.planned, c.applied)
	c.now, c.applied = now, now
	if f.share.ctxTokens > 0 && r.Err == nil {
		average(&c.loads.prefill, c.stats.LastStep/time.Duration(f.share.ctxTokens+f.share.genTokens))
	}
	c.stats.PrefillTokens += uint64(f.share.ctxTokens)
	c.stats.DecodeTokens += uint64(f.share.genTokens)
	for _, cp := range f.batch.Copies {
		c.kv.EndCopy(cp.From)
	}
	if r.Err == nil {
		r.Err = f.incomplete(r.Sampled)
	}
	c.recordEnd(f, r.Err)
	if r.Err != nil || f.void {
		c.stepFailed(f, r.Err)
		return
	}
	c.stepped()
	for i := range f.rows {
		c.land(f, i, r.Sampled[i])
	}
	if c.flights.n == 0 {
		c.kv.ClearPending()
	}
}

// land takes the outcome of one row.
func (c *Core) land(f *flight, i int, r Sampled) {
	planned, row := f.rows[i], &f.batch.Rows[i]
	s := c.slots[planned.Seq.Slot]
	closed := s.State == request.Closed
	c.alight(s)
	if closed && row.Feed > 0 { // in vain
		c.stats.DecodeTokens -= uint64(planned.Tokens)
		c.retire(s)
		return
	}
	c.trust(s)
	s.scored(row, r.Scores)
	if s.fresh && s.first {
		c.countPrefix(s)
	}
	s.tries, s.fresh = 0, false
	if len(s.Table) > 0 { // else it was paused, and maybe cancelled then, and the blocks are gone
		s.done += planned.Tokens
		c.commit(s)
		c.trim(s)
	}
	if closed {
		c.retire(s) // cancelled while it ran: its blocks are good, its token is not
		return
	}
	if len(s.forks) > 0 && (s.done >= s.prompt || len(row.Forks) > 0) {
		c.forkOff(s, r.Forks)
	}
	if !row.Sample {
		c.publish(s)
		return
	}
	c.sampled(s, r)
	c.follow(s)
}

// incomplete reports results that are not those of the batch.
func (f *flight) incomplete(res []Sampled) error {
	if len(res) != len(f.rows) {
		return fmt.Errorf("executor: %d results for %d rows", len(res), len(f.rows))
	}
	for i := range res {
		if got, want := len(res[i].Scores), len(f.batch.Rows[i].Score); got != want {
			return fmt.Errorf("executor: %d scores for the %d positions of row %d", got, want, i)
		}
		if got, want := len(res[i].Forks), len(f.batch.Rows[i].Forks); got != want {
			return fmt.Errorf("executor: %d results for the %d further choices of row %d", got, want, i)
		}
	}
	return nil
}

// commit enters the computed blocks of s that may be shared into the index.
func (c *Core) commit(s *sequence) {
	b, full := c.cfg.BlockTokens, c.shareable(s)
	if c.cfg.BlockReuse && !s.private && full > s.committed {
		s.chain(full, b)
		for i := s.committed; i < full; i++ {
			c.kv.Commit(s.Table[i], s.parent(i), s.hashes[i], s.tokens[i*b:(i+1)*b])
		}
	}
	s.committed = max(s.committed, full)
	c.turnPrefilled(s)
}

// sampled appends a new output token and moves the request on.
func (c *Core) sampled(s *sequence, r Sampled) {
	if r.Err != nil {
		c.fail(s, r.Err)
		return
	}
	if r.Token.ID < 0 || int(r.Token.ID) >= c.cfg.Vocab {
		c.fail(s, request.Errorf(request.Internal, "the sampler returned token %d of %d", r.Token.ID, c.cfg.Vocab))
		return
	}
	c.gained = c.now
	s.append(r.Token.ID)
	text, rest, end := c.show(s, r.Token.ID)
	out := Output{First: s.emitted - 1, Tokens: c.keep(r.Token), Text: text + rest, Finish: end}
	switch {
	case end != request.Running && !s.owed:
		c.finish(s, out)
	case s.head != nil && s.req.Kind == request.ContextOnly:
		s.head.owed, out.Finish = true, request.FinishNotFinished
		c.finish(s, out)
	case s.head != nil:
		c.split(s, request.Decode)
		c.emit(s, out)
	case s.req.Kind == request.ContextOnly:
		c.openLease(s, out)
	default:
		if s.State == request.Decode || s.State == request.Paused || c.enter(s, request.Decode) {
			c.emit(s, out)
		}
	}
}

// show counts an output token and runs the stop rules in their order. It
// returns the text that may be shown because of the token and, when the request
// ends, what was held back before.
func (c *Core) show(s *sequence, id int32) (shown, rest string, end request.Finish) {
	s.emitted++
	if s.emitted == 1 {
		s.times.First = c.now
	}
	sp, text := &s.req.Sampling, s.req.Text
	may := s.emitted >= sp.MinTokens
	if may && (!sp.IgnoreEOS && slices.Contains(sp.EOS, id) || slices.Contains(sp.StopTokenIDs, id)) {
		if text != nil {
			rest = text.Flush()
		}
		return "", rest, request.FinishStop
	}
	if text != nil {
		var stopped bool
		shown, stopped = text.Push(id)
		if stopped && may {
			return shown, "", request.FinishStop
		}
	}
	if s.emitted < s.max {
		return shown, "", request.Running
	}
	if text != nil {
		rest = text.Flush()
	}
	return shown, rest, request.FinishLength
}

// countPrefix counts how much of a prompt was found when it was first admitted.
func (c *Core) countPrefix(s *sequence) {
	c.stats.PrefixQueryTokens += uint64(len(s.req.Prompt))
	c.stats.PrefixHitTokens += uint64(s.cached)
}

// unadmit puts a request that was admitted in the step that does not count back
// into the queue, in its place.
func (c *Core) unadmit(s *sequence, to request.State) {
	c.withdraw(s)
	if s.first {
		s.admitted, s.cached = false, 0
	}
	c.sch.Requeue(&s.Seq)
	s.done, s.committed = 0, 0
	c.enter(s, to)
}

// stepFailed handles a failed step: its requests are tried once more, in
// smaller pieces, and ended if that fails too. Nothing of the step stays, nor of
// one that runs on its results.
func (c *Core) stepFailed(f *flight, err error) {
	c.kv.ClearPending()
	tokens, again := 0, c.suspects > 0
	for _, row := range f.rows {
		tokens += row.Tokens
		c.undo(f, c.slots[row.Seq.Slot], err)
	}
	if f.void {
		return
	}
	if c.flights.n > 0 {
		c.flights.oldest().void = true
	}
	if !again { // else the other half is still to come: smaller pieces of it would only cost more errors
		c.piece = scheduler.Limits{
			MaxTokens: max(c.cfg.BlockTokens, (tokens+1)/2), MaxBatch: max(1, (len(f.rows)+1)/2),
		}
	}
	c.charge(err)
}

// undo takes back a row of a step that failed.
func (c *Core) undo(f *flight, s *sequence, err error) {
	fresh := s.fresh
	s.fresh = false
	c.alight(s)
	if s.State == request.Closed {
		c.retire(s)
		return
	}
	c.rollBack(s)
	if !f.void {
		if s.tries++; s.tries > 1 {
			c.fail(s, request.Errorf(request.StepFailed, "a forward step failed twice: %v", err))
			return
		}
		if !s.Suspect {
			s.Suspect = true
			c.suspects++
		}
	}
	if fresh && s.State != request.Paused { // may have shared blocks that were to be computed in this step
		c.unadmit(s, request.Paused)
	}
}

// severe is an error that says that more is wrong than one batch: the device ran
// out of memory, say. It costs more of the budget.
type severe interface{ Severe() bool }

// cost is what an error takes off the budget.
func cost(err error) float64 {
	var s severe
	if errors.As(err, &s) && s.Severe() {
		return severePoints
	}
	return 1
}

// budget is what is left of the error budget now.
func (c *Core) budget() float64 {
	return min(errorPoints, c.errBudget+(c.now-c.budgetAt).Minutes())
}

// stepped counts a step that went well.
func (c *Core) stepped() {
	if c.good++; c.good == goodSteps {
		c.good = 0
		c.errBudget, c.budgetAt = min(errorPoints, c.budget()+1), c.now
	}
}

// charge takes a failed step off the error budget.
func (c *Core) charge(err error) {
	c.stats.StepErrors++
	c.good = 0
	c.errBudget = c.budget() - cost(err)
	c.budgetAt = c.now
	if c.errBudget <= 0 {
		c.die(fmt.Errorf("executor: too many failed steps, the last: %w", err))
	}
}

// trust ends the special treatment of a request whose step had failed.
func (c *Core) trust(s *sequence) {
	if s.Suspect {
		s.Suspect = false
		c.suspects--
	}
}

func (c *Core) trustAll() {
	for _, s := range c.slots {
		if s != nil {
			c.trust(s)
		}
	}
}
