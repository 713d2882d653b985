package executor

import (
	"errors"
	"slices"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// fatal is the part of testing.TB and rapid.T that the checks need.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// client is what the sender of one request has seen.
type client struct {
	req     *request.Request
	tokens  []int32
	finish  request.Finish
	err     *request.Error
	usage   request.Usage
	handle  *transfer.Handle
	retired bool
	loans   []Borrowed
	forks   []*client // the choices after the first
}

// choice returns the client of choice i.
func (cl *client) choice(i int) *client {
	if i == 0 {
		return cl
	}
	return cl.forks[i-1]
}

// rank is a core with a fake model. The K and V of a position is a hash of
// all tokens up to it, so that a wrong block is seen wherever it comes from.
type rank struct {
	*Core
	t       fatal
	cache   []uint64
	clients map[request.ID]*client
	moved   *movers
	below   *below
	pulls   []transfer.Pull // ordered so far

	hold      bool   // hold the next plan
	between   func() // once, between Plan and Hold or Apply
	failNext  bool
	prefilled int // prompt tokens of rows that ran
	ran       int // steps
}

func newRank(t fatal, cfg Config) *rank {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &rank{Core: c, t: t, cache: make([]uint64, cfg.Blocks*cfg.BlockTokens), clients: map[request.ID]*client{}}
}

func (r *rank) submit(q *request.Request, h *transfer.Handle) *client {
	refused := r.Precheck(q, h)
	cl := &client{req: q}
	for range q.Answers() - 1 {
		cl.forks = append(cl.forks, &client{req: q})
	}
	r.clients[q.ID] = cl
	r.Submit(r.now, q, h)
	r.collect()
	if refused == nil != (cl.err == nil || cl.err.Code == request.QueueFull) {
		r.t.Fatalf("request %d: precheck says %v, submit %v", q.ID, refused, cl.err)
	}
	return cl
}

// collect carries out effects and proves the invariants.
func (r *rank) collect() {
	e := r.Effects()
	if r.below != nil {
		r.below.take(r, e.Moves)
	}
	for _, o := range e.Outputs {
		cl := r.clients[o.Request.ID].choice(o.Choice)
		if o.Request != cl.req {
			r.t.Fatalf("request %d: an output of another record", o.Request.ID)
		}
		if cl.finish != request.Running || o.First != len(cl.tokens) {
			r.t.Fatalf("request %d: output %+v after %q and %d tokens", o.Request.ID, o, cl.finish, len(cl.tokens))
		}
		for _, t := range o.Tokens {
			cl.tokens = append(cl.tokens, t.ID)
		}
		cl.finish, cl.err, cl.usage = o.Finish, o.Err, o.Usage
		if o.Handle != nil {
			cl.handle = o.Handle
		}
	}
	r.pulls = append(r.pulls, e.Pulls...)
	for _, b := range e.Borrowed {
		r.clients[b.ID].loans = append(r.clients[b.ID].loans, b)
	}
	for _, id := range e.Retired {
		if r.clients[id].retired {
			r.t.Fatalf("request %d retired twice", id)
		}
		r.clients[id].retired = true
	}
	if r.moved != nil {
		r.moved.carryOut(r, e)
	}
	r.check()
}

func (r *rank) check() {
	r.t.Helper()
	if err := r.Check(); err != nil {
		r.t.Fatalf("%v", err)
	}
}

// step runs one iteration and reports whether a batch ran.
func (r *rank) step(now time.Duration) bool {
	b := r.Plan(now)
	r.check()
	r.checkLoad(b)
	if f := r.between; f != nil {
		r.between = nil
		f()
	}
	if r.hold {
		before := b
		b = r.Hold()
		r.check()
		r.checkHeld(before, b)
	}
	r.collect()
	if b == nil {
		return false
	}
	r.ran++
	res := r.run(b)
	if r.failNext {
		r.failNext = false
		res = Result{Err: errors.New("injected")}
	}
	r.Apply(now, res)
	r.collect()
	return true
}

// drainQueue runs without holding until nothing can run any more.
func (r *rank) drainQueue(now time.Duration) {
	r.hold = false
	for range 10000 {
		if !r.step(now) {
			return
		}
	}
	r.t.Fatalf("still busy")
}

func (r *rank) run(b *Batch) Result {
	size := r.cfg.BlockTokens
	for _, c := range b.Copies {
		from, to := int(c.From)*size, int(c.To)*size
		copy(r.cache[to:to+c.Tokens], r.cache[from:from+c.Tokens])
	}
	res := Result{Sampled: make([]Sampled, len(b.Rows))}
	for i, row := range b.Rows { // all rows write before any reads: they may share
		h := seed(row.Request)
		known := r.known(row.Request)
		for p, t := range known[:row.Pos+len(row.Tokens)] {
			h = mixToken(h, t)
			if p >= row.Pos {
				r.cache[int(row.Pages[p/size])*size+p%size] = h
			}
		}
		if row.Context {
			r.prefilled += len(row.Tokens)
		}
		res.Sampled[i].Token.ID = r.draw(h, row.Request.Sampling.Stream)
		for _, q := range row.Forks {
			res.Sampled[i].Forks = append(res.Sampled[i].Forks, Sampled{Token: request.Token{ID: r.draw(h, q.Sampling.Stream)}})
		}
	}
	for _, row := range b.Rows {
		r.verifyPages(row)
	}
	return res
}

// draw is the fake sampler: few tokens, so that prompts meet again.
func (r *rank) draw(h uint64, stream uint32) int32 {
	t := int32((h^uint64(stream)<<24)>>20) % int32(r.cfg.Vocab/4)
	return max(t, -t)
}

// verifyPages proves that all of a row's past is in its pages.
func (r *rank) verifyPages(row Row) {
	size, h := r.cfg.BlockTokens, seed(row.Request)
	for p, t := range r.known(row.Request)[:row.Pos+len(row.Tokens)] {
		h = mixToken(h, t)
		if got := r.cache[int(row.Pages[p/size])*size+p%size]; got != h {
			r.t.Fatalf("request %d reads other K and V at position %d of block %d", row.Request.ID, p, row.Pages[p/size])
		}
	}
}

func (r *rank) known(q *request.Request) []int32 {
	all := slices.Clone(q.Prompt)
	return append(all, r.clients[q.ID].choice(int(q.Sampling.Stream)).tokens...)
}

func seed(q *request.Request) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range []byte(q.CacheSalt) {
		h = mixToken(h, int32(b))
	}
	return h
}

