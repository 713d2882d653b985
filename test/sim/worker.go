package sim

import (
	"fmt"
	"slices"
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Track is everything the client of one request has seen, of its first choice.
type Track struct {
	Req     *request.Request
	Choice  int
	Forks   []*Track // the choices after the first
	Tokens  []int32
	Probs   []float64 // log-probabilities of the tokens
	Text    string
	Finish  request.Finish
	Err     *request.Error
	Usage   request.Usage
	Handle  *transfer.Handle
	Cancel  bool   // a cancel was sent
	FirstAt uint64 // launched steps when the first token came
	DoneAt  uint64
	Retired bool
}

// newTrack makes the tracks of a request's choices.
func newTrack(r *request.Request) *Track {
	t := &Track{Req: r}
	for i := range r.Answers() - 1 {
		t.Forks = append(t.Forks, &Track{Req: r, Choice: i + 1})
	}
	return t
}

// Choices are the tracks of all choices.
func (t *Track) Choices() []*Track { return append([]*Track{t}, t.Forks...) }

// first are the output tokens that the choice came with.
func (t *Track) first() []request.Token {
	if t.Req.Answers() > 1 && len(t.Req.FirstTokens) > 0 {
		return t.Req.FirstTokens[t.Choice : t.Choice+1]
	}
	return t.Req.FirstTokens
}

// Worker is one core with a fake model and a record of what clients see.
type Worker struct {
	Core   *executor.Core
	Model  *Model
	Tracks map[request.ID]*Track
	Order  []request.ID // ids in order of submission

	// BeforeApply runs while a step is in flight; FailStep may fail it.
	BeforeApply func(*executor.Batch)
	FailStep    func(*executor.Batch) error
	BadToken    func() bool // says that a row's logits are of no use
	// OnEffects sees the effects beyond outputs.
	OnEffects func(*executor.Effects)
	OnRestart func() // sees that a new core has begun

	Rows     int    // rows run so far
	Fed      int    // of them, whose token came from the step before
	MaxAlive int    // most requests with blocks seen in a step
	Log      string // rows of each step as "id:tokens", if KeepLog
	KeepLog  bool

	Strict     bool   // prove after each step what prove.go lists
	CheckEvery uint64 // prove the core's invariants in every n-th step, 0 = in all

	Overlap Overlap // plan a step while another runs
	flying  *launch // that step

	fetch func() *executor.Effects // Core.Effects, or of what is around it
	cfg   executor.Config
	shelf *shelf
	err   error

	strict strict
	forked bool // had a request of several choices, which may start as if it were paused
}

// NewWorker makes a worker.
func NewWorker(cfg executor.Config) (*Worker, error) {
	c, err := executor.New(cfg)
	if err != nil {
		return nil, err
	}
	cfg = c.Config()
	return &Worker{
		Core: c, fetch: c.Effects, cfg: cfg, Tracks: map[request.ID]*Track{},
		Model: modelOf(&cfg), shelf: newShelf(),
	}, nil
}

// Root returns the chain root of a request.
func (w *Worker) Root(r *request.Request) blockhash.Hash {
	return blockhash.Root(w.cfg.Namespace, "", r.CacheSalt)
}

// Submit hands a request to the core.
func (w *Worker) Submit(now time.Duration, r *request.Request, h *transfer.Handle) *Track {
	t := newTrack(r)
	w.forked = w.forked || r.Answers() > 1
	if w.Tracks[r.ID] == nil {
		w.Order = append(w.Order, r.ID)
	}
	w.Tracks[r.ID] = t
	w.Core.Submit(now, r, h)
	w.flush()
	return t
}

// Step runs one iteration and reports whether a step was launched.
func (w *Worker) Step(now time.Duration) (bool, error) {
	if w.Overlap != InTurn {
		return w.overlapped(now)
	}
	w.look()
	b := w.Core.Plan(now)
	w.flush()
	if b == nil {
		return false, w.check()
	}
	if err := w.checkBatch(b); err != nil {
		return true, err
	}
	if err := w.proveBatch(b); err != nil {
		return true, err
	}
	w.apply(now, b, w.run(b))
	return true, w.check()
}

// apply gives the core the results of a batch, and reports whether these are good.
func (w *Worker) apply(now time.Duration, b *executor.Batch, res executor.Result) bool {
	if w.BeforeApply != nil {
		w.BeforeApply(b)
	}
	if w.FailStep != nil {
		if err := w.FailStep(b); err != nil {
			res = executor.Result{Err: err}
			w.Model.Spoil(b)
		}
	}
	w.Core.Apply(now, res)
	w.flush()
	return res.Err == nil
}

// Run steps until nothing can run, at most limit times.
func (w *Worker) Run(now time.Duration, limit int) error {
	for range limit {
		ran, err := w.Step(now)
		if err != nil || !ran {
			return err
		}
	}
	return fmt.Errorf("sim: still busy after %d steps", limit)
}

func (w *Worker) check() error {
	if w.err != nil {
		return w.err
	}
	if w.CheckEvery > 0 && w.Core.Stats().Iter%w.CheckEvery != 0 {
		return nil
	}
	if err := w.proveEvents(); err != nil {
		return err
	}
	return w.Core.Check()
}

func (w *Worker) run(b *executor.Batch) executor.Result {
	w.Model.Copy(b.Copies)
	res := executor.Result{Sampled: make([]executor.Sampled, len(b.Rows))}
	for _, r := range b.Rows {
		w.Model.Write(w.Root(r.Request), r)
		w.Rows += len(r.Tokens)
		if w.KeepLog {
			w.Log += fmt.Sprintf("%d:%d ", r.Request.ID, len(r.Tokens))
		}
	}
	if w.KeepLog {
		w.Log += "| "
	}
	for i, r := range b.Rows {
		h, err := w.Model.Next(w.Root(r.Request), r, w.knownTo(&r))
		if err != nil && w.err == nil {
			w.err = err
		}
		res.Sampled[i].Token = w.token(h, r.Request)
		if r.Sample && w.BadToken != nil && w.BadToken() {
			res.Sampled[i].Err = request.Errorf(request.BadLogits, "not a number")
		}
		for _, q := range r.Forks {
			res.Sampled[i].Forks = append(res.Sampled[i].Forks, executor.Sampled{Token: w.token(h, q)})
		}
	}
	return res
}

func (w *Worker) token(h uint64, r *request.Request) request.Token {
	return request.Token{ID: draw(h, w.Model.Vocab, int(r.Sampling.Stream)), Logprob: -float64(h % 1009)}
}

// known returns the tokens a choice has by the client's account.
func (w *Worker) known(r *request.Request) []int32 {
	t := w.Tracks[r.ID].Choices()[r.Sampling.Stream]
	out := slices.Clone(r.Prompt)
	if r.FirstEmitted || len(t.Tokens) == 0 {
		for _, f := range r.FirstTokens {
			out = append(out, f.ID)
		}
	}
	return append(out, t.Tokens...)
}

// checkBatch proves INV-8 and INV-9.
func (w *Worker) checkBatch(b *executor.Batch) error {
	rows := 0
	type sequence struct {
		id     request.ID
		stream uint32
	}
	seen := map[sequence]bool{}
	for _, r := range b.Rows {
		rows += len(r.Tokens)
		end, seq := r.Pos+len(r.Tokens), sequence{r.Request.ID, r.Request.Sampling.Stream}
		known := w.knownTo(&r)
		switch {
		case seen[seq]:
			return fmt.Errorf("sim: INV-8: request %d is twice in a batch", r.Request.ID)
		case len(r.Tokens) == 0 || end > len(known) || !slices.Equal(known[r.Pos:end], r.Tokens):
			return fmt.Errorf("sim: INV-8: request %d: row of %d tokens at %d of %d", r.Request.ID, len(r.Tokens), r.Pos, len(known))
		case r.Feed > 0 && (len(r.Forks) > 0 || r.Context):
			return fmt.Errorf("sim: request %d: a row that takes a token over draws for %d others", r.Request.ID, len(r.Forks))
		case r.Sample != (end == len(known)):
			return fmt.Errorf("sim: request %d: sample %v at %d of %d", r.Request.ID, r.Sample, end, len(known))
		case !r.Sample && end%w.cfg.BlockTokens != 0:
			return fmt.Errorf("sim: INV-9: request %d: chunk ends at %d", r.Request.ID, end)
		case r.Sample && r.Index != len(known)-len(r.Request.Prompt):
			return fmt.Errorf("sim: request %d: output index %d", r.Request.ID, r.Index)
		}
		seen[seq] = true
	}
	if rows > w.cfg.MaxNumTokens || len(b.Rows) > w.cfg.MaxBatch {
		return fmt.Errorf("sim: INV-8: %d rows of %d requests", rows, len(b.Rows))
	}
	w.MaxAlive = max(w.MaxAlive, w.Core.Stats().Running)
	return nil
}

// flush carries out effects.
func (w *Worker) flush() {
	e := w.fetch()
	w.shelf.take(w.Model, e.Moves)
	for _, o := range e.Outputs {
		if err := w.output(o); err != nil && w.err == nil {
			w.err = err
		}
	}
	for _, id := range e.Retired {
		if t := w.Tracks[id]; t != nil {
			for _, c := range t.Choices() {
				c.Retired = true
			}
		}
	}
	if w.OnEffects != nil {
		w.OnEffects(e)
	}
}

// output records an event and proves INV-11.
func (w *Worker) output(o executor.Output) error {
	t := w.Tracks[o.Request.ID]
	if t == nil || t.Req != o.Request {
		return fmt.Errorf("sim: output for a foreign request %d", o.Request.ID)
	}
	t = t.Choices()[o.Choice]
	before := len(t.Tokens)
	if t.Req.FirstEmitted {
		before += len(t.first())
	}
	iter := w.Core.Stats().Iter
	switch {
	case t.Finish != request.Running:
		return fmt.Errorf("sim: INV-11: request %d: an event after the final one (%s)", o.Request.ID, t.Finish)
	case len(o.Tokens) > 0 && o.First != before:
		return fmt.Errorf("sim: INV-11: request %d: token event at %d, want %d", o.Request.ID, o.First, before)
	}
	if len(o.Tokens) > 0 && before == 0 {
		t.FirstAt = iter
	}
	for _, tok := range o.Tokens {
		t.Tokens, t.Probs = append(t.Tokens, tok.ID), append(t.Probs, tok.Logprob)
	}
	t.Text += o.Text
	t.Finish, t.Err, t.Usage = o.Finish, o.Err, o.Usage
	if o.Handle != nil {
		t.Handle = o.Handle
	}
	if o.Finish != request.Running {
		t.DoneAt = iter
	}
	return nil
}
