package runner

import (
	"encoding/json"
	"math"
	"slices"
	"time"

	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// postKind says what a message to the leader's process is about.
type postKind uint8

const (
	postPlaced  postKind = iota // a rank has the request, or has refused it
	postOutput                  // one output of a request
	postRetired                 // nothing of the request is left
	postAbort                   // a rank's answer to an abort
	postStats                   // a rank's figures
)

// post is a message from a rank to the process that has the clients. It travels
// beside the lockstep, never in a collective.
type post struct {
	Kind     postKind
	Rank     int                 `json:",omitempty"`
	ID       request.ID          `json:",omitempty"`
	Route    *Route              `json:",omitempty"`
	Err      *request.Error      `json:",omitempty"`
	Output   *farOutput          `json:",omitempty"`
	Transfer transfer.ID         `json:",omitempty"`
	State    executor.AbortState `json:",omitempty"`
	Stats    *RankStats          `json:",omitempty"`
}

// farOutput is an Output without pointers into the core.
type farOutput struct {
	Choice int `json:",omitempty"`
	First  int
	Tokens []request.Token `json:",omitempty"`
	Text   string          `json:",omitempty"`
	Finish request.Finish  `json:",omitempty"`
	Err    *request.Error  `json:",omitempty"`
	Usage  request.Usage
	Opaque []byte `json:",omitempty"`
	// Times are ages when the output was sent.
	Times executor.Times `json:",omitzero"`
}

// aged turns times of one process's clock into what any other can read: how long
// ago each was. A second call with the other clock's now turns them back.
func aged(t executor.Times, now time.Duration) executor.Times {
	for _, at := range []*time.Duration{&t.Arrived, &t.PullBegan, &t.PullEnded, &t.Scheduled, &t.First} {
		if *at != 0 {
			*at = max(1, now-*at)
		}
	}
	return t
}

// remote is the sink of a request whose client is at another process.
type remote struct {
	m      *member
	id     request.ID
	ends   finals
	opened bool
	held   []Output // until it is open
}

func (r *remote) fail(err *request.Error) {
	for _, o := range r.ends.left(r.id, err) {
		r.push(o)
	}
}

func (r *remote) push(o Output) {
	r.ends.note(&o)
	if !r.opened {
		o.Tokens = slices.Clone(o.Tokens)
		r.held = append(r.held, o)
		return
	}
	r.m.post(post{Kind: postOutput, ID: r.id, Output: &farOutput{
		Choice: o.Choice, First: o.First, Tokens: replaced(o.Tokens, math.Inf(-1), -math.MaxFloat64), Text: o.Text, Finish: o.Finish, Err: o.Err, Usage: o.Usage, Opaque: o.Opaque,
		Times: aged(o.Times, r.m.g.e.Now()),
	}})
}

// replaced returns tokens with to in place of the log-probability from. JSON has no
// infinity, which forbidden tokens have; it must not cost the instance.
func replaced(tokens []request.Token, from, to float64) []request.Token {
	has := func(t request.TopLogprob) bool { return t.Logprob == from }
	if !slices.ContainsFunc(tokens, func(t request.Token) bool { return t.Logprob == from || slices.ContainsFunc(t.Top, has) }) {
		return tokens
	}
	tokens = slices.Clone(tokens)
	for i := range tokens {
		t := &tokens[i]
		if t.Logprob == from {
			t.Logprob = to
		}
		t.Top = slices.Clone(t.Top)
		for j := range t.Top {
			if has(t.Top[j]) {
				t.Top[j].Logprob = to
			}
		}
	}
	return tokens
}

// open tells the client's process where the request is, or that the core refused
// it, and lets the outputs go.
func (r *remote) open(route *Route) {
	r.opened = true
	if err := refusal(r.held, len(r.ends)); err != nil {
		r.m.post(post{Kind: postPlaced, ID: r.id, Err: err})
		return
	}
	r.m.post(post{Kind: postPlaced, ID: r.id, Route: route})
	for _, o := range r.held {
		r.push(o)
	}
	r.held = nil
}

// post sends a message to the leader's process. It is lost only when the group
// has ended, and then nobody waits for it.
func (m *member) post(p post) {
	if m.g.leads() {
		m.g.receive(&p)
		return
	}
	data, err := json.Marshal(p)
	if err != nil {
		panic("runner: " + err.Error()) // our own types
	}
	_ = m.comm.Post(data)
}

// posted takes a message of a rank of another process.
func (g *group) posted(from comm.Span, data []byte) {
	var p post
	if err := json.Unmarshal(data, &p); err != nil {
		g.e.log.Error("a message of other ranks cannot be read", "from", from.String(), "error", err)
		return
	}
	g.receive(&p)
}

func (g *group) receive(p *post) {
	switch p.Kind {
	case postPlaced:
		g.placed(p)
	case postOutput:
		g.output(p)
	case postRetired:
		g.e.status.remove(p.ID)
	case postAbort:
		g.aborted(p.Transfer, p.State)
	case postStats:
		if p.Stats != nil && p.Rank >= 0 && p.Rank < g.cfg.Comm.Size {
			g.e.status.set(p.Rank, *p.Stats, g.e.Now())
		}
	}
}

// placed lets the submitter of a request go on that another process has now.
func (g *group) placed(p *post) {
	s := g.take(p.ID)
	if s == nil {
		return
	}
	if s.refused = p.Err; p.Err != nil {
		g.e.status.remove(p.ID)
		close(s.done)
		return
	}
	s.stream.setRoute(p.Route)
	g.mu.Lock()
	g.remote[p.ID] = s
	g.mu.Unlock()
	if s.ctx.Err() != nil {
		g.e.Cancel(p.ID)
	}
	close(s.done)
}

// output brings an output to the client's stream. The first one tells whether
// the rank's core took the request.
func (g *group) output(p *post) {
	g.mu.Lock()
	s := g.remote[p.ID]
	if s != nil && p.Output.Finish != request.Running {
		if s.ended++; s.ended == s.req.Answers() {
			delete(g.remote, p.ID)
		}
	}
	g.mu.Unlock()
	if s == nil {
		return
	}
	o := p.Output
	out := Output{Opaque: o.Opaque, Output: executor.Output{
		Request: s.req, Choice: o.Choice, First: o.First, Tokens: replaced(o.Tokens, -math.MaxFloat64, math.Inf(-1)), Text: o.Text, Finish: o.Finish, Err: o.Err, Usage: o.Usage,
		Times: aged(o.Times, g.e.Now()),
	}}
	if len(o.Opaque) > 0 {
		h, err := g.members[0].decodeHandle(o.Opaque)
		if err != nil {
			g.e.log.Error("the handle of another rank cannot be read", "rank", p.Rank, "error", err)
		}
		out.Handle = h
	}
	s.stream.push(out)
}