func mixToken(h uint64, t int32) uint64 {
	h = (h ^ uint64(uint32(t))) * 1099511628211
	return h ^ h>>29
}

// oracle returns the n tokens that follow a prompt in a choice.
func (r *rank) oracle(q *request.Request, choice, n int) []int32 {
	h := seed(q)
	for _, t := range q.Prompt {
		h = mixToken(h, t)
	}
	out := make([]int32, n)
	for i := range out {
		t := r.draw(h, uint32(choice))
		out[i], h = t, mixToken(h, t)
	}
	return out
}

// verifyEnd proves that every client has what the oracle says and that
// nothing is left.
func (r *rank) verifyEnd(all bool) {
	r.t.Helper()
	for id, cl := range r.clients {
		r.verifyChoice(id, 0, cl, all)
		if !cl.retired {
			r.t.Fatalf("request %d is not retired", id)
		}
		for i, k := range cl.forks {
			r.verifyChoice(id, i+1, k, all)
		}
	}
	st := r.Stats()
	if st.BlocksFree+st.BlocksReusable != st.BlocksTotal || st.Holds+st.Waiting+st.Running != 0 || st.Deadlocks != 0 {
		r.t.Fatalf("left over: %+v", st)
	}
}

func (r *rank) verifyChoice(id request.ID, choice int, cl *client, all bool) {
	r.t.Helper()
	want := r.oracle(cl.req, choice, cl.req.MaxTokens)
	if len(cl.tokens) > len(want) || !slices.Equal(cl.tokens, want[:len(cl.tokens)]) {
		r.t.Fatalf("request %d, choice %d: %v, want %v", id, choice, cl.tokens, want)
	}
	if cl.finish == request.FinishLength && len(cl.tokens) != len(want) || cl.finish == request.Running {
		r.t.Fatalf("request %d, choice %d ended %q with %d of %d tokens", id, choice, cl.finish, len(cl.tokens), len(want))
	}
	if all && cl.finish == request.FinishError && cl.err.Code != request.InvalidRequest {
		r.t.Fatalf("request %d failed: %v", id, cl.err)
	}
}

// checkLoad compares Load with a count of its own.
func (r *rank) checkLoad(b *Batch) {
	r.t.Helper()
	want := Load{FreeBlocks: r.kv.Free()}
	for _, s := range r.slots {
		if s == nil {
			continue
		}
		p, cached := len(s.req.Prompt), s.cached
		switch s.State {
		case request.Waiting, request.Paused:
			want.Waiting++
			want.QueuedPrefill += p
			if s.State == request.Waiting && !s.admitted { // what arrival found; see TestLoadExpectsReuse
				want.QueuedPrefill -= s.likely
				cached = s.likely
			}
		case request.Fork:
		case request.GenInit:
			if len(s.Table) == 0 { // else it waits for lower tiers
				want.Waiting++
			}
			want.QueuedPrefill += p - s.Offered
		case request.GenRecv:
			want.QueuedPrefill += p - s.Offered
		case request.CtxSend:
			want.Transfer++
			continue
		case request.Closed:
			want.Retiring++
			continue
		default:
			want.QueuedPrefill += max(p-s.done, 0)
		}
		want.Active++
		want.PromptTokens += p
		if s.choice == 0 {
			want.UncachedTokens += max(p-cached, 0)
		}
	}
	if b != nil {
		for _, row := range b.Rows {
			if row.Context {
				want.CtxRequests++
				want.CtxTokens += len(row.Tokens)
			} else {
				want.GenRequests++
				want.GenTokens += len(row.Tokens)
			}
		}
	}
	if got := r.Load(); got != want {
		r.t.Fatalf("load %+v, want %+v", got, want)
	}
}
